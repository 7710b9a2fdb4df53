"""What a step is to the rest: a name that owns state, and a function from rows to rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from millpond.codec import Codec
from millpond.codec.refusal import short
from millpond.errors import InvalidUse
from millpond.log.segment import Change
from millpond.replica import View
from millpond.rows.rows import ENDING, Keys, Rows
from millpond.steps.failure import FAULTS, Failures, OnError, is_needed_again, own_copy
from millpond.timing import Duration, Time, Times, Unit, as_user


@dataclass
class Turn:
    """What a step is given for one batch of one partition."""

    view: View
    codec: Codec
    failures: Failures
    arrival: int  # the batch's place among all that the state has seen: orders and names what it adds to the state
    now: float
    unit: Unit | None = None  # of the times of the rows that come; nothing if none has come yet
    began: int | None = None  # the watermark that the batch began with: it decides what is late
    watermark: int | None = None  # the one that it ends with: it decides what closes
    expiry: int | None = None  # the same, unmoved by the end of the input
    final: bool = False  # the input has ended, and what is open closes
    late: Callable[[int], None] = lambda count: None
    table: Callable[[Sequence[bytes]], list[bytes | None]] | None = None  # keys to rows of the table that it looks into
    previous: dict[str, Any] | None = None  # the step's own detail in the record that the batch builds on
    in_parts: bool = False  # whoever takes the step's outputs takes them in parts as well

    @property
    def wall(self) -> int:
        """The batch's `now` in microseconds since the epoch."""
        return round(self.now * 1_000_000)

    @property
    def shown_watermark(self) -> Time | None:
        """The watermark that the batch began with, as the user knows it."""
        return None if self.began is None or self.unit is None else as_user(self.began, self.unit)


class Running(Protocol):
    """A step at work on one batch of one partition.

    It may have a list `aside` of rows for its side stream, which is taken and cleared after `run` and `end`.
    """

    def run(self, rows: Rows, side: int = 0) -> Rows | Iterator[Rows]:
        """Take keyed rows, in order, of one of the step's inputs; called any number of times."""
        ...

    def end(self) -> Rows | list[Rows] | None:
        """Do what is due by now; called once, after all rows, also where there were none."""
        ...

    def changes(self) -> list[Change]:
        """What has changed, sorted; called once, at the end."""
        ...


@dataclass(frozen=True)
class Step:
    """A stateful operator of a program: what is the same in every batch."""

    name: str
    kind: str
    begin: Callable[[Step, Turn], Running]
    options: dict[str, Any] = field(default_factory=dict)
    on_error: OnError = "stop"
    types: tuple[type, ...] = ()
    detail: dict[str, Any] = field(default_factory=dict)  # kept in the ledger, to read the state by
    version: int = 1  # of what it keeps; an older one is migrated
    migrate: dict[int, Callable[..., Any]] = field(default_factory=dict)  # from a version to the next
    renamed_from: str | None = None
    holds: tuple[Duration, ...] | None = ()  # what its output may lag behind its input; None: for ever
    lazy: bool = False  # whether state is migrated when it is met, and not before the first batch
    reads: tuple[str, ...] | None = None  # the fields that it looks at where they are columns of numbers; None: all

    def start(self, turn: Turn) -> Running:
        return self.begin(self, turn)


class Outputs:
    """The outputs of some rows, each with what travels along from the row that caused it."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._data: list[Any] = []
        self._from: list[int] = []

    def add(self, row: int, output: Any) -> None:
        self._data.append(output)
        self._from.append(row)

    def add_all(self, row: int, outputs: Iterable[Any]) -> None:
        for output in outputs:
            self.add(row, output)

    def rows(self) -> Rows:
        rows, came = self._rows, self._from
        assert rows.keys is not None
        return Rows(
            self._data,
            np.asarray(rows.order, dtype=np.int64)[np.asarray(came, dtype=np.int64)],
            times=None if rows.times is None else rows.times.pick(came),
            keys=rows.keys.pick(came),
        )


class Made:
    """Rows that no single row caused: panes, timers, what was waited for."""

    def __init__(self, unit: Unit | None) -> None:
        self._unit = unit
        self._data: list[Any] = []
        self._order: list[int] = []
        self._times: list[int] = []
        self._index: list[int] = []
        self._keys: dict[bytes, int] = {}
        self._objects: list[Any] = []

    def add(self, key: bytes, known_as: Any, output: Any, time: int | None, order: int = ENDING) -> None:
        """An output of a key, as bytes and as the user knows it, at a time; after the rows of the batch, as a rule."""
        place = self._keys.setdefault(key, len(self._keys))
        if place == len(self._objects):
            self._objects.append(known_as)
        self._index.append(place)
        self._data.append(output)
        self._order.append(order)
        if time is not None:
            self._times.append(time)

    def rows(self) -> Rows:
        timed = self._unit is not None and len(self._times) == len(self._data)
        return Rows(
            self._data,
            self._order,
            times=Times(self._times, self._unit) if timed and self._unit is not None else None,
            keys=Keys(list(self._keys), self._index, self._objects),
        )


def several(result: Any) -> list[Any]:
    """The rows of what a function returned that makes any number of them. A dict or a text is one row, not several."""
    if isinstance(result, (Mapping, str, bytes)):
        raise InvalidUse(
            f"expected several rows, as in a list, but the function returned {short(result)}; return [row]"
        )
    return list(result)


def each_row(step: Step, turn: Turn, rows: Rows, once: Callable[[int, int, Any], None]) -> None:
    """Call `once(i, k, row)` for every row i, whose key is the k-th; a row that fails meets the step's policy.

    `once` must change nothing when it raises, so that it can be called again.
    """
    keys = rows.keys
    assert keys is not None
    # `update` is there to change its row, so it fails half-way more often than others.
    is_kept = step.kind == "update" or is_needed_again(step.on_error)
    for i, (k, row) in enumerate(zip(keys.index, rows.objects(), strict=True)):
        try:
            once(i, k, own_copy(row) if is_kept else row)
        except FAULTS as error:
            turn.failures.row(
                step.on_error,
                step.name,
                error,
                key=keys.objects[k],
                row=row,
                order=rows.order[i],
                again=lambda i=i, k=k, row=row: once(i, k, own_copy(row)),  # type: ignore[misc]
            )
