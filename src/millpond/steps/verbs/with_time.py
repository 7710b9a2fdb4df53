"""`with_time`: a function gives each row its event time.

Before the first `key_by` the newest time also moves the watermark of the source that the rows come from.

>>> import millpond as mp
>>> app = mp.App("shop")
>>> orders = app.stream("orders", mp.sources.rows([])).with_time(lambda order: order["at"])
>>> per_ten = orders.key_by("who").window("per-ten", mp.tumbling(10), grace=0)
>>> out = per_ten.aggregate(n=mp.count()).to("out", mp.sinks.memory())
>>> with mp.testing.TestDriver(app) as driver:
...     driver.send("orders", [{"who": "ann", "at": 3}, {"who": "ann", "at": 4}, {"who": "ann", "at": 11}])
...     [row["n"] for row in driver.output("out")]
[2]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millpond.rows.rows import BadInput, Rows, Times
from millpond.steps.operator import OperatorContext
from millpond.steps.verbs.row_by_row import RowOperator, RowOutput
from millpond.timing import as_time, ticks, unit_of


@dataclass(frozen=True)
class WithTime(RowOperator):
    verb = "with_time"
    passes_rows_unchanged = True
    sets_times = True
    f: Callable[[Any], Any]

    def collect(self, output: RowOutput, i: int, row: Any, result: Any) -> None:
        times = output.times
        try:
            time = as_time(result)
        except ValueError as error:
            raise BadInput(f"with_time: {error}") from error
        if times and unit_of(time) != unit_of(times[0]):
            raise BadInput(f"with_time: expected a time like those before it, such as {times[0]}, got {time}")
        ticks(time)  # raises if the time is out of range
        times.append(time)
        output.data.append(row)
        output.places.append(i)

    def finish(self, output: RowOutput, context: OperatorContext) -> Rows:
        rows, times = output.rows(), output.times
        if times:
            rows.times = Times([ticks(time) for time in times], unit_of(times[0]))
            if context.report_times is not None:
                context.report_times(rows.times)
        return rows
