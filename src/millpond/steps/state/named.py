"""The cells of a step's keys within one batch: read from the view, changed by rows, and found when they are due.

A cell is a named part of a key's state, such as `v:total`. It may have two times at which something happens to it: an
event time and a wall-clock time.
"""

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
from millpond.steps.failure import unreadable_state
from millpond.steps.state.single import ABSENT, DROPPED, Packed, is_absent, is_surely_encodable

CellTimes = tuple[int | None, int | None]
"""The event time and the wall-clock time at which something happens to a cell; None where nothing does."""

NEVER: CellTimes = (None, None)
TIMERS = (b"t:", b"c:")  # beginnings of cells that hold timers, not state
_READABLE = " !#$&'()+,/;=?@[]^`{|}~"  # what stays as it is in the name of a cell


class NamedCells:
    """The cells of all keys as the batch sees them: those of the view, with the batch's changes on top.

    Reads and writes are about the key that `select` chose. The writes of one row are pending until `commit_row`;
    `undo_row` discards them.
    """

    def __init__(self, step: str, view: View, codec: Codec) -> None:
        self._step, self._view, self._codec = step, view, codec
        self._held: dict[bytes, dict[bytes, Any]] = {}  # key → cell → value, of what was read or written
        self._times: dict[bytes, dict[bytes, CellTimes]] = {}  # of the cells that are held and have any
        self._changed: dict[bytes, set[bytes]] = {}
        self._pending: dict[bytes, Any] = {}
        self._pending_times: dict[bytes, CellTimes] = {}
        self._due: dict[tuple[bool, bytes], _DueCells] = {}  # by what was asked for
        self._unreadable: Incompatible | None = None
        self.has_times = False  # whether any cell that was read or written has a time
        self.key = b""

    def select(self, key: bytes) -> None:
        """Let all further reads and writes be about this key."""
        self.key = key

    # --- reading ---

    def read(self, cell: bytes) -> Any:
        """Return an immutable value, `Packed`, ABSENT or DROPPED."""
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
                    self.has_times = True
        return found

    def decode(self, found: Any) -> Any:
        """Return the value of what `read` returned, a new copy each time; ABSENT and DROPPED stay as they are."""
        try:
            return self._codec.decode(found.data) if found.__class__ is Packed else found
        except Unreadable as error:
            # The user's function may catch it: the batch must not count all the same.
            self._unreadable = unreadable_state(self._step, error, decode_key(self.key))
            raise self._unreadable from error

    def times(self, cell: bytes) -> CellTimes:
        """Return the event time and the wall-clock time at which something happens to a cell."""
        if cell not in self._pending:
            self.read(cell)
        return self.known_times(cell) or NEVER

    def known_times(self, cell: bytes) -> CellTimes | None:
        """Return the times of a cell that was read or written in this batch; None if it has none."""
        if cell in self._pending:
            return self._pending_times.get(cell)
        times = self._times.get(self.key)
        return None if times is None else times.get(cell)

    def scan(self, beginning: bytes = b"") -> dict[bytes, CellTimes]:
        """Return the key's cells that hold something and begin so, each with its times, in no order."""
        found = {e.cell: (e.due, e.wall) for e in self._view.entries(self._step, self.key, beginning)}
        times = self._times.get(self.key, {})
        for layer, known in ((self._held.get(self.key, {}), times), (self._pending, self._pending_times)):
            for cell, value in layer.items():
                if cell.startswith(beginning):
                    if is_absent(value):
                        found.pop(cell, None)
                    else:
                        found[cell] = known.get(cell, NEVER)
        return found

    # --- writing ---

    def write(self, cell: bytes, value: Any, due: int | None = None, wall: int | None = None) -> None:
        """Set a cell, and the times at which something happens to it. A value that is `Packed` is stored as it is."""
        is_ready = is_surely_encodable(value) or value.__class__ is Packed
        self._pending[cell] = value if is_ready else Packed(self._codec.encode(value))
        self._pending_times[cell] = (due, wall)
        if due is not None or wall is not None:
            self.has_times = True

    def set_times(self, cell: bytes, times: CellTimes) -> None:
        """Leave a cell's value as it is, and set its times."""
        self._pending[cell] = self.read(cell)
        self._pending_times[cell] = times
        self.has_times = True

    def drop(self, cell: bytes) -> None:
        """Delete a cell if there is one."""
        if not is_absent(self.read(cell)):
            self.drop_stored(cell)

    def drop_stored(self, cell: bytes) -> None:
        """Delete a cell that is known to be there, without reading it."""
        self._pending[cell], self._pending_times[cell] = DROPPED, NEVER

    def commit_row(self) -> None:
        """Let the writes of the row count."""
        if self._pending:
            self._held.setdefault(self.key, {}).update(self._pending)
            self._changed.setdefault(self.key, set()).update(self._pending)
            own = self._times.setdefault(self.key, {})
            for cell, times in self._pending_times.items():
                own[cell] = times
                for due in self._due.values():
                    due.add(times, self.key, cell)
            self._pending, self._pending_times = {}, {}

    def undo_row(self) -> None:
        """Discard the writes of the row, because it failed."""
        self._pending, self._pending_times = {}, {}

    # --- what is due ---

    def pop_due(self, until: int, *, wall: bool = False, beginning: bytes = b"") -> tuple[int, bytes, bytes] | None:
        """Return time, key and cell of the next cell that is due, in the order of time, and select its key.

        Only cells that begin with `beginning` count. The caller must commit another time for the cell, or drop it:
        else it is returned again.
        """
        found = self._due_cells(wall, beginning).next(until)
        if found is not None:
            self.select(found[1])
        return found

    def all_due(self, until: int, *, wall: bool = False, beginning: bytes = b"") -> list[tuple[int, bytes, bytes]]:
        """Return all that `pop_due` would return now, at once."""
        return self._due_cells(wall, beginning).all(until)

    def _due_cells(self, wall: bool, beginning: bytes) -> _DueCells:
        if (wall, beginning) not in self._due:
            due = self._due[wall, beginning] = _DueCells(self, wall, beginning)
            for key, cells in self._changed.items():
                for cell in cells:
                    due.add(self._times[key].get(cell, NEVER), key, cell)
        return self._due[wall, beginning]

    def changed_times(self, key: bytes, cell: bytes) -> CellTimes | None:
        """Return the times of a cell that this batch has changed; None if it has not."""
        if cell in self._changed.get(key, ()):
            return self._times[key].get(cell, NEVER)
        return None

    def stored_due(self, until: int, wall: bool) -> Iterator[Entry]:
        """Yield the cells of the view that are due."""
        return self._view.due(self._step, until, wall=wall)

    def changes(self) -> list[Change]:
        """Return what this batch has changed, sorted. Raises `Incompatible` if some state could not be read."""
        if self._unreadable is not None:
            raise self._unreadable
        encode, held = self._codec.encode, self._held
        return [
            Change(
                key,
                cell,
                None if is_absent(value := held[key][cell]) else _as_bytes(value, encode),
                *self._times[key].get(cell, NEVER),
            )
            for key, cells in sorted(self._changed.items())
            for cell in sorted(cells)
        ]


