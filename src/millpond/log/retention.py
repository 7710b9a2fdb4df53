"""Retention: which commits stay within reach, and the removal of files that no kept record needs.

A file is removed only if no record that is kept names it, by itself or through its manifest, and in two steps: first a
record states the floor below which files may go, then they go. So a driver that has lost the app removes nothing
that its successors need, however long it was paused in between: it could not have stated a floor since, and a
rollback, whose own record follows, reads the floor from the record before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from millpond.errors import Corrupt, InvalidUse
from millpond.log.checked import Pointer
from millpond.log.ledger import Ledger
from millpond.log.manifest import read_manifest
from millpond.log.paths import FOLDERS
from millpond.log.published import files_before_clear
from millpond.log.reach import is_kept
from millpond.log.record import Record
from millpond.storage import Storage
from millpond.storage.base import FolderStorage
from millpond.timing import seconds

CLOCK_JUMP_PARTS = 4  # a jump of the clock counts as this part of the duration that is kept


@dataclass(frozen=True)
class Keep:
    """How much of the past stays within reach: a number of records, and all records of some seconds."""

    batches: int = 1000
    seconds: float = 0.0


def parse_keep(keep: int | str | timedelta, where: str) -> Keep:
    """Parse `keep` as users give it: a number of batches, or a duration."""
    if type(keep) is not int:
        return Keep(1, seconds(keep, where))
    if keep < 1:
        raise InvalidUse(f'{where}: expected a number of batches or a duration such as "7d", got {keep!r}')
    return Keep(keep)


def record_files(record: Record) -> Iterator[Pointer]:
    """Yield every file that a record names itself, not through its manifest."""
    for named in (record.segments, record.outputs):
        for parts in named.values():
            for files in parts.values():
                yield from files
    yield from carried_files(record)


def carried_files(record: Record) -> Iterator[Pointer]:
    """Yield the files of a record that earlier batches may have written: positions, Spark's files, its manifest."""
    for position in record.positions.values():
        if position.base is not None:
            yield position.base
    for batch in record.spark.values():
        yield from batch.files.values()
    if record.manifest is not None:
        yield record.manifest


class CarriedFiles:
    """The `carried_files` of the records of a ledger.

    Records never change, so each is read once, and remembered only if these files differ from those of the one before.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._changes: list[tuple[int, frozenset[Pointer]]] = []  # from this record on, these files
        self._upto = -1

    def since(self, floor: int, newest: Record) -> set[Pointer]:
        """Return the files that the records from the floor to the newest one name."""
        for record in self._ledger.between(max(self._upto, floor - 1), newest.number):
            self._read(record)
        past = [number for number, _ in self._changes if number <= floor]
        self._changes = [(number, files) for number, files in self._changes if number >= max(past, default=floor)]
        return {file for _, files in self._changes for file in files}

    def _read(self, record: Record) -> None:
        files = frozenset(carried_files(record))
        if not self._changes or self._changes[-1][1] != files:
            self._changes.append((record.number, files))
        self._upto = record.number


def next_floor(ledger: Ledger, newest: Record, keep: Keep) -> int:
    """Return the floor for the next record: the oldest record that is needed to read everything that is kept."""
    oldest = _oldest_wanted(ledger, newest, keep)
    if oldest is None or oldest.manifest is None:
        return newest.floor
    # Every record from `oldest` on is its manifest and the records after that.
    first = read_manifest(ledger.storage, oldest.manifest).upto + 1
    return first if first > max(ledger.floor(newest), newest.born) else newest.floor


def prune(storage: Storage, ledger: Ledger, newest: Record, carried: CarriedFiles) -> None:
    """Remove what is below the floor that the newest record states. That record is the caller's own."""
    floor, paths = newest.floor, ledger.paths
    numbers = ledger.numbers()
    if not numbers or numbers[0] >= floor:
        return
    ledger.raise_floor(floor)
    files = (item.path for folder in FOLDERS for item in storage.list(f"{paths.root}/{folder}"))
    old = [path for path in files if (batch := paths.batch(path)) is not None and batch < floor]
    needed = _needed_paths(ledger, carried.since(max(floor, newest.born), newest), floor)
    ledger.still_owned(newest)
    storage.delete([path for path in old if path not in needed])
    storage.delete(
        [paths.record(number) for number in numbers if number < floor]
    )  # last: the other files are found by them


