"""Named parts of state per key within one batch: what was read, what the batch has changed, and what is due."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

from millpond.codec import Codec, Unreadable, decode_key
from millpond.errors import Incompatible
from millpond.log.segment import Change
from millpond.replica import Entry, View
from millpond.steps.failure import unreadable
from millpond.steps.state.single import ABSENT, DROPPED, Packed, is_absent, is_surely_encodable

Times = tuple[int | None, int | None]  # an event time and a time of the clock, where a cell has them

_NEVER: Times = (None, None)
_READABLE = " !#$&'()+,/;=?@[]^`{|}~"  # what stays as it is in the name of a cell


class NamedCells:
    """What the `State` handle reads and writes.

    Writes of one row are pending until `keep`; `undo` forgets them.
    """

    def __init__(self, step: str, view: View, codec: Codec) -> None:
        self._step, self._view, self.codec = step, view, codec
        self._held: dict[bytes, dict[bytes, Any]] = {}
        self._times: dict[bytes, dict[bytes, Times]] = {}  # of the cells that are held and have any
        self._changed: dict[bytes, set[bytes]] = {}
        self._pending: dict[bytes, Any] = {}
        self._pending_times: dict[bytes, Times] = {}
        self._due: dict[tuple[bool, bytes], _Due] = {}  # of those that were asked for
        self._is_timed = False  # whether any cell that was met has a time
        self._unreadable: Incompatible | None = None
        self.key = b""

    def turn_to(self, key: bytes) -> None:
        """Reads and writes are about this key from now on."""
        self.key = key

    def read(self, cell: bytes) -> Any:
        """An immutable value, `Packed`, ABSENT or DROPPED."""
        if cell in self._pending:
            return self._pending[cell]
        held = self._held.setdefault(self.key, {})
        found = held.get(cell)
        if found is None:
            entry = self._view.entry(self._step, self.key, cell)
            if entry is None:
                found = held[cell] = ABSENT
            else:
                found = held[cell] = Packed(entry.value)
                if entry.due is not None or entry.wall is not None:
                    self._times.setdefault(self.key, {})[cell] = (entry.due, entry.wall)
                    self._is_timed = True
        return found

    def value(self, cell: bytes) -> Any:
        """The value of a cell, the caller's own; ABSENT or DROPPED where there is none."""
        found = self.read(cell)
        try:
            return self.codec.decode(found.data) if found.__class__ is Packed else found
        except Unreadable as error:
            # The user's function may catch it: the batch must not count all the same.
            self._unreadable = unreadable(self._step, error, decode_key(self.key))
            raise self._unreadable from error

    def times(self, cell: bytes) -> Times:
        """The event time and the time of the clock at which something is to happen to a cell."""
        if cell in self._pending:
            return self._pending_times.get(cell, _NEVER)
        self.read(cell)
        return self._times.get(self.key, {}).get(cell, _NEVER)

    def write(self, cell: bytes, value: Any, due: int | None = None, wall: int | None = None) -> None:
        """Set a cell, and when something is to happen to it."""
        self._pending[cell] = value if is_surely_encodable(value) else Packed(self.codec.encode(value))
        self._pending_times[cell] = (due, wall)
        if due is not None or wall is not None:
            self._is_timed = True

    def retime(self, cell: bytes, due: int | None = None, wall: int | None = None) -> None:
        """Leave a cell as it is, and set when something is to happen to it."""
        self._pending[cell] = self.read(cell)
        self._pending_times[cell] = (due, wall)
        self._is_timed = True

    def drop(self, cell: bytes) -> None:
        if not is_absent(self.read(cell)):
            self._pending[cell] = DROPPED
            self._pending_times[cell] = _NEVER

    def scan(self, beginning: bytes = b"") -> Iterator[bytes]:
        """The cells of the key that hold something and begin so, in order."""
        live = {cell for _, cell, _ in self._view.scan(self._step, self.key, beginning)}
        for layer in (self._held.get(self.key, {}), self._pending):
            for cell, value in layer.items():
                if cell.startswith(beginning):
                    (live.discard if is_absent(value) else live.add)(cell)
        return iter(sorted(live))

    def keep(self) -> None:
        """The row went well: its writes count."""
        if self._pending:
            self._held.setdefault(self.key, {}).update(self._pending)
            self._changed.setdefault(self.key, set()).update(self._pending)
            own = self._times.setdefault(self.key, {})
            for cell, times in self._pending_times.items():
                own[cell] = times
                for due in self._due.values():
                    due.add(times, self.key, cell)
            self._pending, self._pending_times = {}, {}

    def undo(self) -> None:
        """The row failed: it has written nothing."""
        self._pending, self._pending_times = {}, {}

    def pop_due(self, upto: int, *, wall: bool = False, beginning: bytes = b"") -> tuple[int, bytes, bytes] | None:
        """The time, key and cell of the next cell whose time has come, in the order of these times.

        Of the cells that begin so, if that is said. Turns to its key. Whoever asks must `keep` another time for
        the cell, or drop it: else it comes again.
        """
        found = self._queue(wall, beginning).next(upto)
        if found is not None:
            self.turn_to(found[1])
        return found

    def all_due(self, upto: int, *, wall: bool = False, beginning: bytes = b"") -> list[tuple[int, bytes, bytes]]:
        """All that `pop_due` would give now, at once."""
        return self._queue(wall, beginning).all(upto)

    def _queue(self, wall: bool, beginning: bytes) -> _Due:
        if (wall, beginning) not in self._due:
            due = self._due[wall, beginning] = _Due(self, wall, beginning)
            for key, cells in self._changed.items():
                for cell in cells:
                    due.add(self._times[key].get(cell, _NEVER), key, cell)
        return self._due[wall, beginning]

    def current(self, key: bytes, cell: bytes) -> Times | None:
        """What this batch knows of a cell's times; nothing if it has not changed the cell."""
        if cell in self._changed.get(key, ()):
            return self._times[key].get(cell, _NEVER)
        return None

    def committed_due(self, upto: int, wall: bool) -> Iterator[Entry]:
        return self._view.due(self._step, upto, wall=wall)

    def changes(self) -> list[Change]:
        """What this batch has changed, sorted. Raises `Incompatible` if some of the state could not be read."""
        if self._unreadable is not None:
            raise self._unreadable
        encode, held = self.codec.encode, self._held
        return [
            Change(
                key,
                cell,
                None if is_absent(value := held[key][cell]) else _encoded(value, encode),
                *self._times[key].get(cell, _NEVER),
            )
            for key, cells in sorted(self._changed.items())
            for cell in sorted(cells)
        ]


