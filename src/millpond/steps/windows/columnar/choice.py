"""Which store of windows a batch uses: pure decisions from facts that are known when its first rows come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from millpond.aggregations import Aggregation
from millpond.aggregations.kinds import reads_by_name, traits_of
from millpond.rows.rows import Rows

if TYPE_CHECKING:
    from millpond.steps.windows.window_step import WindowStep

StoreKind = Literal["rows", "columns"]


def choose_store(fields: tuple[str, ...] | None, rows: Rows | None) -> StoreKind:
    """Return the store for a batch from the fields that the step reads as columns, and the first rows of the batch.

    `fields` is None if the step has to look at each row; `rows` is None if the batch has no rows, so that only stored
    windows may close. Values of rows that are Python objects are seen when they are read: the columnar store then
    declines rows that it cannot add.
    """
    if fields is None or (rows is not None and rows.times is None):
        return "rows"
    if rows is not None and rows.form == "arrow" and not all(_is_number(rows.data.schema, name) for name in fields):
        return "rows"
    return "columns"


def fields_as_columns(step: WindowStep) -> tuple[str, ...] | None:
    """Return the fields that a window step reads as columns; None if its rows have to be looked at one by one."""
    can_use_columns = (
        step.window.is_on_grid
        and not step.trigger.causes
        and step.clock == "stream"
        and not step.takes_back
        and all(map(is_vectorised, step.aggregations.values()))
    )
    if not can_use_columns:
        return None
    return tuple({a.field: None for a in step.aggregations.values() if isinstance(a.field, str)})


def is_vectorised(a: Aggregation) -> bool:
    """Return whether an aggregation can be updated by columns: it reads a field by name, or counts rows."""
    return traits_of(a).update_groups is not None and reads_by_name(a)


def _is_number(schema: pa.Schema, name: str) -> bool:
    place = schema.get_field_index(name)
    return place >= 0 and bool(pa.types.is_integer(schema.types[place]) or pa.types.is_floating(schema.types[place]))
