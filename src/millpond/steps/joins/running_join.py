"""What the joins share while a batch runs: rows are collected from both sides, and matched when all have come."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from millpond.log.segment import Change
from millpond.rows.rows import Rows
from millpond.steps.base import Running, StepContext
from millpond.steps.joins.buffer import Arrivals, RowChanges, no_rows
from millpond.steps.joins.join_step import JoinStep
from millpond.steps.joins.pairs import Pairs
from millpond.timing import MAX_TICKS, Unit


class RunningJoin(Running):
    """A join that was started for one batch of one partition."""

    def __init__(self, step: JoinStep, context: StepContext, emits_unmatched: Sequence[bool] = (False, False)) -> None:
        self._context, self._time = context, context.time
        self._arrivals = Arrivals(step, context, emits_unmatched)
        self._pairs, self._changes = Pairs(step, context), RowChanges()

    @abstractmethod
    def _add(self, rows: Rows, side: int, unit: Unit) -> None:
        """Add rows of one side, all with times, to the arrivals."""

    @abstractmethod
    def _match_arrivals(self, unit: Unit) -> None:
        """Find the pairs of the batch, and what changes in the state; called once, when all rows have come."""

    def run(self, rows: Rows, side: int = 0) -> Rows:
        timed = self._arrivals.check_times(rows, side)
        if timed is not None and timed.times is not None:
            self._add(timed, side, timed.times.unit)
        return no_rows(self._arrivals.unit)

    def end(self) -> Rows | None:
        unit = self._arrivals.unit
        if unit is None:
            return None
        self._match_arrivals(unit)
        return self._pairs.rows(unit)

    def take_side_rows(self) -> list[Rows]:
        return self._arrivals.take_late_rows()

    def changes(self) -> list[Change]:
        return self._changes.in_order()

    def _is_due(self, due: int) -> bool:
        """Return whether the watermark that the batch ends with has reached a time."""
        return self._time.end_watermark is not None and due <= self._time.end_watermark

    def _note_closed(self, due: int) -> None:
        """At the end of the input, take note that rows before a watermark are late from now on."""
        if self._time.is_final and due < MAX_TICKS:
            self.closed_until = due if self.closed_until is None else max(due, self.closed_until)
