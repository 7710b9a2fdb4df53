"""Fields of rows as columns of numbers, for NumPy.

A field is read if it has numbers of one type in all rows, or nulls. Any other (a text among the numbers, whole numbers
beyond 64 bits, a row without the field, …) is None: such rows have to be looked at one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from millpond.rows.fields import read_json_fields
from millpond.rows.rows import Rows

Array = np.ndarray[Any, Any]


class Column(NamedTuple):
    """A field of some rows, as numbers."""

    values: Array  # int64 or float64
    valid: Array | None  # where there is a value; None if there is one everywhere


def read_columns(rows: Rows, fields: Sequence[str]) -> dict[str, Column] | None:
    """Return fields of the rows by name; None if one is missing in a row, or is not a column of numbers of one type."""
    columns: dict[str, Column] = {}
    if not fields:
        return columns
    for field, column in zip(fields, _read_fields(rows, fields), strict=False):
        if column is None:
            return None
        columns[field] = column
    return columns


def _read_fields(rows: Rows, fields: Sequence[str]) -> Iterable[Column | None]:
    """Yield the columns of some fields, as far as they are needed."""
    if rows.form == "arrow":
        return (_read_arrow(rows.data, field) for field in fields)
    values = _json_values(rows.data, fields) if rows.form == "json" else _object_values(rows.objects(), fields)
    return [None] if values is None else map(_as_column, values)


def _json_values(lines: list[bytes], fields: Sequence[str]) -> Sequence[Sequence[Any]] | None:
    """Return the values of each field; None if a line lacks one, or is no object."""
    try:
        found = read_json_fields(lines, list(fields))
    except Exception:
        return None
    return [found] if len(fields) == 1 else list(zip(*found, strict=True))


def _object_values(rows: list[Any], fields: Sequence[str]) -> Sequence[Sequence[Any]] | None:
    """Return the values of each field; None if a row lacks one, or is no dict."""
    if not set(map(type, rows)) <= {dict}:
        return None
    try:
        return [[row[field] for row in rows] for field in fields]
    except KeyError:
        return None


def _as_column(values: Sequence[Any]) -> Column | None:
    types = set(map(type, values))
    valid = None
    if type(None) in types:
        types.discard(type(None))
        valid = np.array([value is not None for value in values], dtype=bool)
        values = [0 if value is None else value for value in values]
    if types not in ({int}, {float}, set()):
        return None
    try:
        return Column(np.array(values, dtype=np.float64 if types == {float} else np.int64), valid)
    except OverflowError:
        return None


def _read_arrow(table: pa.Table, field: str) -> Column | None:
    if field not in table.column_names:
        return None
    column = table.column(field)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return None
    valid = None
    if column.null_count:
        valid = np.asarray(column.is_valid())
        column = column.fill_null(0)
    try:
        column = column.cast(pa.int64() if pa.types.is_integer(column.type) else pa.float64())
    except pa.ArrowInvalid:  # beyond 64 bits
        return None
    return Column(np.asarray(column), valid)
