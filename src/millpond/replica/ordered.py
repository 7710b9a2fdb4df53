"""State in any store that keeps bytes in order: the half that reads, a `View`, and the half that plans what to write.

A store that is an ordered map from bytes to bytes, as RocksDB is, needs no more than an `OrderedReader` and a way to
write many pairs at once. Places are made of a number for each database (the cells of a step, or an index of those that
have a time), and of the key that `cell_format` gives a cell. Values have the checksums of `cell_format`.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Protocol

import msgspec
import pyarrow as pa

from millpond.log.segment import Change, SingleCellChanges, read_changes
from millpond.replica.cell_format import (
    KEY_ROOM,
    Damaged,
    cell_times,
    pack_cell,
    pack_short_cells,
    read_cell,
    single_store_keys,
    split_time_entry,
    store_beginning,
    store_key,
    store_prefix,
    time_entry,
    unpack_cell,
)
from millpond.replica.store import RecordChanges, StepChangeRows
from millpond.replica.view import Entry, View
from millpond.timing import MAX_TICKS

CELLS, DUE, WALL = "step:", "due:", "wall:"  # how the names of databases begin; the step's follows
META = b"\x00\x00position"
_NO_TIMES = (None, None)


class OrderedReader(Protocol):
    """One version of an ordered map from bytes to bytes. Errors of the disk and of its format are `Damaged`.

    >>> import millpond as mp
    >>> def show(reader: mp.lowlevel.OrderedReader) -> None:
    ...     print(reader.get_many([b"a", b"b"]), list(reader.scan(b"a", b"b")), reader.last(b"a", b"b"))
    """

    def get_many(self, places: Sequence[bytes]) -> Sequence[bytes | None]:
        """Return the values at some places, None for each that is not there."""
        ...

    def scan(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return the places from `first`, included, to `end`, excluded, with their values, in order of their bytes."""
        ...

    def last(self, first: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """Return the last pair of such a range, or None if it is empty."""
        ...


class StoreMeta(msgspec.Struct):
    """The metadata of a store, which is written together with the data.

    A store that is loaded in several pieces is `partial` until the last one is there, and is not read before.
    """

    position: int = -1
    record: str = ""  # the checksum of the record at that position
    databases: list[str] = msgspec.field(default_factory=list)  # the number of each is its place in the list
    latest: dict[str, int] = msgspec.field(default_factory=dict)  # step → no event time in its cells is later
    partial: bool = False

    def pack(self) -> bytes:
        """Return the bytes at `META`."""
        return pack_cell(META, b"", b"", msgspec.json.encode(self))


def unpack_meta(data: bytes | None) -> StoreMeta:
    """Return the metadata in the bytes at `META`; that of an empty store if there are none."""
    if data is None:
        return StoreMeta()
    try:
        meta = msgspec.json.decode(unpack_cell(META, data), type=StoreMeta)
    except msgspec.DecodeError as error:
        raise Damaged(f"metadata: {error}") from error
    if meta.partial:
        raise Damaged("the process that loaded the store was ended before it was done")
    return meta


def prefix_of(number: int) -> bytes:
    """Return the beginning of all places of a database."""
    return (number + 1).to_bytes(2, "big")


class OrderedView:
    """A `View` of one version of an ordered store."""

    def __init__(self, reader: OrderedReader) -> None:
        meta = unpack_meta(reader.get_many([META])[0])
        self._reader, self._latest = reader, meta.latest
        self.position, self.record = meta.position, meta.record
        numbers = {name: prefix_of(number) for number, name in enumerate(meta.databases)}
        self._cells = {name.removeprefix(CELLS): at for name, at in numbers.items() if name.startswith(CELLS)}
        self._by_time = {name: at for name, at in numbers.items() if not name.startswith(CELLS)}
        self.timed_steps = {name.removeprefix(DUE) for name in self._by_time if name.startswith(DUE)}

    def get(self, step: str, key: bytes, cell: bytes = b"") -> bytes | None:
        return self._values(step, [store_key(key, cell)])[0]

    def get_many(self, step: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._values(step, single_store_keys(keys))

    def get_cells(self, step: str, keys: Sequence[bytes], cells: Sequence[bytes]) -> list[bytes | None]:
        return self._values(step, list(map(store_key, keys, cells)))

    def _values(self, step: str, ats: list[bytes]) -> list[bytes | None]:
        prefix = self._cells.get(step)
        if prefix is None or not ats:
            return [None] * len(ats)
        found = self._reader.get_many([prefix + at for at in ats])
        return [None if data is None else unpack_cell(at, data) for at, data in zip(ats, found, strict=True)]

    def entry(self, step: str, key: bytes, cell: bytes = b"") -> Entry | None:
        prefix, at = self._cells.get(step), store_key(key, cell)
        data = None if prefix is None else self._reader.get_many([prefix + at])[0]
        return None if data is None else Entry(key, cell, unpack_cell(at, data), *cell_times(data))

    def _scan(self, prefix: bytes, first: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        after = end_of(prefix) if end is None else prefix + end
        for place, data in self._reader.scan(prefix + first, after):
            yield place[2:], data

    def entries(self, step: str, key: bytes | None = None, cell: bytes = b"") -> Iterator[Entry]:
        prefix = self._cells.get(step)
        if prefix is None:
            return
        start = b"" if key is None else store_prefix(key, cell)
        for at, data in self._scan(prefix, start, end_of(start) if start else None):
            found = Entry._make(read_cell(at, data))
            if found.cell.startswith(cell) and (key is None or found.key == key):
                yield found

    def scan(self, step: str, key: bytes | None = None, cell: bytes = b"") -> Iterator[tuple[bytes, bytes, bytes]]:
        return ((entry.key, entry.cell, entry.value) for entry in self.entries(step, key, cell))

    def scan_keys(self, step: str, beginning: bytes) -> Iterator[tuple[bytes, bytes]]:
        prefix, start = self._cells.get(step), store_beginning(beginning)
        if prefix is None:
            return
        for at, data in self._scan(prefix, start, end_of(start) if start else None):
            found = Entry._make(read_cell(at, data))
            if not found.cell and found.key.startswith(beginning):
                yield found.key, found.value

    def range(self, step: str, key: bytes, first: bytes, last: bytes) -> Iterator[Entry]:
        prefix, own = self._cells.get(step), store_prefix(key)
        if prefix is None:
            return
        for at, data in self._scan(prefix, store_key(key, first), store_key(key, last) + b"\x00"):
            if not at.startswith(own):
                return
            yield Entry._make(read_cell(at, data))

    def last(self, step: str, key: bytes, first: bytes, last: bytes) -> Entry | None:
        prefix = self._cells.get(step)
        if prefix is None:
            return None
        found = self._reader.last(prefix + store_key(key, first), prefix + store_key(key, last) + b"\x00")
        if found is None or not found[0].startswith(prefix + store_prefix(key)):
            return None
        return Entry._make(read_cell(found[0][2:], found[1]))

    def latest(self, step: str) -> int | None:
        return self._latest.get(step) if step in self.timed_steps else -MAX_TICKS

    def due(
        self, step: str, until: int, *, wall: bool = False, after: int | None = None, exclude: Container[bytes] = ()
    ) -> Iterator[Entry]:
        index, cells = self._by_time.get((WALL if wall else DUE) + step), self._cells.get(step)
        if index is None or cells is None:
            return
        start = b"" if after is None else time_entry(after + 1, b"")
        entries: list[tuple[int, bytes]] = []
        for entry, _ in self._scan(index, start, None):
            if len(entry) < 8:
                raise Damaged(f"an entry of {len(entry)} bytes in an index by time")
            time, at = split_time_entry(entry)
            if time > until:
                break
            if at not in exclude:
                entries.append((time, at))
            if len(entries) == _FETCHED:
                yield from self._fetch(cells, entries, wall)
                entries = []
        yield from self._fetch(cells, entries, wall)

    def _fetch(self, cells: bytes, entries: list[tuple[int, bytes]], wall: bool) -> Iterator[Entry]:
        """Return the cells of some entries of an index."""
        found = self._reader.get_many([cells + at for _, at in entries]) if entries else []
        for (time, at), data in zip(entries, found, strict=True):
            entry = None if data is None else Entry._make(read_cell(at, data))
            if entry is None or (entry.wall if wall else entry.due) != time:
                raise Damaged(f"the index by time of {at[:80]!r}")
            yield entry

    def all_due(
        self, step: str, until: int, *, exclude: Container[bytes] = ()
    ) -> tuple[list[bytes], list[bytes], list[bytes]]:
        found = list(self.due(step, until, exclude=exclude))
        return [entry.key for entry in found], [entry.cell for entry in found], [entry.value for entry in found]

    def count(self, step: str) -> int:
        prefix = self._cells.get(step)
        return 0 if prefix is None else sum(1 for _ in self._scan(prefix, b"", None))


def ordered_view(reader: OrderedReader) -> View:
    """Return a view of one version of an ordered store; `Damaged` if its metadata are.

    >>> import millpond as mp
    >>> def view_of(reader: mp.lowlevel.OrderedReader) -> mp.lowlevel.View:
    ...     return mp.lowlevel.ordered_view(reader)
    """
    return OrderedView(reader)


_FETCHED = 200  # cells of an index by time that are read together


def end_of(prefix: bytes) -> bytes:
    """Return the first bytes after all that begin with a prefix, which is not all of 255s.

    >>> end_of(b"ab")
    b'ac'
    """
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1])


class WritePlan:
    """Plans what a record writes to an ordered store: `add` the changes of each step, `finish`, then write `pending`.

    `pending` maps places to their new bytes, None for those that are deleted. `reader` reads the version before. An
    empty store may be loaded in pieces: `finish` with `is_partial`, write `pending` and clear it, and go on adding. A
    store whose last piece was not written is `Damaged`.

    >>> import millpond as mp
    >>> def plan_of(reader: mp.lowlevel.OrderedReader) -> mp.lowlevel.WritePlan:
    ...     return mp.lowlevel.WritePlan(reader)
    """

    def __init__(self, reader: OrderedReader) -> None:
        meta = unpack_meta(reader.get_many([META])[0])
        self._reader, self.pending = reader, dict[bytes, bytes | None]()
        self.position, self._record = meta.position, meta.record
        self._databases, self._latest = list(meta.databases), dict(meta.latest)
        self.is_empty = not meta.databases

    def takes(self, record: RecordChanges) -> bool:
        """Return whether a record is to be applied: False if that was done. `Damaged` if it is not the next one.

        >>> import millpond as mp
        >>> def is_new(plan: mp.lowlevel.WritePlan, record: mp.lowlevel.RecordChanges) -> bool:
        ...     return plan.takes(record)
        """
        if record.number <= self.position:
            return False
        if self.position >= 0 and (record.number, record.previous) != (self.position + 1, self._record):
            raise Damaged(f"record {record.number} does not follow what is there, which is at record {self.position}")
        return True

    def _prefix(self, name: str) -> bytes:
        if name not in self._databases:
            self._databases.append(name)
        return prefix_of(self._databases.index(name))

    def add(self, step: str, changes: StepChangeRows) -> None:
        """Plan the changes of a step, after those that were added before.

        >>> import millpond as mp
        >>> def delete(plan: mp.lowlevel.WritePlan, key: bytes) -> None:
        ...     plan.add("total", [mp.lowlevel.Change(key, b"", None)])
        """
        found = read_changes(changes) if isinstance(changes, pa.Table) else changes
        cells, is_timed = self._prefix(CELLS + step), DUE + step in self._databases
        if isinstance(found, SingleCellChanges) and not is_timed:
            self._add_single(cells, found)
        elif is_timed or any(change.due is not None or change.wall is not None for change in found):
            dues = [change.due for change in found if change.due is not None]
            if not is_timed:
                self._latest[step] = max(dues, default=-MAX_TICKS)
            elif step in self._latest and dues:
                self._latest[step] = max(self._latest[step], *dues)
            self._add_timed(cells, (self._prefix(DUE + step), self._prefix(WALL + step)), found)
        else:
            for key, cell, value, _, _ in found:
                at = store_key(key, cell)
                self.pending[cells + at] = None if value is None else pack_cell(at, key, cell, value)

    def _add_single(self, cells: bytes, changes: SingleCellChanges) -> None:
        if max(map(len, changes.keys), default=0) < KEY_ROOM and None not in changes.values:
            ats = [key + b"\x00" for key in changes.keys]
            self.pending.update((cells + at, data) for at, data in pack_short_cells(ats, changes.values))  # type: ignore[arg-type]
            return
        for key, value in zip(changes.keys, changes.values, strict=True):
            at = store_key(key)
            self.pending[cells + at] = None if value is None else pack_cell(at, key, b"", value)

    def _add_timed(self, cells: bytes, indexes: tuple[bytes, bytes], changes: Sequence[Change]) -> None:
        """Plan changes of a step whose cells have times, and of their entries in the indexes."""
        pending = self.pending
        ats = [store_key(change.key, change.cell) for change in changes]
        unknown = [at for at in ats if cells + at not in pending]
        held = dict(zip(unknown, self._reader.get_many([cells + at for at in unknown]), strict=True)) if unknown else {}
        for at, (key, cell, value, due, wall) in zip(ats, changes, strict=True):
            place = cells + at
            old = pending[place] if place in pending else held[at]
            before = _NO_TIMES if old is None else cell_times(old)
            after = _NO_TIMES if value is None else (due, wall)
            for index, was, will in zip(indexes, before, after, strict=True):
                if was != will:
                    if was is not None:
                        pending[index + time_entry(was, at)] = None
                    if will is not None:
                        pending[index + time_entry(will, at)] = b""
            pending[place] = None if value is None else pack_cell(at, key, cell, value, due, wall)

    def finish(self, record: RecordChanges, *, is_partial: bool = False) -> None:
        """Plan the metadata: that of the record, or of a store that is not complete yet.

        >>> import millpond as mp
        >>> def end(plan: mp.lowlevel.WritePlan, record: mp.lowlevel.RecordChanges) -> dict[bytes, bytes | None]:
        ...     plan.finish(record)
        ...     return plan.pending
        """
        number = -1 if is_partial else record.number
        meta = StoreMeta(number, record.record, self._databases, self._latest, is_partial)
        self.pending[META] = meta.pack()
