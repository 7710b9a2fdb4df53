"""`flat_map`: each row becomes any number of rows.

>>> import millpond as mp
>>> app = mp.App("words")
>>> out = app.stream("lines", mp.sources.rows([])).flat_map(str.split).to("out", mp.sinks.memory())
>>> with mp.testing.TestDriver(app) as driver:
...     driver.send("lines", ["to be", "or not"])
...     driver.output("out")
['to', 'be', 'or', 'not']
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millpond.rows.rows import Rows
from millpond.steps.base import as_row_list
from millpond.steps.operator import OperatorContext
from millpond.steps.verbs.row_by_row import RowOperator, RowOutput


@dataclass(frozen=True)
class FlatMap(RowOperator):
    verb = "flat_map"
    f: Callable[[Any], Any]

    def collect(self, output: RowOutput, i: int, row: Any, result: Any) -> None:
        found = as_row_list(result)
        output.data.extend(found)
        output.places.extend([i] * len(found))

    def finish(self, output: RowOutput, context: OperatorContext) -> Rows:
        return output.picked_rows()
