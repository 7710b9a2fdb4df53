"""`filter`: the rows for which a function is true go on.

>>> import millpond as mp
>>> app = mp.App("shop")
>>> out = app.stream("prices", mp.sources.rows([])).filter(lambda price: price > 1).to("out", mp.sinks.memory())
>>> with mp.testing.TestDriver(app) as driver:
...     driver.send("prices", [1, 2])
...     driver.output("out")
[2]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millpond.steps.verbs.row_by_row import RowOperator, RowOutput


@dataclass(frozen=True)
class Filter(RowOperator):
    verb = "filter"
    f: Callable[[Any], Any]

    def collect(self, output: RowOutput, i: int, row: Any, result: Any) -> None:
        if result:
            output.data.append(row)
            output.places.append(i)
