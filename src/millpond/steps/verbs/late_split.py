"""`on_time` and `late`: rows split by the watermark with which their batch began.

>>> import millpond as mp
>>> app = mp.App("shop")
>>> orders = app.stream("orders", mp.sources.rows([]), timestamp="at")
>>> late = orders.late.to("late", mp.sinks.memory())
>>> with mp.testing.TestDriver(app) as driver:
...     driver.send("orders", [{"at": 10}])
...     driver.send("orders", [{"at": 11}, {"at": 9}])
...     driver.output("late")
[{'at': 9}]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from millpond.rows.rows import Rows
from millpond.steps.operator import Operator, OperatorContext


@dataclass(frozen=True)
class LateSplit(Operator):
    """Passes the rows that are older than the watermark, or all others."""

    verb = "late"
    passes_rows_unchanged = True
    late: bool

    @property
    def name(self) -> str:
        return "late" if self.late else "on_time"

    @property
    def label(self) -> str:
        return self.name

    def start(self, context: OperatorContext) -> RunningLateSplit:
        return RunningLateSplit(self.late, context.watermark)


class RunningLateSplit:
    """A split, started in one task."""

    def __init__(self, late: bool, watermark: int | None) -> None:
        self._late, self._watermark = late, watermark

    def run(self, rows: Rows, side: int = 0) -> Rows:
        if rows.times is None or self._watermark is None:
            return rows.pick([]) if self._late else rows
        is_late = rows.times.values < self._watermark
        chosen = np.flatnonzero(is_late if self._late else ~is_late)
        return rows if len(chosen) == len(rows) else rows.pick(chosen.tolist())
