"""`join_interval`: pairs of rows of one key whose times are near each other.

orders.join_interval("paid", payments, before="0s", after="1h", grace="5m", how="left")
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from millpond.log.segment import Change
from millpond.rows.rows import Rows
from millpond.steps.base import Running, StepContext
from millpond.steps.joins.buffer import Arrivals, Changes, Row, kept, nothing, read
from millpond.steps.joins.join_step import JoinStep
from millpond.steps.joins.pairs import Pairs
from millpond.steps.joins.time_bounds import LEFT, RIGHT, Reach
from millpond.timing import MAX_TICKS, Duration, Unit, span

# Whose unmatched rows come out: the left's, the right's.
HOWS = {"inner": (False, False), "left": (True, False), "right": (False, True), "outer": (True, True)}


@dataclass(frozen=True, kw_only=True)
class IntervalJoinStep(JoinStep):
    """Pairs of rows of one key whose times are near each other."""

    kind: ClassVar[str] = "join_interval"

    before: Duration
    after: Duration
    grace: Duration

    def begin(self, context: StepContext) -> Running:
        return JoinInterval(self, context)

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


class JoinInterval(Running):
    """Every row is kept until no partner can come any more; then it leaves, and comes out if it met none.

    A batch is looked at when all of its rows are there. Of a key's rows only those are read that are near a
    row of the batch, each once; what leaves is found by the index of what is due.
    """

    def __init__(self, step: IntervalJoinStep, context: StepContext) -> None:
        self._step, self._context = step, context
        self._outer = HOWS[step.how]
        self._arrivals = Arrivals(step, context, self._outer)
        self._pairs, self._changes = Pairs(step, context), Changes()

    def run(self, rows: Rows, side: int = 0) -> Rows:
        began, timed = self._context.time.start_watermark, self._arrivals.timed(rows, side)
        if timed is not None and timed.times is not None:
            oldest = None if began is None else began - self._reach(timed.times.unit).grace
            self._arrivals.take_since(oldest, timed, side)
        return nothing(self._arrivals.unit)

    def _reach(self, unit: Unit) -> Reach:
        step, where = self._step, f"join_interval({self._step.name!r}"
        given = {"before": step.before, "after": step.after, "grace": step.grace}
        return Reach(**{name: span(value, unit, f"{where}, {name})") for name, value in given.items()})

    def end(self) -> Rows | None:
        unit = self._arrivals.unit
        if unit is None:
            return None
        reach = self._reach(unit)
        met: dict[tuple[bytes, bytes], Row] = {}  # kept from before, and matched for the first time
        new: list[Row] = []
        for key, (lefts, rights) in self._arrivals.by_key().items():
            self._match(reach, key, lefts, rights, met)
            new += lefts + rights
        self._settle(reach, new, met)
        return self._pairs.rows(unit)

    def _match(
        self, reach: Reach, key: bytes, lefts: list[Row], rights: list[Row], met: dict[tuple[bytes, bytes], Row]
    ) -> None:
        """The pairs of which at least one row is new."""
        name, context = self._step.name, self._context
        near = [*read(context, name, key, RIGHT, reach.windows(LEFT, (row.at for row in lefts)))]
        for ours, theirs in ((lefts, near), (lefts, rights)):
            self._meet(reach, ours, theirs, met)
        near = [*read(context, name, key, LEFT, reach.windows(RIGHT, (row.at for row in rights)))]
        self._meet(reach, near, rights, met)

    def _meet(self, reach: Reach, lefts: list[Row], rights: list[Row], met: dict[tuple[bytes, bytes], Row]) -> None:
        for i, j in reach.pairs([row.at for row in lefts], [row.at for row in rights]):
            self._pairs.add(lefts[i], rights[j], max(lefts[i].order, rights[j].order))
            for row in (lefts[i], rights[j]):
                if row.is_open:
                    row.is_open = False
                    if not row.is_new:
                        met[row.key, row.cell] = row

    def _settle(self, reach: Reach, new: list[Row], met: dict[tuple[bytes, bytes], Row]) -> None:
        """Keep what may still meet a partner, and let go of the rest."""
        watermark, changes, outer = self._context.time.end_watermark, self._changes, self._outer
        for row in new:
            due = reach.leaves(row.side, row.at)
            if watermark is None or due > watermark:
                changes.add(row.change(due))
                continue
            self._ended(due)
            if row.is_open:
                self._alone(row, due)
        for row in met.values():
            changes.add(row.change(reach.leaves(row.side, row.at)))
        if watermark is None:
            return
        for entry in self._context.view.due(self._step.name, watermark):
            row = kept(entry, self._context.codec)
            due = reach.leaves(row.side, row.at)
            known = met.get((row.key, row.cell), row)
            if due > watermark:  # the program has grown more patient since the row was kept
                changes.add(known.change(due))
                continue
            changes.add(row.gone())
            self._ended(due)
            if known.is_open and outer[row.side]:
                self._alone(known, due)

    def _ended(self, due: int) -> None:
        # Whoever could still have met the row comes too late from now on: it is not said twice what it met.
        if self._context.time.is_final and due < MAX_TICKS:
            self.closed_until = due if self.closed_until is None else max(due, self.closed_until)

    def _alone(self, row: Row, due: int) -> None:
        self._pairs.add_ending(row if row.side == LEFT else None, row if row.side == RIGHT else None, due)

    def take_side_rows(self) -> list[Rows]:
        return self._arrivals.take_late_rows()

    def changes(self) -> list[Change]:
        return self._changes.sorted()
