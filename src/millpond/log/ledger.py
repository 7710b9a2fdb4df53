"""The ledger: numbered records, each written once.

The next number is taken with put-if-absent, so that exactly one writer gets it. A driver's first record is its claim;
the newest claim owns the app, and a driver whose next number was taken by another stops as `Fenced`. There is no other
lock.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from millpond.backoff import Backoff
from millpond.clock import Clock
from millpond.errors import Corrupt, Fenced, Incompatible, InvalidUse, Unavailable
from millpond.log.checked import pack_checked, unpack_checked, write_checked
from millpond.log.paths import Paths
from millpond.log.record import READABLE_FORMATS, Record
from millpond.storage import Storage

MOST_PUT_ATTEMPTS = 5  # at a record whose put got no answer
PUT_RETRIES = Backoff(first=0.2, longest=1.6)

_CHECKSUM = len(b'{"checksum":"')  # where it begins in the file of a record
_record_decoder = msgspec.json.Decoder(Record)
_WAY_OUT = (
    "Put the record back from a copy of the state directory, or delete the app's folder there and read "
    "its input again; nothing has been changed."
)
_EMPTY_WAY_OUT = (
    "If it is the newest record, and the file system has neither hard links nor exclusive renames, a process was "
    "killed before it had written the record: delete that one file while no driver runs, and run again. Otherwise: "
    + _WAY_OUT
)


class Ledger:
    """The records of one app in one storage."""

    def __init__(self, storage: Storage, app: str, clock: Clock) -> None:
        self.storage, self.app, self.clock = storage, app, clock
        self.paths = Paths(app)

    def read(self, number: int) -> Record | None:
        """Return record `number`; None if it has not been written."""
        path = self.paths.record(number)
        data = self.storage.get(path)
        if data is None:
            return None
        record = _unpack_record(data, f"{self.storage.url}: ledger record {path}")
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
        """Return the newest record; None if the app never ran. The listing begins at the number `near`."""
        found: int | None = None
        after = self.paths.record(near - 1) if near else None
        for item in self.storage.list(self.paths.ledger, after):
            number = self.paths.number(item.path)
            found = number if number is not None else found
        if found is None:
            return self.newest() if near else None
        return self.read(found)

    def is_newest(self, record: Record) -> bool:
        """Return whether no other record has been written since."""
        found = self.newest(near=record.number)
        return found is not None and found.checksum == record.checksum

    def between(self, after: int, to: int) -> Iterator[Record]:
        """Yield the records after one number and up to another, in order; `Corrupt` if one of them is missing."""
        for number in range(after + 1, to + 1):
            record = self.read(number)
            if record is None:
                raise Corrupt(
                    f"{self.storage.url}: ledger record {self.paths.record(number)} is missing, and record {to} "
                    "builds on it. Put it back from a copy of the state directory."
                )
            yield record

    def append(self, record: Record, last: Record | None) -> Record:
        """Write the record that follows `last`; `Fenced` if another driver has taken its number.

        A reply of "already exists", or no reply, does not mean that our own put failed: the record that is there is
        read back, and its attempt is compared.
        """
        if last is not None:
            self.still_has(last)
        record, data = _pack_record(record)
        path = self.paths.record(record.number)
        for attempt in range(1, MOST_PUT_ATTEMPTS + 1):
            try:
                created = self.storage.put_new(path, data)
            except Unavailable as error:
                if self._is_ours(record) and record.number >= self._last_floor():
                    return record
                if attempt == MOST_PUT_ATTEMPTS:
                    raise
                self.clock.sleep(error.retry_after or PUT_RETRIES.pause(attempt))
                continue
            if created or self._is_ours(record):
                # Old records are removed, and a driver that was paused must not take their numbers again.
                if record.number >= self._last_floor():
                    return record
                self.storage.delete([path])
                self.floor()  # `Corrupt` if it is above every record: trying again would not help
            raise Fenced(
                f"app {self.app!r} in {self.storage.url}: record {record.number} was written by another driver, "
                "which owns the app now. This driver has stopped; nothing is lost."
            )
        raise AssertionError("unreachable")

    def floor(self, newest: Record | None = None) -> int:
        """Return the number below which records may have been removed. `newest` is the newest record, if it is known.

        The newest record states it. The file `floor` repeats it for drivers that know only an older record.
        """
        newest = newest or self.newest()
        floor = max(self._last_floor(), 0 if newest is None else newest.floor)
        if newest is not None and floor > newest.number:  # it was raised since that was read
            newest = self.newest()
        if floor > (0 if newest is None else newest.number):
            last = "there is no record" if newest is None else f"the newest record is {newest.number}"
            raise Corrupt(
                f"{self.storage.url}: {self.paths.floor} says that the oldest record is {floor}, and {last}. "
                f"{self._way_out()}"
            )
        return floor

    def _last_floor(self) -> int:
        """Return the number in the file `floor`. A driver that was paused may have written an old one."""
        data = self.storage.get(self.paths.floor)
        if data is None:
            return 0
        if data.isdigit():  # of an earlier version, without a checksum: the records are more reliable
            return min(int(data), self._oldest() or 0)
        return int(
            msgspec.json.decode(unpack_checked(data, f"{self.storage.url}: {self.paths.floor}", help=self._way_out()))[
                "floor"
            ]
        )

    def raise_floor(self, number: int) -> None:
        """Write the floor of the newest record to the file `floor`, before any record below it is removed."""
        if number > self._last_floor():
            write_checked(self.storage, self.paths.floor, {"floor": number})

    def numbers(self) -> list[int]:
        """Return the numbers of all records that are there, in order."""
        found = (self.paths.number(item.path) for item in self.storage.list(self.paths.ledger))
        return [number for number in found if number is not None]

    def _oldest(self) -> int | None:
        """Return the number of the oldest record that is there."""
        found = (self.paths.number(item.path) for item in self.storage.list(self.paths.ledger))
        return next((number for number in found if number is not None), None)

    def _way_out(self) -> str:
        oldest = self._oldest()
        return (
            "Put the file back from a copy of the state directory"
            + ("" if oldest is None else f", or write {oldest} into it, the number of the oldest record that is there")
            + ". Nothing has been changed."
        )

    def still_owned(self, record: Record) -> None:
        """Raise `Fenced` if the newest record is not of the driver that wrote this one."""
        self.still_has(record)
        newest = self.newest(near=record.number)
        if newest is None or newest.driver != record.driver:
            raise Fenced(
                f"app {self.app!r} in {self.storage.url}: another driver owns it now. This one removes no files."
            )

    def has_other_driver_after(self, last: Record) -> bool:
        """Return whether another driver than that of `last` has written a record since. Costs two reads.

        Raises `Fenced` if the ledger is not the one that `last` was written to.
        """
        self.still_has(last)
        number = last.number + 1
        while (record := self.read(number)) is not None:
            if record.driver != last.driver:
                return True
            number += 1
        return False

    def _is_ours(self, record: Record) -> bool:
        try:
            found = self.read(record.number)
        except (Corrupt, Incompatible):
            return False
        return found is not None and found.attempt == record.attempt

    def still_has(self, last: Record) -> None:
        """Raise `Fenced` if the ledger is not the one that this record was written to."""
        found = self.read(last.number)
        if found is None or found.checksum != last.checksum:
            raise Fenced(
                f"app {self.app!r} in {self.storage.url}: the ledger that this driver wrote is gone or was "
                "replaced. This driver has stopped and has written nothing more."
            )


def _pack_record(record: Record) -> tuple[Record, bytes]:
    """Return the record with its checksum, and its bytes."""
    data = pack_checked(msgspec.structs.replace(record, checksum=""))
    return msgspec.structs.replace(record, checksum=data[_CHECKSUM : _CHECKSUM + 32].decode()), data


def _unpack_record(data: bytes, where: str) -> Record:
    """Decode a record; `Corrupt` if any byte has changed, `Incompatible` if its format is newer."""
    found = msgspec.json.decode(unpack_checked(data, where, help=_WAY_OUT if data else _EMPTY_WAY_OUT)).get("format")
    if found not in READABLE_FORMATS:
        raise Incompatible(
            f"{where} has format {found}, and this version of Millpond reads formats {READABLE_FORMATS[0]} to "
            f"{READABLE_FORMATS[-1]}: upgrade Millpond."
        )
    return _record_decoder.decode(data)


def check_writable(storage: Storage, app: str) -> None:
    """Raise `InvalidUse` if the state directory cannot be written to."""
    probe = f"{Paths(app).root}/.probe"
    try:
        storage.put(probe, b"ok")
        storage.delete([probe])
    except OSError as error:
        raise InvalidUse(f"state_dir {storage.url}: cannot be written: {error}. Choose another one.") from error
