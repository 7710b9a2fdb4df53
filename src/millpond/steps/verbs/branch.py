"""`branch`: each row goes to the first branch whose predicate is true for it, and else to "rest".

>>> import millpond as mp
>>> app = mp.App("shop")
>>> parts = app.stream("prices", mp.sources.rows([])).branch(low=lambda price: price < 10)
>>> low, rest = parts["low"].to("low", mp.sinks.memory()), parts["rest"].to("rest", mp.sinks.memory())
>>> with mp.testing.TestDriver(app) as driver:
...     driver.send("prices", [3, 30])
...     driver.output("low"), driver.output("rest")
([3], [30])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from millpond.rows.rows import Rows
from millpond.steps.failure import FAULTS
from millpond.steps.operator import Operator, OperatorContext

REST = "rest"


@dataclass(frozen=True)
class Branch(Operator):
    """Calls the predicates. It has one named output per branch, and no main output."""

    verb = "branch"
    predicates: tuple[tuple[str, Callable[[Any], Any]], ...]

    def start(self, context: OperatorContext) -> RunningBranch:
        return RunningBranch(self, context)


@dataclass(frozen=True)
class Pick(Operator):
    """Stands for the rows of one branch."""

    verb = "branch"
    may_change_rows = False
    branch: str

    @property
    def port(self) -> str:
        return self.branch


class RunningBranch:
    """A branch, started in one task."""

    def __init__(self, operator: Branch, context: OperatorContext) -> None:
        self._predicates, self._context = operator.predicates, context

    def run(self, rows: Rows, side: int = 0) -> list[Rows]:
        rows = rows.as_objects()
        places: dict[str, list[int]] = {name: [] for name, _ in self._predicates}
        places[REST] = []
        for i, row in enumerate(rows.data):
            try:
                self._place(places, i, row)
            except FAULTS as error:
                self._context.fail(rows, i, row, error, partial(self._place, places, i, row))
        for name, chosen in places.items():
            if chosen:
                self._context.emit(name, rows.pick(chosen))
        return []

    def _place(self, places: dict[str, list[int]], i: int, row: Any) -> None:
        places[next((name for name, f in self._predicates if f(row)), REST)].append(i)
