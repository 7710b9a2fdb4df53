"""What a step is to the rest: a name that owns state, and a function from rows to rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from millpond.codec import Codec
from millpond.log.segment import Change
from millpond.replica import View
from millpond.rows import Rows
from millpond.steps.failure import Failures, OnError, is_needed_again, own_copy
from millpond.timing import Time


@dataclass
class Turn:
    """What a step is given for one batch of one partition."""

    view: View
    codec: Codec
    failures: Failures
    batch: int
    now: float
    watermark: Time | None = None


class Running(Protocol):
    """A step at work on one batch of one partition."""

    def run(self, rows: Rows) -> Rows:
        """Take keyed rows, in order; called any number of times."""
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
            [rows.order[i] for i in came],
            times=None if rows.times is None else [rows.times[i] for i in came],
            keys=rows.keys.pick(came),
        )


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
        except Exception as error:
            turn.failures.row(
                step.on_error,
                step.name,
                error,
                key=keys.objects[k],
                row=row,
                order=rows.order[i],
                again=lambda i=i, k=k, row=row: once(i, k, own_copy(row)),  # type: ignore[misc]
            )
