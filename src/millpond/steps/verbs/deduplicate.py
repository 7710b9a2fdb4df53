"""`deduplicate`: the first row of each id, per key, for ever or within a duration.

payments.key_by("card").deduplicate("once", by="payment_id", within="1d")
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from millpond.clock import as_datetime
from millpond.codec import encode_key
from millpond.errors import InvalidUse
from millpond.log.segment import Change
from millpond.rows.rows import Outputs, Rows
from millpond.steps.base import Running, StepContext
from millpond.steps.kind import Step, StoredKey, call_for_rows
from millpond.steps.state.expiring import ExpiringCells
from millpond.steps.state.handle import values_by_name
from millpond.steps.state.named import NEVER, CellTimes, cell_for
from millpond.steps.state.single import is_absent
from millpond.timing import Duration, Time, as_time, span, ticks, unit_of

_SEEN = cell_for("m", "seen") + b":"  # and the id
_ONCE = cell_for("v", "seen")  # where the key itself is the id


@dataclass(frozen=True, kw_only=True)
class DeduplicateStep(Step):
    """Per key a map of the ids seen, with the time of the row that passed.

    An id expires as an entry with `mp.ttl(within, refresh="never")` does: that is the step's TTL.
    """

    kind: ClassVar[str] = "deduplicate"
    can_expire = True

    by: Callable[[Any], Any] | None = None  # None: the key itself is the id

    @property
    def within(self) -> Duration | None:
        return None if self.state.ttl is None else self.state.ttl.after

    @property
    def detail(self) -> dict[str, Any]:
        return {} if self.state.ttl is None else {"within": self.state.ttl.detail["after"]}

    def begin(self, context: StepContext) -> Running:
        return RunningDeduplicate(self, context)

    @classmethod
    def show(cls, stored: StoredKey, step: Self | None) -> dict[str, Any]:
        return values_by_name(stored.cells, stored.codec)


class RunningDeduplicate(Running):
    """The started step. A row that does not pass changes nothing."""

    def __init__(self, step: DeduplicateStep, context: StepContext) -> None:
        self._step, self._context = step, context
        self._by, self._within = step.by, step.within
        self._cells = ExpiringCells(step, context)
        before = (context.previous_detail or {}).get("within")
        if context.previous_detail is not None and before != step.detail.get("within"):
            self._adopt_within(before)

    def run(self, rows: Rows, side: int = 0) -> Rows:
        found, keys, cells, times = Outputs(rows), rows.keys, self._cells, rows.times
        assert keys is not None
        ttl = self._step.state.ttl
        values, unit = (None, None) if times is None else (times.values.tolist(), times.unit)

        def once(i: int, k: int, row: Any) -> None:
            cells.select(keys.encoded[k])
            cells.now.move(None if values is None else values[i], unit)
            time = as_datetime(self._context.time.now) if times is None else times[i]
            cell = _ONCE if self._by is None else _SEEN + encode_key(self._by(row))
            seen = cells.value(cell)
            if not is_absent(seen):
                self._check_unit(seen, time)
                return
            cells.write(cell, time, *(cells.now.expiry(ttl) if ttl is not None else ()))
            cells.commit_row()
            found.add(i, row)

        call_for_rows(self._step, self._context, rows, once)
        return found.rows()

    def _check_unit(self, seen: Time, time: Time) -> None:
        if self._within is not None and unit_of(seen) != unit_of(time):
            raise InvalidUse(
                f"deduplicate({self._step.name!r}): the stream's times were {unit_of(seen)}s and are "
                f"{unit_of(time)}s now; give the step another name"
            )

    def _adopt_within(self, before: int | None) -> None:
        """Give the ids that were stored with another `within` new times, counted from when they were seen."""
        for entry in self._context.view.entries(self._step.name):
            times: CellTimes = NEVER
            if self._within is not None:
                seen = as_time(self._context.codec.decode(entry.value))
                length = span(self._within, unit_of(seen), f"deduplicate({self._step.name!r}, within)")
                if before is not None:
                    due, wall = (None if at is None else at - before + length for at in (entry.due, entry.wall))
                    times = due, wall
                else:
                    is_timed = self._context.time.unit is not None
                    times = (ticks(seen) + length, None) if is_timed else (None, ticks(seen) + length)
            self._cells.set_stored_times(entry, times)

    def end(self) -> None:
        """Remove the ids that have expired."""
        self._cells.expire()

    def changes(self) -> list[Change]:
        return self._cells.changes()
