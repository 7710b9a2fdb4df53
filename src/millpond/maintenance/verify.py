"""Verify: read every file that an app needs, and compare its checksum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from millpond.clock import Clock
from millpond.errors import MillpondError
from millpond.log import checked
from millpond.log.checked import Pointer, read_checked
from millpond.log.ledger import Ledger
from millpond.log.manifest import read_manifest
from millpond.log.paths import file_kind
from millpond.log.reach import is_kept
from millpond.log.record import Record
from millpond.log.retention import find_orphans, record_files
from millpond.storage import Storage

T = TypeVar("T")


@dataclass(frozen=True)
class Verdict:
    """The result of `verify`: how much was read, and what is damaged.

    `kinds` is the number of files that were read, by their kind. Exchange files between two stages of a batch, and
    files that no record names, are not read.

    >>> import millpond as mp
    >>> app = mp.App("orders", state_dir="memory://")
    >>> app.verify().ok
    True
    """

    records: int
    files: int
    bytes: int
    damaged: list[str]
    orphans: list[str]
    kinds: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether everything that is needed is there and whole.

        >>> import millpond as mp
        >>> mp.App("orders", state_dir="memory://").verify().ok
        True
        """
        return not self.damaged


def verify_app(storage: Storage, app: str, clock: Clock) -> Verdict:
    """Read every record that is kept and every file that one names, and compare their checksums.

    The app may run meanwhile, and its retention may remove files that are about to be read. No record names those
    in a second pass: only what both passes report is damaged.
    """
    found, floor, after = _Pass(storage, app, clock).run()
    if found.ok or floor == after:
        return found
    again, *_ = _Pass(storage, app, clock).run()
    return replace(again, damaged=[text for text in again.damaged if text in found.damaged])


class _Pass:
    """One pass over the files of an app."""

    def __init__(self, storage: Storage, app: str, clock: Clock) -> None:
        self.storage, self.ledger = storage, Ledger(storage, app, clock)
        self.damaged: list[str] = []
        self.kinds: Counter[str] = Counter()
        self.seen: dict[str, Pointer] = {}

    def run(self) -> tuple[Verdict, int, int]:
        """Return the verdict, and the floor before and after the pass."""
        newest, last = self._find_newest()
        floor = 0 if newest is None else self._read_floor(newest)
        if newest is not None:
            self._read_records(max(newest.born, floor), last)
        for file in self.seen.values():
            self._count(file.path)
            self._try(partial(checked.read_file, self.storage, file))
        self._read_heartbeat()
        self._read_requests()
        left: list[str] = []
        if newest is not None:
            with suppress(MillpondError):  # it is among the damaged already
                left = find_orphans(self.storage, self.ledger, newest.number + 1)
        size = sum(file.bytes for file in self.seen.values())
        kinds = dict(sorted(self.kinds.items()))
        verdict = Verdict(self.kinds["record"], len(self.seen), size, self.damaged, left, kinds)
        newest = self._try(self.ledger.newest)
        return verdict, floor, floor if newest is None else max(newest.floor, floor)

    def _find_newest(self) -> tuple[Record | None, int]:
        """Return the newest record that can be read, if there is one, and the number of the newest one of all."""
        newest = self._try(self.ledger.newest)
        if newest is not None:
            return newest, newest.number
        numbers = self._try(self.ledger.numbers) or []
        for number in reversed(numbers):
            with suppress(MillpondError):  # it is noted when all records are read
                found = self.ledger.read(number)
                if found is not None:
                    return found, numbers[-1]
        return None, -1

    def _try(self, read: Callable[[], T]) -> T | None:
        """Call `read`; if it fails, note the error as damage and return None."""
        try:
            return read()
        except MillpondError as error:
            if str(error) not in self.damaged:
                self.damaged.append(str(error))
            return None

    def _count(self, path: str) -> None:
        kind = file_kind(path)
        self.kinds["other" if kind is None else kind.name] += 1

    def _read_floor(self, newest: Record) -> int:
        path = self.ledger.paths.floor
        if self.storage.get(path) is not None:
            self._count(path)
        floor = self._try(partial(self.ledger.floor, newest))
        return newest.floor if floor is None else floor

    def _read_heartbeat(self) -> None:
        path = self.ledger.paths.heartbeat
        if self._try(partial(read_checked, self.storage, path, old=b'{"driver":')) is not None:
            self._count(path)

    def _read_requests(self) -> None:
        for item in list(self.storage.list(self.ledger.paths.requests)):
            if self._try(partial(read_checked, self.storage, item.path)) is not None:
                self._count(item.path)

    def _read_records(self, first: int, last: int) -> None:
        before: Record | None = None
        for number in range(first, last + 1):
            path = self.ledger.paths.record(number)
            record = self._try(lambda number=number: next(self.ledger.between(number - 1, number)))  # type: ignore[misc]
            if record is None:
                before = None
                continue
            self._count(path)
            if before is not None and record.previous != before.checksum:
                self.damaged.append(f"{path} does not follow the record before it")
            before = record
            self.seen.update({file.path: file for file in record_files(record) if file != record.manifest})
            if record.manifest is not None and is_kept(self.ledger, record.manifest, first):
                self._read_manifest(record.manifest)

    def _read_manifest(self, file: Pointer) -> None:
        if file.path not in self.seen:
            self.seen[file.path] = file
            found = self._try(partial(read_manifest, self.storage, file))
            if found is not None:
                self.seen.update({part.path: part for part in found.files()})
