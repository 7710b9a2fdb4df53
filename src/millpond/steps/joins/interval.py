"""`join_interval`: pairs of rows of one key whose times are near each other.

orders.join_interval("paid", payments, before="0s", after="1h", grace="5m", how="left")
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from millpond.rows.rows import Rows
from millpond.steps.base import Running, StepContext
from millpond.steps.joins.buffer import JoinRow, read_stored_rows, stored_row
from millpond.steps.joins.join_step import JoinStep
from millpond.steps.joins.running_join import RunningJoin
from millpond.steps.joins.time_bounds import LEFT, RIGHT, TimeBounds
from millpond.timing import Duration, Unit, span


@dataclass(frozen=True, kw_only=True)
class IntervalJoinStep(JoinStep):
    """Pairs of rows of one key whose times are near each other."""

    kind: ClassVar[str] = "join_interval"

    before: Duration
    after: Duration
    grace: Duration

    def begin(self, context: StepContext) -> Running:
        return RunningIntervalJoin(self, context)

    @property
    def watermark_lag(self) -> tuple[Duration, ...]:
        """A pair is as late as its row at most; an unmatched row comes when no partner can come any more."""
        waits: dict[str, tuple[Duration, ...]] = {
            "inner": (),
            "left": (self.after,),
            "right": (self.before,),
            "outer": (max(self.before, self.after, key=_as_seconds),),
        }
        return (*waits[self.how], self.grace)


def _as_seconds(length: Duration) -> float:
    return length.total_seconds() if isinstance(length, timedelta) else length


class RunningIntervalJoin(RunningJoin):
    """Every row is stored until no partner can come any more; then it is deleted, and emitted if it had none.

    Only those rows of a key are read that are near a row of the batch, each once; what expires is found by the index
    of what is due.
    """

    def __init__(self, step: IntervalJoinStep, context: StepContext) -> None:
        super().__init__(step, context, step.emits_unmatched)
        self._step = step
        self._matched: dict[
            tuple[bytes, bytes], JoinRow
        ] = {}  # stored rows that have their first partner in this batch

    def _bounds(self, unit: Unit) -> TimeBounds:
        step, where = self._step, f"join_interval({self._step.name!r}"
        given = {"before": step.before, "after": step.after, "grace": step.grace}
        return TimeBounds(**{name: span(value, unit, f"{where}, {name})") for name, value in given.items()})

    def _add(self, rows: Rows, side: int, unit: Unit) -> None:
        mark = self._time.start_watermark
        self._arrivals.add_since(None if mark is None else mark - self._bounds(unit).grace, rows, side)

    def _match_arrivals(self, unit: Unit) -> None:
        bounds = self._bounds(unit)
        new: list[JoinRow] = []
        for key, (lefts, rights) in self._arrivals.by_key().items():
            self._match(bounds, key, lefts, rights)
            new += lefts + rights
        self._store(bounds, new)
        self._expire(bounds)

    def _match(self, bounds: TimeBounds, key: bytes, lefts: list[JoinRow], rights: list[JoinRow]) -> None:
        """Add the pairs of a key of which at least one row is new."""
        name, context = self._step.name, self._context
        near = [*read_stored_rows(context, name, key, RIGHT, bounds.partner_ranges(LEFT, (row.at for row in lefts)))]
        self._add_pairs(bounds, lefts, near)
        self._add_pairs(bounds, lefts, rights)
        near = [*read_stored_rows(context, name, key, LEFT, bounds.partner_ranges(RIGHT, (row.at for row in rights)))]
        self._add_pairs(bounds, near, rights)

    def _add_pairs(self, bounds: TimeBounds, lefts: list[JoinRow], rights: list[JoinRow]) -> None:
        for i, j in bounds.pairs([row.at for row in lefts], [row.at for row in rights]):
            self._pairs.add(lefts[i], rights[j], max(lefts[i].order, rights[j].order))
            for row in (lefts[i], rights[j]):
                if row.is_unmatched:
                    row.is_unmatched = False
                    if not row.is_new:
                        self._matched[row.key, row.cell] = row

    def _store(self, bounds: TimeBounds, new: list[JoinRow]) -> None:
        """Store the new rows that may still have partners, and the stored rows that are matched now."""
        for row in new:
            due = bounds.expires_at(row.side, row.at)
            if not self._is_due(due):
                self._changes.add(row.change(due))
                continue
            self._note_closed(due)
            if row.is_unmatched:
                self._add_unmatched(row, due)
        for row in self._matched.values():
            self._changes.add(row.change(bounds.expires_at(row.side, row.at)))

    def _expire(self, bounds: TimeBounds) -> None:
        """Delete the stored rows that no partner can come for, and emit those that had none."""
        watermark = self._time.end_watermark
        for entry in self._context.view.due(self._step.name, watermark) if watermark is not None else ():
            row = stored_row(entry, self._context.codec)
            due = bounds.expires_at(row.side, row.at)
            known = self._matched.get((row.key, row.cell), row)
            if not self._is_due(due):  # the program's bounds have grown since the row was stored
                self._changes.add(known.change(due))
                continue
            self._changes.add(row.deletion())
            self._note_closed(due)
            if known.is_unmatched and self._step.emits_unmatched[row.side]:
                self._add_unmatched(known, due)

    def _add_unmatched(self, row: JoinRow, due: int) -> None:
        self._pairs.add_ending(row if row.side == LEFT else None, row if row.side == RIGHT else None, due)
