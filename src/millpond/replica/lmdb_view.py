"""The view of a local store: one read transaction of LMDB, with every value checked as it is read."""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar
from zlib import crc32

import lmdb

from millpond.replica.cell_format import (
    CELL_HEAD,
    HAS_DUE,
    Damaged,
    cell_address,
    cell_times,
    pack_time,
    read_cell,
    single_store_keys,
    split_time_entry,
    store_beginning,
    store_key,
    store_prefix,
    time_entry,
    unpack_cell,
    unpack_time,
)
from millpond.replica.view import Entry
from millpond.timing import MAX_TICKS

_NUL = b"\x00"
CELLS, DUE, WALL = "step:", "due:", "wall:"  # how the names of a store's databases begin; the step's follows


P = ParamSpec("P")
T = TypeVar("T")


def _reads(read: Callable[P, T]) -> Callable[P, T]:
    """Raise errors of LMDB as `Damaged`: a function of the user's may raise errors of an LMDB of its own."""

    @wraps(read)
    def checked_read(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return read(*args, **kwargs)
        except lmdb.Error as error:
            raise Damaged(str(error)) from error

    return checked_read


def _iterates(read: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """Do the same for a generator."""

    @wraps(read)
    def checked_read(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        try:
            yield from read(*args, **kwargs)
        except lmdb.Error as error:
            raise Damaged(str(error)) from error

    return checked_read


class LmdbView:
    """A `View` of one version of a store; it stays the same while others write.

    Every method raises `Damaged` if it meets bytes that no writer put there.
    """

    def __init__(
        self, txn: Any, databases: dict[str, Any], position: int, latest: Mapping[str, int], record: str = ""
    ) -> None:
        self._txn, self.position, self._latest = txn, position, latest
        self.record = record  # the checksum of the record at that position
        self._databases = {name[5:]: database for name, database in databases.items() if name.startswith(CELLS)}
        self._by_time = {name: database for name, database in databases.items() if not name.startswith(CELLS)}
        self.timed_steps = {name.removeprefix(DUE) for name in self._by_time if name.startswith(DUE)}

    @_reads
    def get(self, step: str, key: bytes, cell: bytes = b"") -> bytes | None:
        database = self._databases.get(step)
        if database is None:
            return None
        at = store_key(key, cell)
        data = self._txn.get(at, db=database)
        if data is None:
            _check_absent(self._txn.cursor(db=database), at)
            return None
        return unpack_cell(at, data)

    @_reads
    def get_many(self, step: str, keys: Sequence[bytes]) -> list[bytes | None]:
        database = self._databases.get(step)
        if database is None:
            return [None] * len(keys)
        return self._values(database, single_store_keys(keys))

    def _values(self, database: Any, places: list[bytes]) -> list[bytes | None]:
        """Return the values at many store keys, fastest if these are in order. One search finds a key or its place."""
        cursor = self._txn.cursor(db=database)
        found: list[bytes | None] = []
        keep, head, seek, item = found.append, CELL_HEAD.unpack_from, cursor.set_range, cursor.item
        before = after = b""  # neighbours of the last key that is absent; the next one often has the same
        for at in places:
            if before < at < after:
                keep(None)
                continue
            if not seek(at):
                before = _check_before(cursor, at, cursor.last())
                after = b""
                keep(None)
                continue
            # `unpack_cell`, written out for a value with an event time at most: the calls would be most of the work.
            there, data = item()
            try:
                check, flags = head(data)
            except struct.error:
                raise Damaged(f"a value of {len(data)} bytes") from None
            value = data[5:]
            if crc32(value, crc32(there, flags)) != check:
                raise Damaged(f"checksum of {there[:80]!r}")
            if there != at:
                after = _check_after(there, at)
                before = _check_before(cursor, at, cursor.prev())
                keep(None)
            elif flags & ~HAS_DUE:
                keep(unpack_cell(at, data))
            else:
                keep(value[8:] if flags else value)
        return found

    @_reads
    def get_cells(self, step: str, keys: Sequence[bytes], cells: Sequence[bytes]) -> list[bytes | None]:
        database = self._databases.get(step)
        if database is None:
            return [None] * len(keys)
        return self._values(database, list(map(store_key, keys, cells)))

    @_reads
    def entry(self, step: str, key: bytes, cell: bytes = b"") -> Entry | None:
        database = self._databases.get(step)
        if database is None:
            return None
        at = store_key(key, cell)
        data = self._txn.get(at, db=database)
        if data is None:
            _check_absent(self._txn.cursor(db=database), at)
            return None
        return Entry(key, cell, unpack_cell(at, data), *cell_times(data))

    @_iterates
    def entries(self, step: str, key: bytes | None = None, cell: bytes = b"") -> Iterator[Entry]:
        database = self._databases.get(step)
        if database is None:
            return
        start = b"" if key is None else store_prefix(key, cell)
        cursor = self._txn.cursor(db=database)
        if not cursor.set_range(start):
            return
        for at, data in cursor:
            if not at.startswith(start):
                return
            value = unpack_cell(at, data)
            found_key, found_cell = cell_address(at, data)
            if found_cell.startswith(cell) and (key is None or found_key == key):
                yield Entry(found_key, found_cell, value, *cell_times(data))

    def scan(self, step: str, key: bytes | None = None, cell: bytes = b"") -> Iterator[tuple[bytes, bytes, bytes]]:
        return ((entry.key, entry.cell, entry.value) for entry in self.entries(step, key, cell))

    @_iterates
    def scan_keys(self, step: str, beginning: bytes) -> Iterator[tuple[bytes, bytes]]:
        database = self._databases.get(step)
        if database is None:
            return
        start = store_beginning(beginning)
        cursor = self._txn.cursor(db=database)
        if not cursor.set_range(start):
            return
        for at, data in cursor:
            if not at.startswith(start):
                return
            value = unpack_cell(at, data)
            key, cell = cell_address(at, data)
            if not cell and key.startswith(beginning):
                yield key, value

    @_iterates
    def range(self, step: str, key: bytes, first: bytes, last: bytes) -> Iterator[Entry]:
        database = self._databases.get(step)
        if database is None:
            return
        own, end = store_prefix(key), store_key(key, last)
        cursor = self._txn.cursor(db=database)
        if not cursor.set_range(store_key(key, first)):
            return
        for at, data in cursor:
            if at > end or not at.startswith(own):
                return
            value = unpack_cell(at, data)
            yield Entry(*cell_address(at, data), value, *cell_times(data))

    @_reads
    def last(self, step: str, key: bytes, first: bytes, last: bytes) -> Entry | None:
        database = self._databases.get(step)
        if database is None:
            return None
        end, cursor = store_key(key, last), self._txn.cursor(db=database)
        found = cursor.set_range(end)
        if not (found and cursor.key() == end) and not (cursor.prev() if found else cursor.last()):
            return None
        at, data = cursor.item()
        value = unpack_cell(at, data)
        if at < store_key(key, first) or not at.startswith(store_prefix(key)):
            return None
        return Entry(*cell_address(at, data), value, *cell_times(data))

    def latest(self, step: str) -> int | None:
        return self._latest.get(step) if step in self.timed_steps else -MAX_TICKS

    @_iterates
    def due(
        self, step: str, until: int, *, wall: bool = False, after: int | None = None, exclude: Container[bytes] = ()
    ) -> Iterator[Entry]:
        index, cells = self._by_time.get((WALL if wall else DUE) + step), self._databases.get(step)
        if index is None:
            return
        cursor = self._txn.cursor(db=index)
        if not (cursor.first() if after is None else cursor.set_range(time_entry(after + 1, b""))):
            return
        get = self._txn.get
        for entry in cursor.iternext(keys=True, values=False):
            if len(entry) < 8:
                raise Damaged(f"an entry of {len(entry)} bytes in an index by time")
            time, at = split_time_entry(entry)
            if time > until:
                return
            if at in exclude:
                continue
            data = get(at, None, cells)
            found = None if data is None else Entry._make(read_cell(at, data))
            if found is None or found[4 if wall else 3] != time:
                raise Damaged(f"the index by time of {at[:80]!r}")
            yield found

    @_reads
    def all_due(
        self, step: str, until: int, *, exclude: Container[bytes] = ()
    ) -> tuple[list[bytes], list[bytes], list[bytes]]:
        keys: list[bytes] = []
        cells: list[bytes] = []
        values: list[bytes] = []
        index, database = self._by_time.get(DUE + step), self._databases.get(step)
        if index is None:
            return keys, cells, values
        get, head, bound = self._txn.get, CELL_HEAD.unpack_from, time_entry(until, b"")
        cell_times: dict[bytes, bytes] = {}  # a time as a value holds it → as the index does
        for entry in self._txn.cursor(db=index).iternext(keys=True, values=False):
            if entry[:8] > bound:
                break
            at = entry[8:]
            if at in exclude:
                continue
            data = get(at, None, database)
            if data is None:
                raise Damaged(f"the index by time of {at[:80]!r}")
            try:
                check, flags = head(data)
            except struct.error:
                raise Damaged(f"a value of {len(data)} bytes") from None
            if flags == HAS_DUE:  # `read_cell`, written out
                value = data[5:]
                if crc32(value, crc32(at, flags)) != check:
                    raise Damaged(f"checksum of {at[:80]!r}")
                key, _, cell = at.partition(_NUL)
                packed, value = value[:8], value[8:]
            else:
                key, cell, value, due, _ = read_cell(at, data)
                packed = b"" if due is None else pack_time(due)
            if packed and packed not in cell_times:
                cell_times[packed] = time_entry(unpack_time(packed)[0], b"")
            if entry[:8] != cell_times.get(packed):
                raise Damaged(f"the index by time of {at[:80]!r}")
            keys.append(key)
            cells.append(cell)
            values.append(value)
        return keys, cells, values

    def database_stats(self) -> list[dict[str, int]]:
        """Return LMDB's figures about each database of the store."""
        return [self._txn.stat(database) for database in (*self._databases.values(), *self._by_time.values())]

    @_reads
    def count(self, step: str) -> int:
        database = self._databases.get(step)
        return 0 if database is None else int(self._txn.stat(database)["entries"])


def _check_absent(cursor: Any, at: bytes) -> None:
    """Raise `Damaged` unless a key is really absent.

    After a flipped byte in a page a search may miss a key that is there. The neighbours of an absent key show that:
    they must be whole, and on either side of it.
    """
    found = cursor.set_range(at)
    if found:
        after, data = cursor.item()
        unpack_cell(_check_after(after, at), data)
    _check_before(cursor, at, cursor.prev() if found else cursor.last())


def _check_after(after: bytes, at: bytes) -> bytes:
    """Return the key at which a search for the absent key `at` has ended."""
    if after <= at:
        raise Damaged(f"order around {at[:80]!r}")
    return after


def _check_before(cursor: Any, at: bytes, found: bool) -> bytes:
    """Return the key before the absent key `at`, at which the cursor is, checked; b"" if it has `found` none."""
    if not found:
        return b""
    before: bytes
    before, data = cursor.item()
    if before >= at:
        raise Damaged(f"order around {at[:80]!r}")
    unpack_cell(before, data)
    return before