def _needed_paths(ledger: Ledger, files: set[Pointer], floor: int) -> set[str]:
    """Return the paths of these files, and of what the manifests among them name, if they are within reach."""
    found = {file.path for file in files}
    for file in files:
        if file.path.startswith(f"{ledger.paths.root}/manifests/") and is_kept(ledger, file, floor):
            found |= {part.path for part in read_manifest(ledger.storage, file).files()}
    return found


def _oldest_wanted(ledger: Ledger, newest: Record, keep: Keep) -> Record | None:
    """Return the oldest record that must stay within reach.

    What is not delivered stays, however old, and so do rolled-back records until the program's sinks have made their
    deliveries void. If those are from before a clear, it is the record of the clear: it has no manifest, so the floor
    stays where it is.
    """
    first = max(newest.born, ledger.floor(newest))
    number = max(first, newest.number - keep.batches + 1)
    for record in ledger.between(max(first - 1, min(newest.deliveries.values(), default=number)), number - 1):
        if any(newest.deliveries.get(sink, record.number) < record.number for sink in record.outputs):
            number = record.number
            break
    wanted = ledger.read(max(first, min([number, *_rolled_back_starts(ledger, newest)])))
    if not keep.seconds or wanted is None:
        return wanted
    longest = keep.seconds / CLOCK_JUMP_PARTS
    enough = keep.seconds + longest  # so that a clock that has jumped once makes nothing old before its time
    age = _seconds_between(ledger, wanted, newest, longest)
    step = 1  # a few records more than asked for may stay, but not all need be read
    while wanted.number > first and age <= enough:
        older = ledger.read(max(first, wanted.number - step))
        if older is None:
            return None
        age += _seconds_between(ledger, older, wanted, longest)
        wanted, step = older, min(2 * step, 50)
    return wanted


def _rolled_back_starts(ledger: Ledger, newest: Record) -> Iterator[int]:
    """Yield where ranges of rolled-back or cleared records begin whose deliveries are not void in their targets yet.

    Ranges of a sink that is gone from the program are left out: it may never come back.
    """
    for sink in newest.void_ranges.keys() & newest.deliveries.keys():
        for begin, end in newest.void_ranges[sink]:
            after = ledger.read(end + 1)
            if after is not None and (after.back is not None or after.kind == "clear"):
                yield begin


def _seconds_between(ledger: Ledger, older: Record, newer: Record, longest: float) -> float:
    """Return the seconds from one record to a later one, as far as the times in them can be trusted.

    The clock of a machine may be set years ahead and back again. So two neighbours count as at most `longest` and at
    least zero seconds apart: a single wrong time makes no record old. After a real pause that is longer, more is kept
    than was asked for.
    """
    passed = newer.time - older.time
    if passed <= longest or newer.number - older.number <= 1:
        return min(max(passed, 0.0), longest)
    middle = ledger.read((older.number + newer.number) // 2)
    if middle is None:
        return longest
    return _seconds_between(ledger, older, middle, longest) + _seconds_between(ledger, middle, newer, longest)


def find_orphans(storage: Storage, ledger: Ledger, before: int, driver: str = "") -> list[str]:
    """Return the files of batches before a record that no record names: those of failed attempts.

    Files that `driver` wrote are left out. Records are read after the files are listed: what is named by then is no
    orphan. `Corrupt` if a record or a manifest that must be there cannot be read: it may name any file.
    """
    paths = ledger.paths
    listed = [item.path for folder in FOLDERS for item in storage.list(f"{paths.root}/{folder}")]
    newest = ledger.newest()
    if newest is None:
        return []
    floor = ledger.floor(newest)
    named: set[Pointer] = set()
    numbers = [number for number in ledger.numbers() if newest.born <= number <= newest.number]
    for number in sorted({*numbers, *range(max(floor, newest.born), newest.number + 1)}):
        record = ledger.read(number)
        if record is not None:
            named |= set(record_files(record))
        elif number >= floor:
            raise Corrupt(
                f"{storage.url}: ledger record {paths.record(number)} is missing: expected all records from "
                f"{floor} to {newest.number}. Put it back from a copy of the state directory. No file was removed."
            )
    needed = _needed_paths(ledger, named, floor) | files_before_clear(ledger, newest)
    return [
        path
        for path in listed
        if path not in needed
        and (batch := paths.batch(path)) is not None
        and batch < before
        and not (driver and f"-{driver}" in path)
    ]


def remove_empty_dirs(ledger: Ledger, before: int) -> None:
    """Remove the empty exchange folders of batches before a record, if the storage has folders."""
    storage, paths = ledger.storage, ledger.paths
    if isinstance(storage, FolderStorage):
        storage.sweep(f"{paths.root}/exchange", lambda path: (paths.batch(path) or before) < before)
