"""Columns into groups: the fields of rows as numbers, and the rows of each key and window.

A field that is no column of numbers (a text among them, whole numbers beyond 64 bits, …) is read as None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from millpond.aggregations.columns import Array, GroupedValues
from millpond.rows.rows import Rows


class Column(NamedTuple):
    """A field of some rows, as numbers."""

    values: Array  # int64 or float64
    valid: Array | None  # where there is a value; None if there is one everywhere


class Groups(NamedTuple):
    """Rows by key and window. A row that is in several windows has several places, in the order of the rows."""

    keys: Array  # of each group: which key
    windows: Array  # of each group: the number of its window
    group: Array  # of each place: which group
    row: Array | None  # of each place: which row; None if the places are the rows

    def values_of(self, column: Column | None) -> GroupedValues:
        """Return a column of the rows by group; None stands for the rows themselves."""
        group, size = self.group, len(self.keys)
        if column is None:
            return GroupedValues(group, None, size)
        values, valid = column
        if self.row is not None:
            values = values[self.row]
            valid = None if valid is None else valid[self.row]
        if valid is not None and not valid.all():
            group, values = group[valid], values[valid]
        return GroupedValues(group, values, size)


def read_columns(rows: Rows, fields: Sequence[str]) -> dict[str, Column] | None:
    """Return fields of the rows by name; None if one of them is not a column of numbers."""
    columns = {}
    for field in fields:
        column = read_column(rows, field)
        if column is None:
            return None
        columns[field] = column
    return columns


def read_column(rows: Rows, field: str) -> Column | None:
    """Return a field of the rows; None if it is missing in a row, or is not a column of numbers of one type."""
    if rows.form == "arrow":
        return _read_arrow(rows.data, field)
    try:
        values = [row[field] for row in rows.data]
    except (KeyError, TypeError, IndexError):
        return None
    types = set(map(type, values))
    valid = None
    if type(None) in types:
        types.discard(type(None))
        valid = np.array([value is not None for value in values], dtype=bool)
        values = [0 if value is None else value for value in values]
    if types not in ({int}, {float}, set()) or not set(map(type, rows.data)) <= {dict}:
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


def group_rows(keys: Array, count: int, numbers: Array, row: Array | None) -> Groups:
    """Group places by key, of which there are `count`, and window number."""
    first = int(numbers.min())
    width = int(numbers.max()) - first + 1
    if count * width < 1 << 62:
        places = keys * width + (numbers - first)
        if count * width <= 8 * len(keys) + 1000:  # few enough for an array with an element for each
            used = np.zeros(count * width, dtype=bool)
            used[places] = True
            found = np.flatnonzero(used)
            room = np.empty(count * width, dtype=np.int64)
            room[found] = np.arange(len(found))
            group = room[places]
        else:
            found, group = np.unique(places, return_inverse=True)
        return Groups(found // width, found % width + first, group, row)
    windows, numbers = np.unique(numbers, return_inverse=True)
    groups = group_rows(keys, count, numbers, row)
    return groups._replace(windows=windows[groups.windows])
