"""`apply`, `flat_apply`, `update` and `stateful_filter`: a function of the row and a `State` handle.

def first_time(row, state):
    if not state.exists("seen"):
        state.set("seen", True)
        return row

orders.key_by("customer").apply("newcomers", first_time)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from millpond.codec.shapes import annotation_types
from millpond.log.segment import Change
from millpond.rows.rows import Outputs, Rows
from millpond.steps.base import Running, StepContext, as_row_list
from millpond.steps.kind import Step, StoredKey, call_for_rows
from millpond.steps.state.expiring import ExpiringCells
from millpond.steps.state.handle import State, values_by_name
from millpond.steps.state.migration import NamedValuesMigration


@dataclass(frozen=True, kw_only=True)
class ApplyStep(Step):
    """`f(row, state)` returns one output, or None for none."""

    kind: ClassVar[str] = "apply"
    layout: ClassVar[str | None] = "apply"
    can_expire = True
    migration = NamedValuesMigration

    f: Callable[[Any, State], Any]

    def begin(self, context: StepContext) -> Running:
        return RunningApply(self, context)

    def outputs(self, result: Any, row: Any) -> Iterable[Any]:
        """Return the outputs for a row, given what the function returned."""
        return () if result is None else (result,)

    def state_types(self) -> list[Any]:
        return [*self.state.types, *annotation_types(self.f)]

    @classmethod
    def show(cls, stored: StoredKey, step: Self | None) -> dict[str, Any]:
        return values_by_name(stored.cells, stored.codec)


class FlatApplyStep(ApplyStep):
    """`f(row, state)` returns any number of outputs."""

    kind = "flat_apply"

    def outputs(self, result: Any, row: Any) -> Iterable[Any]:
        return () if result is None else as_row_list(result)


class UpdateStep(ApplyStep):
    """`f(row, state)` changes the row in place, which is then the output."""

    kind = "update"
    changes_rows = True

    def outputs(self, result: Any, row: Any) -> Iterable[Any]:
        return (row,)


class StatefulFilterStep(ApplyStep):
    """`f(row, state)` says whether the row is an output."""

    kind = "stateful_filter"

    def outputs(self, result: Any, row: Any) -> Iterable[Any]:
        return (row,) if result else ()


class RunningApply(Running):
    """The started step. A row whose function raises has written nothing to the state."""

    def __init__(self, step: ApplyStep, context: StepContext) -> None:
        self._step, self._context = step, context
        self._cells = ExpiringCells(step, context)
        self._state = State(self._cells, context.tables)

    def run(self, rows: Rows, side: int = 0) -> Rows:
        found, keys = Outputs(rows), rows.keys
        assert keys is not None
        cells, state = self._cells, self._state
        f, to_outputs = self._step.f, self._step.outputs
        state.watermark = self._context.time.shown_watermark
        times = rows.times
        ticks, unit = (None, None) if times is None else (times.values.tolist(), times.unit)

        def once(i: int, k: int, row: Any) -> None:
            cells.select(keys.encoded[k])
            state.key = keys.objects[k]
            state.time = None if times is None else times[i]
            cells.now.move(None if ticks is None else ticks[i], unit)
            try:
                outputs = to_outputs(f(row, state), row)
            except BaseException:
                cells.undo_row()
                raise
            cells.commit_row()
            found.add_all(i, outputs)

        call_for_rows(self._step, self._context, rows, once)
        return found.rows()

    def end(self) -> None:
        self._cells.expire()

    def changes(self) -> list[Change]:
        return self._cells.changes()
