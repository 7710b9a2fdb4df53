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
from typing import Any

import numpy as np
import pyarrow as pa

from millpond.errors import InvalidUse
from millpond.rows.arrow_objects import raw_row, unreadable_rows
from millpond.rows.arrow_tables import rows_to_table
from millpond.rows.arrow_types import readable_table
from millpond.rows.frame_kinds import FRAME_USE, FrameKind
from millpond.rows.rows import BadInput, Keys, Rows
from millpond.steps.failure import FAULTS, OnError, Retry
from millpond.steps.operator import Operator, OperatorContext


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
        policy = context.on_error
        self._pauses = [policy.backoff * 2**n for n in range(policy.times)] if isinstance(policy, Retry) else []

    def run(self, rows: Rows, side: int = 0) -> Rows:
        """Return the rows of the table that the function returned; none if it failed, because all rows fail then."""
        for pause in (*self._pauses, None):
            try:
                table = self._call(rows)
                break
            except FAULTS as error:
                if pause is None:
                    self._context.failures.handle_together(self._context.on_error, self._context.name, error, rows)
                    return rows.pick([])
                self._context.clock.sleep(pause)
        return self._drop_unreadable(_with_table(rows, table))

    def _call(self, rows: Rows) -> pa.Table:
        given = rows.data if rows.form == "arrow" else rows_to_table(rows.objects(), FRAME_USE)
        try:
            table = self._frames.to_arrow(self._f(self._frames.from_arrow(given)))
        except BaseException as error:
            if isinstance(error, (*FAULTS, KeyboardInterrupt)):
                raise
            raise RuntimeError(f"{type(error).__name__}: {error}") from error  # a panic of a library written in Rust
        _check_columns(table)
        _check_count(rows, len(table))
        return readable_table(table.replace_schema_metadata(None))

    def _drop_unreadable(self, rows: Rows) -> Rows:
        """Let rows fail here that cannot become Python objects, and not in the step that needs them."""
        bad = unreadable_rows(rows.data)
        if not bad:
            return rows
        for i, why in sorted(bad.items()):
            self._context.fail(rows, i, raw_row(rows.data, i), BadInput(f"map_batch returned a row with {why}"))
        return rows.pick([i for i in range(len(rows)) if i not in bad])


def _check_columns(table: pa.Table) -> None:
    names = table.column_names
    if not names:
        raise InvalidUse("expected the function to return a table with columns, got one without any")
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise InvalidUse(
            f"expected the function to return columns with different names, got {', '.join(map(repr, twice))} more "
            "than once. Rename or drop one of them."
        )


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
    keys = rows.keys
    if keys is not None and keys.field is not None:  # the function may have changed the column that holds the keys
        keys = Keys(keys.encoded, keys.array, keys.objects)
    return Rows(table, order, form="arrow", times=rows.times, keys=keys)
