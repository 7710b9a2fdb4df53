"""Retention: which commits stay within reach, and the removal of files that nothing needs any more.

A file is removed only if no record that is kept names it, by itself or through its manifest. The floor is
raised before the first record goes, so that nobody who overslept takes its number again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from millpond.errors import Corrupt, InvalidUse, MillpondError
from millpond.log import manifest as manifests
from millpond.log.ledger import Ledger
from millpond.log.pointer import Pointer
from millpond.log.record import Record
from millpond.storage import Storage
from millpond.timing import seconds

JUMPS = 4  # a jump of the clock counts as this part of the duration that is kept

KINDS = ("steps", "outputs", "positions", "spark", "manifests", "exchange")


@dataclass(frozen=True)
class Keep:
    """How much of the past stays within reach: the last so many records, and those of the last so many seconds."""

    batches: int = 1000
    seconds: float = 0.0


def keeping(keep: int | str | timedelta, where: str) -> Keep:
    """What a user says of it: so many batches, or a duration."""
    if type(keep) is not int:
        return Keep(1, seconds(keep, where))
    if keep < 1:
        raise InvalidUse(f'{where}: expected a number of batches or a duration such as "7d", got {keep!r}')
    return Keep(keep)


def files_of(record: Record) -> Iterator[Pointer]:
    """Every file that a record names by itself."""
    for named in (record.segments, record.outputs):
        for parts in named.values():
            for files in parts.values():
                yield from files
    for position in record.positions.values():
        if position.base is not None:
            yield position.base
    for batch in record.spark.values():
        yield from batch.files.values()
    if record.manifest is not None:
        yield record.manifest


def pruned(storage: Storage, ledger: Ledger, newest: Record, keep: Keep) -> None:
    """Remove what lies before everything that is to be kept."""
    oldest = _oldest_wanted(ledger, newest, keep)
    if oldest is None or oldest.manifest is None:
        return
    # Every record from `oldest` on is its manifest and the records after that.
    base = manifests.read(storage, oldest.manifest).upto
    first = base + 1
    if first <= max(ledger.floor(), newest.born):
        return
    ledger.raise_floor(first)
    paths = ledger.paths
    needed = {file.path for record in (oldest, newest) for file in files_of(record)}
    for item in storage.list(f"{paths.root}/manifests"):
        if (paths.batch(item.path) or 0) >= base:
            needed |= {item.path, *_runs(storage, item.path)}
    for kind in KINDS:
        old = [item.path for item in storage.list(f"{paths.root}/{kind}") if (paths.batch(item.path) or 0) < first]
        storage.delete([path for path in old if path not in needed])
    records = [(paths.number(item.path), item.path) for item in storage.list(paths.ledger)]
    storage.delete([path for number, path in records if number is not None and number < first])


def _oldest_wanted(ledger: Ledger, newest: Record, keep: Keep) -> Record | None:
    """The oldest record that is to stay within reach; what is not delivered stays, however old."""
    first = max(newest.born, ledger.floor())
    number = max(first, newest.number - keep.batches + 1)
    for record in ledger.between(max(first - 1, min(newest.deliveries.values(), default=number)), number - 1):
        if any(newest.deliveries.get(sink, record.number) < record.number for sink in record.outputs):
            number = record.number
            break
    wanted = ledger.read(number)
    if not keep.seconds or wanted is None:
        return wanted
    longest = keep.seconds / JUMPS
    enough = keep.seconds + longest  # so that a clock that has jumped once makes nothing old before its time
    age = _passed(ledger, wanted, newest, longest)
    step = 1  # a few records more than asked for may stay, but not all need be read
    while wanted.number > first and age <= enough:
        older = ledger.read(max(first, wanted.number - step))
        if older is None:
            return None
        age += _passed(ledger, older, wanted, longest)
        wanted, step = older, min(2 * step, 50)
    return wanted


def _passed(ledger: Ledger, older: Record, newer: Record, longest: float) -> float:
    """Seconds from one record to a later one, by the times in them, as far as these can be trusted.

    The clock of a machine may be set years ahead and back again. So no two neighbours are taken to be more than
    `longest` apart, nor less than nothing: a single wrong time makes no record old. After a real pause that long
    more is kept than was asked for.
    """
    passed = newer.time - older.time
    if passed <= longest or newer.number - older.number <= 1:
        return min(max(passed, 0.0), longest)
    middle = ledger.read((older.number + newer.number) // 2)
    if middle is None:
        return longest
    return _passed(ledger, older, middle, longest) + _passed(ledger, middle, newer, longest)


def _runs(storage: Storage, path: str) -> set[str]:
    """The segments that a manifest names."""
    data = storage.get(path)
    try:
        return set() if data is None else {file.path for file in manifests.unpack(data, path).files()}
    except MillpondError as error:
        raise Corrupt(f"{storage.url}: {error} Nothing was removed.") from error


def orphans(storage: Storage, ledger: Ledger, before: int, driver: str = "") -> list[str]:
    """Files of batches before a record that nothing names: of attempts that failed. What `driver` wrote is left alone.

    Records are read after the files are listed: what is named by then is no orphan.
    """
    paths = ledger.paths
    listed = [item.path for kind in KINDS for item in storage.list(f"{paths.root}/{kind}")]
    newest = ledger.newest()
    if newest is None:
        return []
    named: set[str] = set()
    for number in range(max(ledger.floor(), newest.born), newest.number + 1):
        record = ledger.read(number)
        if record is not None:
            named |= {file.path for file in files_of(record)}
    for path in [path for path in listed if path in named and path.startswith(f"{paths.root}/manifests/")]:
        named |= _runs(storage, path)
    return [
        path
        for path in listed
        if path not in named
        and (batch := paths.batch(path)) is not None
        and batch < before
        and not (driver and f"-{driver}" in path)
    ]


def swept(storage: Storage, ledger: Ledger, before: int) -> None:
    """Remove the folders of batches before a record that rows changed hands in, where a disk has kept them, empty."""
    sweep, paths = getattr(storage, "sweep", None), ledger.paths
    if sweep is not None:
        sweep(f"{paths.root}/exchange", lambda path: (paths.batch(path) or before) < before)
