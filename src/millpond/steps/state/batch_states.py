"""The states of many keys within one batch, each a dict of the state's columns, loaded and saved together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from millpond.codec import Unreadable
from millpond.errors import short_repr
from millpond.log.segment import Change, SingleCellChanges
from millpond.rows.rows import Keys, Rows
from millpond.steps.base import StepContext
from millpond.steps.failure import unreadable_state
from millpond.steps.kind import Step
from millpond.steps.state.expiring import ExpiringCells
from millpond.steps.state.single import ONLY_CELL, Packed, is_absent
from millpond.timing import Unit


class BatchStates(Protocol):
    """The states of a partition within one batch. They are loaded once, and saved at most once."""

    def load(self, parts: Sequence[Rows], keys: Keys) -> list[dict[str, Any] | None]:
        """Return the state of each key that occurs in some rows; None where there is none."""
        ...

    def save(self, places: Sequence[int], states: Sequence[dict[str, Any] | None]) -> None:
        """Set the states of the keys at these places among those that were loaded; None drops one.

        It changes nothing if it raises.
        """
        ...

    def expire(self) -> None:
        """Remove what has expired by the end of the batch."""
        ...

    def changes(self) -> Sequence[Change]:
        """Return what has changed, sorted by key."""
        ...


class PlainStates:
    """States without a TTL, which are decoded and encoded all at once."""

    def __init__(self, step: Step, context: StepContext) -> None:
        self._step, self._view, self._codec = step.name, context.view, context.codec
        self._keys: list[bytes] = []
        self._before: list[bytes | None] = []
        self._changed: dict[bytes, bytes | None] = {}

    def load(self, parts: Sequence[Rows], keys: Keys) -> list[dict[str, Any] | None]:
        self._keys, self._before = keys.encoded, self._view.get_many(self._step, keys.encoded)
        there = [data for data in self._before if data is not None]
        values = self._codec.decode_lines(b"\n".join(there)) if there else []
        if not {dict}.issuperset(map(type, values)):
            wrong = next(value for value in values if type(value) is not dict)
            raise unreadable_state(self._step, Unreadable(_no_dict(wrong)))
        if len(there) == len(self._before):
            return values
        left = iter(values)
        return [None if data is None else next(left) for data in self._before]

    def save(self, places: Sequence[int], states: Sequence[dict[str, Any] | None]) -> None:
        texts = iter(self._codec.encode_many([state for state in states if state is not None]))
        keys, before = self._keys, self._before
        for place, state in zip(places, states, strict=True):
            text = None if state is None else next(texts)
            if text != before[place]:
                self._changed[keys[place]] = text

    def expire(self) -> None:
        pass

    def changes(self) -> Sequence[Change]:
        keys = sorted(self._changed)
        return SingleCellChanges(keys, list(map(self._changed.__getitem__, keys)))


class ExpiringStates:
    """States with a TTL. A key is read at the time of its first row in the batch, and written at its latest time.

    A state that the function returns is written, changed or not.
    """

    def __init__(self, step: Step, context: StepContext) -> None:
        self._step, self._codec, self._ttl = step.name, context.codec, step.state.ttl
        self._cells = ExpiringCells(step, context)
        self._keys: list[bytes] = []
        self._times: list[_KeyTimes] = []

    def load(self, parts: Sequence[Rows], keys: Keys) -> list[dict[str, Any] | None]:
        self._keys, self._times = keys.encoded, _times_of_keys(parts, keys)
        found = []
        for place in range(len(self._keys)):
            value = self._read(place)
            self._cells.undo_row()  # what was read is refreshed only if the call succeeds
            if not is_absent(value) and type(value) is not dict:
                raise unreadable_state(self._step, Unreadable(_no_dict(value)), keys.objects[place])
            found.append(None if is_absent(value) else value)
        return found

    def _read(self, place: int) -> Any:
        first, _, unit = self._times[place]
        self._cells.select(self._keys[place])
        self._cells.now.move(first, unit)
        return self._cells.value(ONLY_CELL)

    def save(self, places: Sequence[int], states: Sequence[dict[str, Any] | None]) -> None:
        if self._ttl is not None:
            for place in places:
                self._move_to_latest(place)
                self._cells.now.expiry(self._ttl)  # may raise, and must do so before anything is written
        texts = iter(self._codec.encode_many([state for state in states if state is not None]))  # may raise, too
        packed = (None if state is None else Packed(next(texts)) for state in states)
        new, is_refreshed_by_reads = dict(zip(places, packed, strict=True)), self._ttl and self._ttl.refresh == "read"
        for place in range(len(self._keys)) if is_refreshed_by_reads else places:
            self._read(place)
            self._move_to_latest(place)
            if place in new:
                if new[place] is None:
                    self._cells.drop(ONLY_CELL)
                else:
                    self._cells.put(ONLY_CELL, new[place])
            self._cells.commit_row()

    def _move_to_latest(self, place: int) -> None:
        _, latest, unit = self._times[place]
        self._cells.now.move(latest, unit)

    def expire(self) -> None:
        self._cells.expire()

    def changes(self) -> list[Change]:
        return self._cells.changes()


_KeyTimes = tuple[int | None, int | None, Unit | None]
"""The event time of a key's first row in the batch and its latest event time; None where rows have none."""


def _times_of_keys(parts: Sequence[Rows], keys: Keys) -> list[_KeyTimes]:
    found: list[_KeyTimes | None] = [None] * len(keys.encoded)
    start = 0
    for part in parts:
        index = keys.array[start : start + len(part)].tolist()
        start += len(part)
        ticks, unit = (None, None) if part.times is None else (part.times.values.tolist(), part.times.unit)
        for i, place in enumerate(index):
            time, known = None if ticks is None else ticks[i], found[place]
            if known is None or known[1] is None or time is None or known[2] != unit:
                found[place] = (time if known is None else known[0], time, unit)
            elif time > known[1]:
                found[place] = (known[0], time, unit)
    return [(None, None, None) if times is None else times for times in found]


def _no_dict(value: Any) -> str:
    return f"expected the columns of a key as a dict, as a migration has to return them, got {short_repr(value)}"
