"""`map_batch`: a function over many rows at once, as a table.

>>> import millpond as mp
>>> import pyarrow.compute as pc
>>> def with_tax(orders):  # a pyarrow.Table
...     return orders.append_column("gross", pc.multiply(orders["net"], 1.25))
>>> app = mp.App("shop")
>>> out = app.stream("orders", mp.sources.rows([])).map_batch(with_tax).to("out", mp.sinks.memory())
>>> with mp.testing.TestDriver(app) as driver:
...     driver.send("orders", [{"net": 100}, {"net": 20}])
...     driver.output("out")
[{'net': 100, 'gross': 125.0}, {'net': 20, 'gross': 25.0}]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from millpond.errors import InvalidUse
from millpond.rows.arrow_objects import raw_row, unreadable_rows
from millpond.rows.arrow_tables import TableUse
from millpond.rows.frame_kinds import FrameKind
from millpond.rows.rows import BadInput, Rows
from millpond.steps.failure import FAULTS, OnError
from millpond.steps.operator import Operator, OperatorContext
from millpond.steps.verbs.table_calls import (
    call_with_retries,
    checked_table,
    keys_of_outputs,
    panics_as_errors,
    table_of,
)

_ROWS_TO_MAP = TableUse("map_batch", "a column", "call map() instead of map_batch()", is_exact=True)


@dataclass(frozen=True)
class MapBatch(Operator):
    """Calls a function with the rows that come together, as one table."""

    verb = "map_batch"
    may_change_rows = False  # a table shares no Python objects with the rows that it is made of
    f: Callable[[Any], Any]
    frames: FrameKind  # what the function takes and returns
    on_error: OnError

    @property
    def own_policy(self) -> OnError:
        return self.on_error

    def start(self, context: OperatorContext) -> RunningMapBatch:
        return RunningMapBatch(self, context)


class RunningMapBatch:
    """A `map_batch`, started in one task."""

    def __init__(self, operator: MapBatch, context: OperatorContext) -> None:
        self._f, self._frames, self._context = operator.f, operator.frames, context

    def run(self, rows: Rows, side: int = 0) -> Rows:
        """Return the rows of the table that the function returned; none if it failed, because all rows fail then."""
        context = self._context
        try:
            table = call_with_retries(context.on_error, context.clock, partial(self._call, rows))
        except FAULTS as error:
            context.failures.handle_together(context.on_error, context.name, error, rows)
            return rows.pick([])
        return self._drop_unreadable(_with_table(rows, table))

    def _call(self, rows: Rows) -> pa.Table:
        given = table_of(rows, _ROWS_TO_MAP)
        with panics_as_errors():
            found = self._frames.to_arrow(self._f(self._frames.from_arrow(given)))
        table = checked_table(found)
        _check_count(rows, len(table))
        return table

    def _drop_unreadable(self, rows: Rows) -> Rows:
        """Let rows fail here that cannot become Python objects, and not in the step that needs them."""
        bad = unreadable_rows(rows.data)
        if not bad:
            return rows
        for i, why in sorted(bad.items()):
            self._context.fail(rows, i, raw_row(rows.data, i), BadInput(f"map_batch returned a row with {why}"))
        return rows.pick([i for i in range(len(rows)) if i not in bad])


def _check_count(rows: Rows, count: int) -> None:
    if count == len(rows) or (rows.keys is None and rows.times is None):
        return
    what = "key" if rows.keys is not None else "event time"
    raise InvalidUse(
        f"expected the function to return a row for each of the {len(rows)} rows that it was given, in their order, "
        f"because each of them has its {what}; got {count} rows. Return a column that says which rows to leave out, "
        "and use filter() after map_batch()."
    )


def _with_table(rows: Rows, table: pa.Table) -> Rows:
    """Return the rows of a table in the place of those that it was made of, with their order, keys and times."""
    order = np.asarray(rows.order, dtype=np.int64)
    if len(table) != len(rows):  # spread evenly, because rows without a key go to partitions by their order
        order = order[np.arange(len(table)) * len(rows) // max(1, len(table))]
    return Rows(table, order, form="arrow", times=rows.times, keys=keys_of_outputs(rows.keys))
