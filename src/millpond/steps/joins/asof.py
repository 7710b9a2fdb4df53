"""`join_asof`: each left row with the newest right row at or before its time.

ticks.join_asof("quoted", quotes, keep="7d", how="left")
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from millpond.codec import decode_key
from millpond.log.segment import Change
from millpond.rows.rows import Rows
from millpond.steps.base import KeyedRowBuilder, Running, StepContext
from millpond.steps.joins.buffer import Arrivals, Changes, Row, first_cell, kept, last_cell, nothing
from millpond.steps.joins.join_step import JoinStep
from millpond.steps.joins.pairs import Pairs
from millpond.steps.joins.time_bounds import LEFT, RIGHT, newest
from millpond.timing import Duration, Unit, span


@dataclass(frozen=True, kw_only=True)
class AsofJoinStep(JoinStep):
    """Each row with the newest row of the other stream at or before its time."""

    kind: ClassVar[str] = "join_asof"

    keep: Duration
    wait: bool

    def begin(self, context: StepContext) -> Running:
        return JoinAsof(self, context)


class JoinAsof(Running):
    """Right rows are kept until the watermark is more than `keep` ahead of them; left rows only where they wait.

    All right rows of a batch have arrived before its left rows are looked at. A left row behind the watermark
    still meets its match if that is kept, for then it is the newest; if none is kept, nobody can say any more
    whether there was one, and the row is late. A right row is late when no left row that is on time can reach it.
    """

    def __init__(self, step: AsofJoinStep, context: StepContext) -> None:
        self._step, self._context = step, context
        self._is_left, self._wait = step.how == "left", step.wait
        self._arrivals = Arrivals(step, context)
        self._pairs, self._changes = Pairs(step, context), Changes()
        self._late: list[Row] = []

    def run(self, rows: Rows, side: int = 0) -> Rows:
        began, timed = self._context.time.start_watermark, self._arrivals.timed(rows, side)
        if timed is not None and timed.times is not None:
            oldest = None if began is None or side == LEFT else began - self._keep(timed.times.unit)
            self._arrivals.take_since(oldest, timed, side)
        return nothing(self._arrivals.unit)

    def _keep(self, unit: Unit) -> int:
        return span(self._step.keep, unit, f"join_asof({self._step.name!r}, keep)")

    def end(self) -> Rows | None:
        unit = self._arrivals.unit
        if unit is None:
            return None
        keep = self._keep(unit)
        came = self._arrivals.by_key()
        ready = self._ready(keep)
        for lefts, rights in came.values():
            for row in rights:
                if not self._is_over(row, keep):
                    self._changes.add(row.change(row.at + keep + 1))
            for row in lefts:
                if self._wait and not self._is_passed(row):
                    self._changes.add(row.change(row.at + 1))
                else:
                    ready.setdefault(row.key, []).append(row)
        for key, lefts in ready.items():
            self._match(lefts, came[key][RIGHT] if key in came else [], keep)
        if self._late:
            self._arrivals.put_aside(self._late_rows(unit), LEFT)
        return self._pairs.rows(unit)

    def _is_passed(self, row: Row) -> bool:
        """Whether all right rows have come that a left row may wait for."""
        return self._context.time.end_watermark is not None and row.at < self._context.time.end_watermark

    def _is_over(self, row: Row, keep: int) -> bool:
        """Whether a right row is kept no longer; the end of the input alone makes none superfluous."""
        return self._context.time.expiry_watermark is not None and row.at + keep < self._context.time.expiry_watermark

    def _ready(self, keep: int) -> dict[bytes, list[Row]]:
        """The left rows that have waited and need wait no longer. Right rows that are over are dropped."""
        ready: dict[bytes, list[Row]] = {}
        upto = self._context.time.end_watermark
        for entry in self._context.view.due(self._step.name, upto) if upto is not None else ():
            row = kept(entry, self._context.codec)
            if row.side == RIGHT and not self._is_over(row, keep):
                if not self._context.time.is_final:  # the program keeps them longer than it did
                    self._changes.add(row.change(row.at + keep + 1))
                continue
            self._changes.add(row.gone())
            if row.side == LEFT:
                ready.setdefault(row.key, []).append(row)
        return ready

    def _match(self, lefts: list[Row], rights: list[Row], keep: int) -> None:
        """Find the match of each row of one key, the newest first: what was found for one may be the next one's too."""
        began, times = self._context.time.start_watermark, [row.at for row in rights]
        old: Row | None = None  # kept from an earlier batch
        for row in sorted(lefts, key=_cell, reverse=True):
            if old is None or old.at > row.at:
                old = self._last(row.key, row.at - keep, row.at)
            place = newest(times, row.at, keep)
            new = None if place is None else rights[place]
            found = max((r for r in (old, new) if r is not None), key=_cell, default=None)
            if found is None and row.is_new and began is not None and row.at < began:
                self._late.append(row)
            elif found is None and not self._is_left:
                continue
            elif self._wait or not row.is_new:
                self._pairs.add_ending(row, found, row.at)
            else:
                self._pairs.add(row, found, row.order)

    def _last(self, key: bytes, first: int, last: int) -> Row | None:
        entry = self._context.view.last(self._step.name, key, first_cell(RIGHT, first), last_cell(RIGHT, last))
        return None if entry is None else kept(entry, self._context.codec)

    def _late_rows(self, unit: Unit) -> Rows:
        made = KeyedRowBuilder(unit)
        for row in sorted(self._late, key=lambda row: (row.order, row.cell)):
            made.add(row.key, decode_key(row.key), row.row, row.at, row.order)
        return made.rows()

    def take_side_rows(self) -> list[Rows]:
        return self._arrivals.take_late_rows()

    def changes(self) -> list[Change]:
        return self._changes.sorted()


def _cell(row: Row) -> bytes:
    return row.cell
