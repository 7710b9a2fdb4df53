"""The ledger: numbered records, each written once.

The next number is taken with put-if-absent, and whoever takes it decides what happened. A driver's first
record is its claim; the newest claim owns the app, and a driver that finds its next number taken by
another stops as `Fenced`. There is no other lock.
"""

from __future__ import annotations

from collections.abc import Iterator

from millpond.clock import Clock
from millpond.errors import Corrupt, Fenced, Incompatible, InvalidUse, Unavailable
from millpond.log.paths import Paths
from millpond.log.record import Record, pack, unpack
from millpond.storage import Storage

ATTEMPTS = 5  # how often a put that got no answer is tried again


class Ledger:
    """The records of one app in one storage."""

    def __init__(self, storage: Storage, app: str, clock: Clock) -> None:
        self.storage, self.app, self.clock = storage, app, clock
        self.paths = Paths(app)

    def read(self, number: int) -> Record | None:
        """Record `number`; nothing if it has not been written."""
        path = self.paths.record(number)
        data = self.storage.get(path)
        if data is None:
            return None
        record = unpack(data, f"{self.storage.url}: ledger record {path}")
        if record.app != self.app:
            raise Incompatible(
                f"{self.storage.url}: the folder of app {self.app!r} holds the ledger of app {record.app!r}. "
                f"Name the app {record.app!r}, or choose another state_dir."
            )
        if record.number != number:
            raise Corrupt(
                f"{self.storage.url}: {path} holds record {record.number}, expected {number}: files were "
                "renamed or copied over each other. Put the ledger back from a copy."
            )
        return record

    def newest(self, near: int | None = None) -> Record | None:
        """The newest record; nothing for an app that never ran. `near` is a number to begin to look at."""
        found: int | None = None
        after = self.paths.record(near - 1) if near else None
        for item in self.storage.list(self.paths.ledger, after):
            number = self.paths.number(item.path)
            found = number if number is not None else found
        if found is None:
            return self.newest() if near else None
        return self.read(found)

    def between(self, after: int, to: int) -> Iterator[Record]:
        """The records after one and up to another, both known to exist, in order."""
        for number in range(after + 1, to + 1):
            record = self.read(number)
            if record is None:
                raise Corrupt(
                    f"{self.storage.url}: ledger record {self.paths.record(number)} is missing, and record {to} "
                    "builds on it. Put it back from a copy of the state directory."
                )
            yield record

    def append(self, record: Record, last: Record | None) -> Record:
        """Write the record that follows `last`, or stop as `Fenced` if another has taken its number.

        An answer of "already exists", or no answer, may hide that our own put went through: what
        stands there is read back and compared by its attempt.
        """
        if last is not None:
            self.still_has(last)
        record, data = pack(record)
        path = self.paths.record(record.number)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                created = self.storage.put_new(path, data)
            except Unavailable as error:
                if self._is_ours(record) and record.number >= self.floor():
                    return record
                if attempt == ATTEMPTS:
                    raise
                self.clock.sleep(error.retry_after or 0.1 * 2**attempt)
                continue
            if created or self._is_ours(record):
                # Old records are removed, and their numbers must not be taken again by one who overslept.
                if record.number >= self.floor():
                    return record
                self.storage.delete([path])
            raise Fenced(
                f"app {self.app!r} in {self.storage.url}: record {record.number} was written by another driver, "
                "which owns the app now. This driver has stopped; nothing is lost."
            )
        raise AssertionError("unreachable")

    def floor(self) -> int:
        """The number below which records may have been removed."""
        data = self.storage.get(self.paths.floor)
        return int(data) if data and data.isdigit() else 0

    def raise_floor(self, number: int) -> None:
        """From now on no record below this number is needed; said before any of them is removed."""
        self.storage.put(self.paths.floor, b"%d" % number)

    def _is_ours(self, record: Record) -> bool:
        try:
            found = self.read(record.number)
        except (Corrupt, Incompatible):
            return False
        return found is not None and found.attempt == record.attempt

    def still_has(self, last: Record) -> None:
        """`Fenced` if the ledger is not the one that this record was written to."""
        found = self.read(last.number)
        if found is None or found.checksum != last.checksum:
            raise Fenced(
                f"app {self.app!r} in {self.storage.url}: the ledger that this driver wrote is gone or was begun "
                "anew. This driver has stopped and has written nothing more."
            )


def check_writable(storage: Storage, app: str) -> None:
    """Fail early, and in words, if nothing can be written to the state directory."""
    probe = f"{Paths(app).root}/.probe"
    try:
        storage.put(probe, b"ok")
        storage.delete([probe])
    except OSError as error:
        raise InvalidUse(f"state_dir {storage.url}: cannot be written: {error}. Choose another one.") from error
