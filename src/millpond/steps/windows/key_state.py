"""What a window step stores for a key as a whole, beside its windows. One cell for each of:

k    the newest time of the key's rows, with `clock="key"`
n    how many rows have come, with count windows; a pair if windows may start only from a certain row on: the count, and
     that row
f    the one trigger of the key, with `fires="all"`: its state, and whether anything is new since it fired
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from millpond.codec import Codec
from millpond.log.segment import Change
from millpond.replica import View
from millpond.steps.windows.row_windows import Undo

NEWEST, COUNT, TRIGGER = b"k", b"n", b"f"
Place = tuple[bytes, bytes]  # a key and a cell


class KeyState:
    """The state of the keys that a batch has read, and what the batch changes of it."""

    def __init__(self, step: str, view: View, codec: Codec) -> None:
        self._step, self._view, self._codec = step, view, codec
        self._held: dict[Place, Any] = {}
        self._was: dict[Place, Any] = {}  # as the batch began

    def _get(self, key: bytes, cell: bytes) -> Any:
        place = (key, cell)
        if place not in self._held:
            data = self._view.get(self._step, key, cell)
            self._held[place] = self._was[place] = None if data is None else self._codec.decode(data)
        return self._held[place]

    def _set(self, key: bytes, cell: bytes, value: Any, undo: Undo) -> None:
        old = self._get(key, cell)
        if old != value:
            undo.append(lambda: self._held.__setitem__((key, cell), old))
            self._held[key, cell] = value

    def newest(self, key: bytes) -> int | None:
        """Return the newest time of a key so far."""
        found: int | None = self._get(key, NEWEST)
        return found

    def began(self, key: bytes) -> int | None:
        """Return the newest time of a key as the batch began."""
        self._get(key, NEWEST)
        found: int | None = self._was[key, NEWEST]
        return found

    def advance(self, key: bytes, at: int, undo: Undo) -> None:
        """Take note of a row of this time."""
        newest = self._get(key, NEWEST)
        if newest is None or at > newest:
            self._set(key, NEWEST, at, undo)

    def moved_keys(self) -> Iterator[tuple[bytes, int]]:
        """Yield the keys whose newest time has changed in this batch, with that time, in order."""
        for (key, cell), value in sorted(self._held.items(), key=lambda item: item[0]):
            if cell == NEWEST and value is not None and value != self._was[key, cell]:
                yield key, value

    def count(self, key: bytes) -> int:
        """Return how many rows of a key have come."""
        return self._count_and_start(key)[0]

    def first_start(self, key: bytes) -> int:
        """Return the first row at which a window of a key may start: an end of the input has closed earlier ones."""
        return self._count_and_start(key)[1]

    def _count_and_start(self, key: bytes) -> tuple[int, int]:
        held = self._get(key, COUNT) or 0
        return (held, 0) if isinstance(held, int) else (held[0], held[1])

    def set_count(self, key: bytes, count: int, undo: Undo) -> None:
        first = self.first_start(key)
        self._set(key, COUNT, [count, first] if first else count, undo)

    def restart_count(self, key: bytes, first: int) -> None:
        """Give the next row this number, and let no window start before it."""
        self._set(key, COUNT, [first, first], [])

    def trigger(self, key: bytes) -> tuple[Any, bool]:
        """Return the stored state of a key's trigger, and whether anything is new since it fired."""
        found = self._get(key, TRIGGER)
        return (None, False) if found is None else (found[0], found[1])

    def set_trigger(self, key: bytes, state: Any, has_news: bool, undo: Undo) -> None:
        self._set(key, TRIGGER, None if state is None and not has_news else [state, has_news], undo)

    def keys_due(self, wall: int, wall_of: Callable[[Any], int | None]) -> list[bytes]:
        """Return the keys whose trigger waits for a time of the clock that has come, in order."""
        found = []
        for (key, cell), value in self._held.items():
            if cell == TRIGGER and value is not None and value[1]:
                at = wall_of(value[0])
                if at is not None and at <= wall:
                    found.append(key)
        for entry in self._view.due(self._step, wall, wall=True):
            if entry.cell == TRIGGER and (entry.key, TRIGGER) not in self._held:
                found.append(entry.key)
        return sorted(found)

    def changes(self, wall_of: Callable[[Any], int | None]) -> Iterator[Change]:
        """Yield what this batch has changed; `wall_of` returns the time of the clock that a trigger state waits for."""
        for (key, cell), value in self._held.items():
            if value != self._was[key, cell]:
                wall = wall_of(value[0]) if cell == TRIGGER and value is not None and value[1] else None
                yield Change(key, cell, None if value is None else self._codec.encode(value), None, wall)
