"""`inspect`: a function sees each row, and the row goes on.

>>> import millpond as mp
>>> app = mp.App("shop")
>>> out = app.stream("prices", mp.sources.rows([])).inspect(print).to("out", mp.sinks.memory())
>>> with mp.testing.TestDriver(app) as driver:
...     driver.send("prices", [1, 2])
...     driver.output("out")
1
2
[1, 2]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millpond.steps.verbs.row_by_row import RowOperator, RowOutput


@dataclass(frozen=True)
class Inspect(RowOperator):
    verb = "inspect"
    passes_rows_unchanged = True
    f: Callable[[Any], Any]

    def collect(self, output: RowOutput, i: int, row: Any, result: Any) -> None:
        output.data.append(row)
        output.places.append(i)
