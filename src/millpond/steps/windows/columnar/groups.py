"""Columns into groups: the rows of each key and window, and their accumulators, updated with NumPy.

The results are exactly those of row by row: whole numbers stay exact, floats are added in the order of the rows. Where
that is impossible (a text among the numbers, whole numbers beyond 64 bits, …) the functions return None, and nothing
has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from millpond.aggregations import Aggregation
from millpond.rows.rows import Rows
from millpond.steps.windows.panes import Array

_MAX_SUM = 1 << 62


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


class GroupUpdate:
    """Updates the accumulators of groups with their rows."""

    def __init__(self, groups: Groups) -> None:
        self._groups, self._size = groups, len(groups.keys)

    def update(self, a: Aggregation, column: Column | None, before: Sequence[Any]) -> Sequence[Any] | None:
        """Return the accumulators of the groups after their rows; None if it has to be done row by row."""
        group, values = self._groups.group, None
        if column is not None:
            values, valid = column
            if self._groups.row is not None:
                values = values[self._groups.row]
                valid = None if valid is None else valid[self._groups.row]
            if a.kind in ("min", "max") and values.dtype == np.float64:
                there = ~np.isnan(values)
                valid = there if valid is None else valid & there
            if valid is not None and not valid.all():
                group, values = group[valid], values[valid]
        counts = np.bincount(group, minlength=self._size)
        if a.kind == "count":
            return [n + more for n, more in zip(before, counts.tolist(), strict=True)]
        assert values is not None
        if a.kind == "sum":
            return self._sums(group, values, counts, before)
        if a.kind == "mean":
            totals = self._sums(group, values, counts, [total for _, total in before])
            return (
                None
                if totals is None
                else [
                    [old[0] + more, total] if more else old
                    for old, more, total in zip(before, counts.tolist(), totals, strict=True)
                ]
            )
        return self._extremes(a.kind, group, values, counts, before)

    def _sums(self, group: Array, values: Array, counts: Array, before: Sequence[Any]) -> Sequence[Any] | None:
        types = set(map(type, before)) - {type(None)}
        if values.dtype == np.int64:
            if not types <= {int}:
                return None
            if len(values) and int(np.abs(values, dtype=np.float64).max()) * len(values) >= _MAX_SUM:
                return None
            sums = np.zeros(self._size, dtype=np.int64)
            np.add.at(sums, group, values)
            if not types:
                return sums.tolist() if counts.all() else _where_counted(counts, sums.tolist(), before)
            pairs = zip(before, sums.tolist(), counts.tolist(), strict=True)
            return [(more if old is None else old + more) if n else old for old, more, n in pairs]
        if not types <= {int, float}:
            return None
        try:  # start from the old sum and add one value after the other; adding -0.0 changes nothing
            totals = np.array([-0.0 if old is None else float(old) for old in before], dtype=np.float64)
        except OverflowError:
            return None
        with np.errstate(all="ignore"):
            np.add.at(totals, group, values)
        return totals.tolist() if counts.all() else _where_counted(counts, totals.tolist(), before)

    def _extremes(
        self, kind: str, group: Array, values: Array, counts: Array, before: Sequence[Any]
    ) -> Sequence[Any] | None:
        if values.dtype == np.float64:
            if (np.signbit(values) & (values == 0)).any():  # equal to 0.0, but not the same
                return None
            most, least = np.inf, -np.inf
        else:
            most, least = np.iinfo(np.int64).max, np.iinfo(np.int64).min
        found = np.full(self._size, most if kind == "min" else least, dtype=values.dtype)
        (np.minimum if kind == "min" else np.maximum).at(found, group, values)
        pairs = zip(before, found.tolist(), counts.tolist(), strict=True)
        try:
            if kind == "min":
                return [[new] if n and (not old or new < old[0]) else old for old, new, n in pairs]
            return [[new] if n and (not old or new > old[0]) else old for old, new, n in pairs]
        except TypeError:
            return None


def _where_counted(counts: Array, found: list[Any], before: Sequence[Any]) -> list[Any]:
    return [new if n else old for new, n, old in zip(found, counts.tolist(), before, strict=True)]
