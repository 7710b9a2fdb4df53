"""`map`: each row becomes what a function returns for it.

>>> import millpond as mp
>>> app = mp.App("shop")
>>> out = app.stream("prices", mp.sources.rows([])).map(lambda price: price * 2).to("out", mp.sinks.memory())
>>> with mp.testing.TestDriver(app) as driver:
...     driver.send("prices", [1, 2])
...     driver.output("out")
[2, 4]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millpond.steps.verbs.row_by_row import RowOperator, RowOutput


@dataclass(frozen=True)
class Map(RowOperator):
    verb = "map"
    f: Callable[[Any], Any]

    def collect(self, output: RowOutput, i: int, row: Any, result: Any) -> None:
        output.data.append(result)
        output.places.append(i)
