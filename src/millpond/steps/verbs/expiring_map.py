"""`stateful_map` where state lives for a while only: one value per key, which has a time at which it is over."""

from __future__ import annotations

from typing import Any

from millpond.codec import copy_value
from millpond.log.segment import Change
from millpond.rows.rows import Rows
from millpond.steps.base import Outputs, Running, Step, StepContext, each_row
from millpond.steps.state.expiring import Entries
from millpond.steps.state.single import is_absent
from millpond.steps.state.ttl import is_mortal
from millpond.steps.verbs.stateful_map import StatefulMap, pair

_WHOLE = b""  # the one cell of a key


class ExpiringMap(Running):
    """Every call is a write, also of the same state: it lets the state live on, where writes do."""

    def __init__(self, step: Step, context: StepContext) -> None:
        self._step, self._context = step, context
        self._f, self._initial = step.options["f"], step.options["initial"]
        self._cells = Entries(step, context)

    def run(self, rows: Rows, side: int = 0) -> Rows:
        found, keys, cells, times = Outputs(rows), rows.keys, self._cells, rows.times
        assert keys is not None
        ticks, unit = (None, None) if times is None else (times.values.tolist(), times.unit)

        def once(i: int, k: int, row: Any) -> None:
            cells.turn_to(keys.encoded[k])
            cells.now.move(None if ticks is None else ticks[i], unit)
            state = cells.value(_WHOLE)
            if is_absent(state):
                state = self._initial() if callable(self._initial) else copy_value(self._initial)
            try:
                output, new = pair(self._f(keys.objects[k], row, state))
                if new is None:
                    cells.drop(_WHOLE)
                else:
                    cells.put(_WHOLE, new)
            except BaseException:
                cells.undo()
                raise
            cells.keep()
            if output is not None:
                found.add(i, output)

        each_row(self._step, self._context, rows, once)
        return found.rows()

    def end(self) -> None:
        self._cells.expire()

    def changes(self) -> list[Change]:
        return self._cells.changes()


def begin(step: Step, context: StepContext) -> StatefulMap | ExpiringMap:
    """A step at work: the slower one only where state has, or had until now, a time at which it is over."""
    return ExpiringMap(step, context) if is_mortal(step, context) else StatefulMap(step, context)