class _Due:
    """What is due by one of the two clocks: what was committed, with what this batch has changed laid over it."""

    def __init__(self, cells: NamedCells, wall: bool, beginning: bytes) -> None:
        self._cells, self._wall, self._beginning = cells, wall, beginning
        self._own: list[tuple[int, bytes, bytes]] = []  # a heap; an entry whose cell has changed since is passed over
        self._committed: Iterator[tuple[int, bytes, bytes]] | None = None
        self._ahead: tuple[int, bytes, bytes] | None = None
        self._upto = 0

    def add(self, times: Times, key: bytes, cell: bytes) -> None:
        time = times[self._wall]
        if time is not None and cell.startswith(self._beginning):
            heapq.heappush(self._own, (time, key, cell))

    def all(self, upto: int) -> list[tuple[int, bytes, bytes]]:
        own = {found for found in self._own if found[0] <= upto and not self._stale(*found)}
        old = [found for found in self._read(upto) if self._cells.current(*found[1:]) is None]
        return sorted([*own, *old])

    def _read(self, upto: int) -> Iterator[tuple[int, bytes, bytes]]:
        for entry in self._cells.committed_due(upto, self._wall):
            time = entry.wall if self._wall else entry.due
            assert time is not None
            if entry.cell.startswith(self._beginning):
                yield time, entry.key, entry.cell

    def next(self, upto: int) -> tuple[int, bytes, bytes] | None:
        if self._committed is None or upto > self._upto:
            self._committed, self._upto, self._ahead = self._read(upto), upto, None
        while self._own and self._stale(*self._own[0]):
            heapq.heappop(self._own)
        while self._ahead is None or self._cells.current(*self._ahead[1:]) is not None:
            self._ahead = next(self._committed, None)
            if self._ahead is None:
                break
        ready = [found for found in (self._ahead, self._own[0] if self._own else None) if found is not None]
        first = min(ready, default=None)
        return None if first is None or first[0] > upto else first

    def _stale(self, time: int, key: bytes, cell: bytes) -> bool:
        times = self._cells.current(key, cell)
        return times is None or times[self._wall] != time


def _encoded(value: Any, encode: Any) -> bytes:
    data: bytes = value.data if value.__class__ is Packed else encode(value)
    return data


@lru_cache(4096)
def cell_of(kind: str, name: str) -> bytes:
    """The cell that holds a name: its kind and the name, readable, without a colon of its own."""
    return f"{kind}:{quote(name, safe=_READABLE)}".encode()


def name_of(cell: bytes) -> str:
    """The name that a cell holds."""
    return unquote(cell.decode().split(":")[1])
