"""Columns into windows: counts, sums, means and extremes of tumbling and hopping windows, without a look at each row.

Rows are put into groups, one for each key and window, by NumPy; then each group's accumulators are brought up to date.
What comes out is the very same as row by row: whole numbers stay exact, floats are added in the order of the rows. What
cannot be done so (a text among the numbers, whole numbers beyond 64 bits, …) is refused, before anything has changed,
and is done row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from millpond.aggregations import Aggregation
from millpond.rows.rows import Rows

Array = np.ndarray[Any, Any]

KINDS = frozenset({"count", "sum", "mean", "min", "max"})
_LARGEST = 1 << 62


class Refused(Exception):
    """These rows have to be looked at one by one."""


class Column(NamedTuple):
    """A field of some rows, as numbers."""

    values: Array  # int64 or float64
    valid: Array | None  # where there is a value; nothing where there is one everywhere


class Groups(NamedTuple):
    """Rows by key and window. A row that is in several windows stands there several times, in the order of the rows."""

    keys: Array  # of each group: which key
    windows: Array  # of each group: the number of its window
    group: Array  # of each place: which group
    row: Array | None  # of each place: which row; nothing where the places are the rows


def can_read(aggregations: dict[str, Aggregation]) -> bool:
    """Whether aggregations go by columns at all."""
    return all(
        a.kind in KINDS and (type(a.field) is str or (a.field is None and a.kind == "count"))
        for a in aggregations.values()
    )


def column_of(rows: Rows, field: str) -> Column:
    """A field of the rows, or `Refused`."""
    if rows.form == "arrow":
        return _arrow_column(rows.data, field)
    try:
        values = [row[field] for row in rows.data]
    except (KeyError, TypeError, IndexError):
        raise Refused from None  # a row without the field, or no dict at all: one by one it is told which
    types = set(map(type, values))
    valid = None
    if type(None) in types:
        types.discard(type(None))
        valid = np.array([value is not None for value in values], dtype=bool)
        values = [0 if value is None else value for value in values]
    if types not in ({int}, {float}, set()) or not set(map(type, rows.data)) <= {dict}:
        raise Refused
    try:
        return Column(np.array(values, dtype=np.float64 if types == {float} else np.int64), valid)
    except OverflowError:
        raise Refused from None


def _arrow_column(table: pa.Table, field: str) -> Column:
    if field not in table.column_names:
        raise Refused
    column = table.column(field)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise Refused
    valid = None
    if column.null_count:
        valid = np.asarray(column.is_valid())
        column = column.fill_null(0)
    try:
        column = column.cast(pa.int64() if pa.types.is_integer(column.type) else pa.float64())
    except pa.ArrowInvalid:
        raise Refused from None
    return Column(np.asarray(column), valid)


def grouped(keys: Array, count: int, numbers: Array, row: Array | None) -> Groups:
    """Places put together by key, of which there are `count`, and window."""
    first = int(numbers.min())
    width = int(numbers.max()) - first + 1
    if count * width < 1 << 62:
        places = keys * width + (numbers - first)
        if count * width <= 8 * len(keys) + 1000:  # few enough to have a room for each
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
    groups = grouped(keys, count, numbers, row)
    return groups._replace(windows=windows[groups.windows])


class Totals:
    """What an aggregation makes of a column, group by group."""

    def __init__(self, groups: Groups) -> None:
        self._groups, self._size = groups, len(groups.keys)

    def bring_up(self, a: Aggregation, column: Column | None, before: Sequence[Any]) -> Sequence[Any]:
        """The accumulators of the groups with their rows in them; before, they were these."""
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
            return [
                [old[0] + more, total] if more else old
                for old, more, total in zip(before, counts.tolist(), totals, strict=True)
            ]
        return self._extremes(a.kind, group, values, counts, before)

    def _sums(self, group: Array, values: Array, counts: Array, before: Sequence[Any]) -> Sequence[Any]:
        types = set(map(type, before)) - {type(None)}
        if values.dtype == np.int64:
            if not types <= {int}:
                raise Refused
            if len(values) and int(np.abs(values, dtype=np.float64).max()) * len(values) >= _LARGEST:
                raise Refused
            sums = np.zeros(self._size, dtype=np.int64)
            np.add.at(sums, group, values)
            if not types:
                return sums.tolist() if counts.all() else _where(counts, sums.tolist(), before)
            pairs = zip(before, sums.tolist(), counts.tolist(), strict=True)
            return [(more if old is None else old + more) if n else old for old, more, n in pairs]
        if not types <= {int, float}:
            raise Refused
        try:  # from the old sum on, one value after the other: -0.0 is what changes nothing
            totals = np.array([-0.0 if old is None else float(old) for old in before], dtype=np.float64)
        except OverflowError:
            raise Refused from None
        with np.errstate(all="ignore"):
            np.add.at(totals, group, values)
        return totals.tolist() if counts.all() else _where(counts, totals.tolist(), before)

    def _extremes(self, kind: str, group: Array, values: Array, counts: Array, before: Sequence[Any]) -> Sequence[Any]:
        if values.dtype == np.float64:
            if (np.signbit(values) & (values == 0)).any():  # equal to 0.0, and yet not the same
                raise Refused
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
            raise Refused from None


def _where(counts: Array, found: list[Any], before: Sequence[Any]) -> list[Any]:
    return [new if n else old for new, n, old in zip(found, counts.tolist(), before, strict=True)]
