"""`apply`, `flat_apply`, `update` and `stateful_filter`: a function of the row and a `State` handle.

def first_time(row, state):
    if not state.exists("seen"):
        state.set("seen", True)
        return row

orders.key_by("customer").apply("newcomers", first_time)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from millpond.log.segment import Change
from millpond.rows.rows import Rows
from millpond.steps.base import Outputs, Running, Step, StepContext, each_row, several
from millpond.steps.state.expiring import Entries
from millpond.steps.state.handle import State

Emit = Callable[[Any, Any], Iterable[Any]]  # what the function returned, and the row, to outputs


def _one(result: Any, row: Any) -> Iterable[Any]:
    return () if result is None else (result,)


def _several(result: Any, row: Any) -> Iterable[Any]:
    return () if result is None else several(result)


def _changed(result: Any, row: Any) -> Iterable[Any]:
    return (row,)


def _kept(result: Any, row: Any) -> Iterable[Any]:
    return (row,) if result else ()


EMITS: dict[str, Emit] = {
    "apply": _one,
    "flat_apply": _several,
    "update": _changed,
    "stateful_filter": _kept,
}


class Apply(Running):
    """Named state per key. A row whose function raises has written nothing, and is as it was."""

    def __init__(self, step: Step, context: StepContext) -> None:
        self._step, self._context = step, context
        self._f, self._emit = step.options["f"], EMITS[step.kind]
        self._cells = Entries(step, context)
        self._state = State(self._cells)

    def run(self, rows: Rows, side: int = 0) -> Rows:
        found, keys = Outputs(rows), rows.keys
        assert keys is not None
        cells, state = self._cells, self._state
        state.watermark = self._context.time.shown_watermark
        times = rows.times
        ticks, unit = (None, None) if times is None else (times.values.tolist(), times.unit)

        def once(i: int, k: int, row: Any) -> None:
            cells.turn_to(keys.encoded[k])
            state.key = keys.objects[k]
            state.time = None if times is None else times[i]
            cells.now.move(None if ticks is None else ticks[i], unit)
            try:
                outputs = self._emit(self._f(row, state), row)
            except BaseException:
                cells.undo()
                raise
            cells.keep()
            found.add_all(i, outputs)

        each_row(self._step, self._context, rows, once)
        return found.rows()

    def end(self) -> None:
        self._cells.expire()

    def changes(self) -> list[Change]:
        return self._cells.changes()
