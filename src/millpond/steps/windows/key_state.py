"""What a window step keeps of a key as a whole, beside its windows.

k    the newest time of the key's rows, where windows go by the key's own clock
n    how many rows have come, where windows go by rows; a pair where no window of an earlier row is opened any more:
     that count, and the first row whose windows are
f    the one trigger of the key, where it fires all of its windows: its state, and whether anything is new
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from millpond.codec import Codec
from millpond.log.segment import Change
from millpond.replica import View

NEWEST, COUNT, TRIGGER = b"k", b"n", b"f"
Place = tuple[bytes, bytes]


class Marks:
    """The marks of the keys that a batch has met."""

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

    def _set(self, key: bytes, cell: bytes, value: Any, saved: list[Any]) -> None:
        old = self._get(key, cell)
        if old != value:
            saved.append(lambda: self._held.__setitem__((key, cell), old))
            self._held[key, cell] = value

    def newest(self, key: bytes) -> int | None:
        """The newest time of a key so far."""
        found: int | None = self._get(key, NEWEST)
        return found

    def began(self, key: bytes) -> int | None:
        """The newest time of a key as the batch began."""
        self._get(key, NEWEST)
        found: int | None = self._was[key, NEWEST]
        return found

    def advance(self, key: bytes, at: int, saved: list[Any]) -> None:
        """A row of this time has come."""
        newest = self._get(key, NEWEST)
        if newest is None or at > newest:
            self._set(key, NEWEST, at, saved)

    def moved(self) -> Iterator[tuple[bytes, int]]:
        """The keys whose newest time is another than the batch began with."""
        for (key, cell), value in sorted(self._held.items(), key=lambda item: item[0]):
            if cell == NEWEST and value is not None and value != self._was[key, cell]:
                yield key, value

    def count(self, key: bytes) -> int:
        """How many rows of a key have come."""
        return self._counts(key)[0]

    def first_start(self, key: bytes) -> int:
        """The first row at which a window of a key may start: those before have been closed by an end of the input."""
        return self._counts(key)[1]

    def _counts(self, key: bytes) -> tuple[int, int]:
        held = self._get(key, COUNT) or 0
        return (held, 0) if isinstance(held, int) else (held[0], held[1])

    def counted(self, key: bytes, count: int, saved: list[Any]) -> None:
        first = self.first_start(key)
        self._set(key, COUNT, [count, first] if first else count, saved)

    def count_from(self, key: bytes, first: int) -> None:
        """Let the next row be this one, and no window start before it."""
        self._set(key, COUNT, [first, first], [])

    def trigger(self, key: bytes) -> tuple[Any, bool]:
        """What is kept of a key's trigger, and whether anything is new since it fired."""
        found = self._get(key, TRIGGER)
        return (None, False) if found is None else (found[0], found[1])

    def set_trigger(self, key: bytes, kept: Any, news: bool, saved: list[Any]) -> None:
        self._set(key, TRIGGER, None if kept is None and not news else [kept, news], saved)

    def ticking(self, wall: int, wall_of: Callable[[Any], int | None]) -> list[bytes]:
        """The keys whose trigger waits for a time of the clock that has come."""
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
        """What this batch has changed; `wall_of` tells when a trigger waits for the clock."""
        for (key, cell), value in self._held.items():
            if value != self._was[key, cell]:
                wall = wall_of(value[0]) if cell == TRIGGER and value is not None and value[1] else None
                yield Change(key, cell, None if value is None else self._codec.encode(value), None, wall)
