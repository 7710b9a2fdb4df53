"""`union`: the rows of several streams, without their keys.

>>> import millpond as mp
>>> app = mp.App("shop")
>>> web, phone = app.stream("web", mp.sources.rows([])), app.stream("phone", mp.sources.rows([]))
>>> out = web.union(phone).to("out", mp.sinks.memory())
>>> with mp.testing.TestDriver(app) as driver:
...     driver.send({"web": ["tea"], "phone": ["pen"]})
...     driver.output("out")
['tea', 'pen']
"""

from __future__ import annotations

from dataclasses import dataclass

from millpond.rows.rows import Rows
from millpond.steps.operator import Operator, OperatorContext


@dataclass(frozen=True)
class Union(Operator):
    verb = "union"
    passes_rows_unchanged = True

    def start(self, context: OperatorContext) -> Union:
        return self

    def run(self, rows: Rows, side: int = 0) -> Rows:
        return Rows(rows.data, rows.order, form=rows.form, times=rows.times)
