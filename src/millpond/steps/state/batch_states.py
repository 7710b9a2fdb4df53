"""The states of many keys within one batch, loaded and saved together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from operator import ne
from typing import Any, Protocol

import numpy as np

from millpond.log.segment import Change, SingleCellChanges
from millpond.rows.rows import Keys, Rows
from millpond.steps.base import StepContext
from millpond.steps.failure import unreadable_state
from millpond.steps.kind import Step
from millpond.steps.state.expiring import ExpiringCells
from millpond.steps.state.single import ONLY_CELL, Packed, is_absent
from millpond.steps.state.state_texts import StateTexts, StateValues, no_dict
from millpond.timing import Unit


class BatchStates(Protocol):
    """The states of a partition within one batch. They are loaded once, and saved at most once."""

    def load(self, parts: Sequence[Rows], keys: Keys) -> StateValues:
        """Return the state of each key that occurs in some rows."""
        ...

    def save(self, places: Sequence[int], states: Sequence[bytes | None]) -> None:
        """Set the states, as texts, of the keys at these places among those that were loaded; None drops one.

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
    """States without a TTL. They are read and written in the order of their keys, which is faster."""

    def __init__(self, step: Step, context: StepContext, texts: StateTexts) -> None:
        self._step, self._view, self._texts = step.name, context.view, texts
        self._keys: list[bytes] = []  # in their order, as what follows
        self._before: list[bytes | None] = []
        self._after: list[bytes | None] = []
        self._places: list[int] = []  # of each key as it was given, its place in that order

    def load(self, parts: Sequence[Rows], keys: Keys) -> StateValues:
        ordered = Keys(keys.encoded, np.arange(len(keys.encoded))).in_order()
        self._keys, self._places = ordered.encoded, ordered.index
        self._before = self._after = self._view.get_many(self._step, ordered.encoded)
        return self._texts.decode(list(map(self._before.__getitem__, self._places)))

    def save(self, places: Sequence[int], states: Sequence[bytes | None]) -> None:
        self._after = list(self._before)
        for place, state in zip(map(self._places.__getitem__, places), states, strict=True):
            self._after[place] = state

    def expire(self) -> None:
        pass

    def changes(self) -> Sequence[Change]:
        differs = list(map(ne, self._before, self._after))
        return SingleCellChanges(list(compress(self._keys, differs)), list(compress(self._after, differs)))


class ExpiringStates:
    """States with a TTL. A key is read at the time of its first row in the batch, and written at its latest time.

    A state that the function returns is written, changed or not.
    """

    def __init__(self, step: Step, context: StepContext, texts: StateTexts) -> None:
        self._step, self._ttl, self._texts = step.name, step.state.ttl, texts
        self._cells = ExpiringCells(step, context)
        self._keys: list[bytes] = []
        self._times: list[_KeyTimes] = []

    def load(self, parts: Sequence[Rows], keys: Keys) -> StateValues:
        self._keys, self._times = keys.encoded, _times_of_keys(parts, keys)
        found = []
        for place in range(len(self._keys)):
            value = self._read(place)
            self._cells.undo_row()  # what was read is refreshed only if the call succeeds
            if not is_absent(value) and type(value) is not dict:
                raise unreadable_state(self._step, no_dict(value), keys.objects[place])
            found.append({} if is_absent(value) else value)
        return self._texts.to_columns(found)

    def _read(self, place: int) -> Any:
        first, _, unit = self._times[place]
        self._cells.select(self._keys[place])
        self._cells.now.move(first, unit)
        return self._cells.value(ONLY_CELL)

    def save(self, places: Sequence[int], states: Sequence[bytes | None]) -> None:
        if self._ttl is not None:
            for place in places:
                self._move_to_latest(place)
                self._cells.now.expiry(self._ttl)  # may raise, and must do so before anything is written
        new, is_refreshed_by_reads = dict(zip(places, states, strict=True)), self._ttl and self._ttl.refresh == "read"
        for place in range(len(self._keys)) if is_refreshed_by_reads else places:
            self._read(place)
            self._move_to_latest(place)
            if place in new:
                state = new[place]
                if state is None:
                    self._cells.drop(ONLY_CELL)
                else:
                    self._cells.put(ONLY_CELL, Packed(state))
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