class _DueCells:
    """The cells that are due by one of the two clocks: those of the view, and those that this batch has changed."""

    def __init__(self, cells: NamedCells, wall: bool, beginning: bytes) -> None:
        self._cells, self._wall, self._beginning = cells, wall, beginning
        self._own: list[tuple[int, bytes, bytes]] = []  # a heap; an entry whose cell has changed since is passed over
        self._stored: Iterator[tuple[int, bytes, bytes]] | None = None
        self._next: tuple[int, bytes, bytes] | None = None
        self._until = 0

    def add(self, times: CellTimes, key: bytes, cell: bytes) -> None:
        time = times[self._wall]
        if time is not None and cell.startswith(self._beginning):
            heapq.heappush(self._own, (time, key, cell))

    def all(self, until: int) -> list[tuple[int, bytes, bytes]]:
        own = {found for found in self._own if found[0] <= until and not self._is_stale(*found)}
        old = [found for found in self._read(until) if self._cells.changed_times(*found[1:]) is None]
        return sorted([*own, *old])

    def _read(self, until: int) -> Iterator[tuple[int, bytes, bytes]]:
        for entry in self._cells.stored_due(until, self._wall):
            time = entry.wall if self._wall else entry.due
            assert time is not None
            if entry.cell.startswith(self._beginning):
                yield time, entry.key, entry.cell

    def next(self, until: int) -> tuple[int, bytes, bytes] | None:
        if self._stored is None or until > self._until:
            self._stored, self._until, self._next = self._read(until), until, None
        while self._own and self._is_stale(*self._own[0]):
            heapq.heappop(self._own)
        while self._next is None or self._cells.changed_times(*self._next[1:]) is not None:
            self._next = next(self._stored, None)
            if self._next is None:
                break
        ready = [found for found in (self._next, self._own[0] if self._own else None) if found is not None]
        first = min(ready, default=None)
        return None if first is None or first[0] > until else first

    def _is_stale(self, time: int, key: bytes, cell: bytes) -> bool:
        times = self._cells.changed_times(key, cell)
        return times is None or times[self._wall] != time


def _as_bytes(value: Any, encode: Any) -> bytes:
    data: bytes = value.data if value.__class__ is Packed else encode(value)
    return data


@lru_cache(4096)
def cell_for(kind: str, name: str) -> bytes:
    """Return the cell for a name: its kind and the name, readable, without a colon of its own."""
    return f"{kind}:{quote(name, safe=_READABLE)}".encode()


def cell_name(cell: bytes) -> str:
    """Return the name that a cell is for."""
    return unquote(cell.decode().split(":")[1])


def is_state(cell: bytes) -> bool:
    """Return whether a cell holds state, not a timer, a TTL or a version."""
    return not cell.startswith((*TIMERS, b"x:", b"~"))
