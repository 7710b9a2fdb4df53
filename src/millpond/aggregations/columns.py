"""Aggregations over columns: the accumulators of many groups of rows, updated with NumPy.

The results are exactly those of row by row: whole numbers stay exact, floats are added in the order of the rows. Where
that is impossible (whole numbers beyond 64 bits, a stored Decimal, …) the functions return None, and nothing has
changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from millpond.rows.number_columns import Array

_MAX_SUM = 1 << 62


class GroupedValues:
    """The values of a field in some rows, by group. Rows without a value are left out.

    Without a field `values` is None, and each row counts.
    """

    def __init__(self, group: Array, values: Array | None, size: int) -> None:
        self.group = group  # of each value: which group
        self.values = values  # int64 or float64
        self.size = size  # how many groups there are

    @cached_property
    def counts(self) -> Array:
        """How many values each group has."""
        return np.bincount(self.group, minlength=self.size)

    def without_nan(self) -> GroupedValues:
        """Return the values that are numbers."""
        if self.values is None or self.values.dtype != np.float64 or not (is_nan := np.isnan(self.values)).any():
            return self
        return GroupedValues(self.group[~is_nan], self.values[~is_nan], self.size)


def count_groups(found: GroupedValues, before: Sequence[Any]) -> Sequence[Any]:
    """Return the accumulators of `count` after some rows."""
    return [n + more for n, more in zip(before, found.counts.tolist(), strict=True)]


def sum_groups(found: GroupedValues, before: Sequence[Any]) -> Sequence[Any] | None:
    """Return the accumulators of `sum` after some rows; None if it has to be done row by row."""
    values, counts = found.values, found.counts
    assert values is not None
    types = set(map(type, before)) - {type(None)}
    if values.dtype == np.int64:
        if not types <= {int}:
            return None
        if len(values) and int(np.abs(values, dtype=np.float64).max()) * len(values) >= _MAX_SUM:
            return None
        sums = np.zeros(found.size, dtype=np.int64)
        np.add.at(sums, found.group, values)
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
        np.add.at(totals, found.group, values)
    return totals.tolist() if counts.all() else _where_counted(counts, totals.tolist(), before)


def mean_groups(found: GroupedValues, before: Sequence[Any]) -> Sequence[Any] | None:
    """Return the accumulators of `mean` after some rows; None if it has to be done row by row."""
    totals = sum_groups(found, [total for _, total in before])
    if totals is None:
        return None
    news = zip(before, found.counts.tolist(), totals, strict=True)
    return [[old[0] + more, total] if more else old for old, more, total in news]


def min_groups(found: GroupedValues, before: Sequence[Any]) -> Sequence[Any] | None:
    """Return the accumulators of `min` after some rows; None if it has to be done row by row."""
    least = _extremes(found := found.without_nan(), np.minimum, +1)
    if least is None:
        return None
    try:
        news = zip(before, least, found.counts.tolist(), strict=True)
        return [[new] if n and (not old or new < old[0]) else old for old, new, n in news]
    except TypeError:
        return None


def max_groups(found: GroupedValues, before: Sequence[Any]) -> Sequence[Any] | None:
    """Return the accumulators of `max` after some rows; None if it has to be done row by row."""
    most = _extremes(found := found.without_nan(), np.maximum, -1)
    if most is None:
        return None
    try:
        news = zip(before, most, found.counts.tolist(), strict=True)
        return [[new] if n and (not old or new > old[0]) else old for old, new, n in news]
    except TypeError:
        return None


def _extremes(found: GroupedValues, better: np.ufunc, sign: int) -> list[Any] | None:
    """Return the least or the greatest value of each group; infinity of this sign, or near, if a group has no value."""
    values = found.values
    assert values is not None
    limits = np.iinfo(np.int64)
    worst = sign * np.inf if values.dtype == np.float64 else limits.max if sign > 0 else limits.min
    if values.dtype == np.float64 and (np.signbit(values) & (values == 0)).any():  # equal to 0.0, but not the same
        return None
    extremes = np.full(found.size, worst, dtype=values.dtype)
    better.at(extremes, found.group, values)
    return extremes.tolist()


def _where_counted(counts: Array, found: list[Any], before: Sequence[Any]) -> list[Any]:
    return [new if n else old for new, n, old in zip(found, counts.tolist(), before, strict=True)]
