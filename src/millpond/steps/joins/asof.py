"""`join_asof`: each left row with the newest right row at or before its time.

ticks.join_asof("quoted", quotes, keep="7d", how="left")
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from millpond.codec import decode_key
from millpond.rows.rows import KeyedRowBuilder, Rows
from millpond.steps.base import Running, StepContext
from millpond.steps.joins.buffer import JoinRow, first_cell, last_cell, stored_row
from millpond.steps.joins.join_step import JoinStep
from millpond.steps.joins.running_join import RunningJoin
from millpond.steps.joins.time_bounds import LEFT, RIGHT, find_newest
from millpond.timing import Duration, Unit, span


@dataclass(frozen=True, kw_only=True)
class AsofJoinStep(JoinStep):
    """Each row with the newest row of the other stream at or before its time."""

    kind: ClassVar[str] = "join_asof"

    keep: Duration
    wait: bool

    def begin(self, context: StepContext) -> Running:
        return RunningAsofJoin(self, context)


class RunningAsofJoin(RunningJoin):
    """Right rows are stored until the watermark is more than `keep` ahead of them; left rows only if they wait.

    All right rows of a batch have arrived before its left rows are matched. A left row behind the watermark still
    gets its match if that is stored, for then it is the newest; if none is stored, it is unknown whether there was
    one, and the row is late. A right row is late if no left row that is on time can match it.
    """

    def __init__(self, step: AsofJoinStep, context: StepContext) -> None:
        super().__init__(step, context)
        self._step = step
        self._is_left, self._waits = step.how == "left", step.wait
        self._late: list[JoinRow] = []

    def _keep(self, unit: Unit) -> int:
        return span(self._step.keep, unit, f"join_asof({self._step.name!r}, keep)")

    def _add(self, rows: Rows, side: int, unit: Unit) -> None:
        mark = self._time.start_watermark
        self._arrivals.add_since(None if mark is None or side == LEFT else mark - self._keep(unit), rows, side)

    def _match_arrivals(self, unit: Unit) -> None:
        keep = self._keep(unit)
        arrivals = self._arrivals.by_key()
        ready = self._take_ready(keep)
        for lefts, rights in arrivals.values():
            for row in rights:
                if not self._is_expired(row, keep):
                    self._changes.add(row.change(row.at + keep + 1))
            for row in lefts:
                if self._waits and not self._is_due(row.at + 1):
                    self._changes.add(row.change(row.at + 1))
                else:
                    ready.setdefault(row.key, []).append(row)
        for key, lefts in ready.items():
            self._match(lefts, arrivals[key][RIGHT] if key in arrivals else [], keep)
        if self._late:
            self._arrivals.add_late(self._late_rows(unit), LEFT)

    def _is_expired(self, row: JoinRow, keep: int) -> bool:
        """Return whether a right row is no longer stored. The end of the input alone expires none."""
        mark = self._time.expiry_watermark
        return mark is not None and row.at + keep < mark

    def _take_ready(self, keep: int) -> dict[bytes, list[JoinRow]]:
        """Return the stored left rows that need not wait any longer, by key. Expired right rows are deleted."""
        ready: dict[bytes, list[JoinRow]] = {}
        until = self._time.end_watermark
        for entry in self._context.view.due(self._step.name, until) if until is not None else ():
            row = stored_row(entry, self._context.codec)
            if row.side == RIGHT and not self._is_expired(row, keep):
                if not self._time.is_final:  # the program's `keep` has grown since the row was stored
                    self._changes.add(row.change(row.at + keep + 1))
                continue
            self._changes.add(row.deletion())
            if row.side == LEFT:
                ready.setdefault(row.key, []).append(row)
        return ready

    def _match(self, lefts: list[JoinRow], rights: list[JoinRow], keep: int) -> None:
        """Match the left rows of one key, the newest first: a stored match may be that of the next row, too."""
        mark, times = self._time.start_watermark, [row.at for row in rights]
        stored: JoinRow | None = None
        for row in sorted(lefts, key=_cell, reverse=True):
            if stored is None or stored.at > row.at:
                stored = self._read_newest(row.key, row.at - keep, row.at)
            place = find_newest(times, row.at, keep)
            new = None if place is None else rights[place]
            match = max((right for right in (stored, new) if right is not None), key=_cell, default=None)
            if match is None and row.is_new and mark is not None and row.at < mark:
                self._late.append(row)
            elif match is None and not self._is_left:
                continue
            elif self._waits or not row.is_new:
                self._pairs.add_ending(row, match, row.at)
            else:
                self._pairs.add(row, match, row.order)

    def _read_newest(self, key: bytes, first: int, last: int) -> JoinRow | None:
        """Return the newest stored right row of a key between two times."""
        entry = self._context.view.last(self._step.name, key, first_cell(RIGHT, first), last_cell(RIGHT, last))
        return None if entry is None else stored_row(entry, self._context.codec)

    def _late_rows(self, unit: Unit) -> Rows:
        late = KeyedRowBuilder(unit)
        for row in sorted(self._late, key=lambda row: (row.order, row.cell)):
            late.add(row.key, decode_key(row.key), row.row, row.at, row.order)
        return late.rows()


def _cell(row: JoinRow) -> bytes:
    return row.cell
