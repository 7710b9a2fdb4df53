"""Running aggregates over columns: an accumulator per key, and a result per row.

The results are exactly those of row by row: whole numbers stay exact, and floats are added in the order of the rows.
Where that is impossible, because whole numbers grow beyond 64 bits or the results of a column would be of several
types, the functions return None, and nothing has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from millpond.rows.number_columns import Array, Column

MIN_KEYS_AT_ONCE = 256  # for fewer keys, a call of NumPy per key is faster than one per row of a key
_MAX_TOTAL = 1 << 62
_MAX_EXACT_FLOAT = 1 << 53  # whole numbers up to this one are floats without rounding


class RunningResults(NamedTuple):
    """What one aggregation makes of some rows."""

    results: pa.Array  # of each row
    after: list[Any]  # of each key that has rows: its accumulator


class KeyGroups:
    """Rows by key, laid out so that one call of NumPy adds the next row to the accumulators of many keys.

    First come the first rows of all keys, then the second rows, and so on, as long as enough keys have one. Then come
    the remaining rows of the keys that have the most rows, key by key.
    """

    def __init__(self, index: Array, count: int) -> None:
        """`index` is the key of each row, from 0 to `count`. There must be a row."""
        self.rows = len(index)
        counts = np.bincount(index, minlength=count)
        by_size = _stable_order(counts.max() - counts)
        self.keys = by_size[: np.count_nonzero(counts)]  # those that have rows, the ones with most rows first
        sizes = counts[self.keys]
        self.largest = int(sizes[0])
        place = np.empty(count, np.int64)
        place[by_size] = np.arange(count)
        by_key = _stable_order(place[index])
        starts = np.cumsum(sizes) - sizes
        self.first_rows = by_key[starts]
        rank = np.arange(len(index)) - np.repeat(starts, sizes)
        ranks = int(sizes[MIN_KEYS_AT_ONCE]) if len(sizes) > MIN_KEYS_AT_ONCE else 0
        self._layout = by_key[_stable_order(np.minimum(rank, ranks))]
        widths = np.searchsorted(-sizes, -np.arange(ranks), side="left")  # how many keys have a row of each rank
        self._ranks = _slices(0, widths)
        self._tails = _slices(int(widths.sum()), sizes[: np.searchsorted(-sizes, -ranks, side="left")] - ranks)

    def accumulate(self, add: np.ufunc, values: Array, first: Array) -> tuple[Array, Array]:
        """Add the value of each row to the accumulator of its key, in order, beginning with `first`.

        Return the accumulator after each row, and the last one of each key.
        """
        laid, last = values[self._layout], first.copy()
        with np.errstate(all="ignore"):
            for rows in self._ranks:
                now = laid[rows]
                add(last[: len(now)], now, out=now)
                last[: len(now)] = now
            for key, rows in enumerate(self._tails):
                tail = laid[rows]
                tail[0] = add(last[key], tail[0])
                tail[:] = add.accumulate(tail)
                last[key] = tail[-1]
        running = np.empty_like(laid)
        running[self._layout] = laid
        return running, last


def run_count(groups: KeyGroups, column: Column | None, before: Sequence[Any]) -> RunningResults | None:
    """Return the results of `count`, and its accumulators; None if it has to be done row by row."""
    first = _int_array(before)
    if first is None:
        return None
    counted = np.ones(groups.rows, np.int64) if column is None else _is_there(column)
    running, last = groups.accumulate(np.add, counted, first)
    return RunningResults(pa.array(running), last.tolist())


def run_sum(groups: KeyGroups, column: Column | None, before: Sequence[Any]) -> RunningResults | None:
    """Return the results of `sum`, and its accumulators; None if it has to be done row by row."""
    assert column is not None
    is_int = column.values.dtype == np.int64
    if not is_int and _starts_without(groups, column, before, (type(None), int)):
        return None  # the result is a whole number until a float comes
    found = _sums(groups, column, before, _MAX_TOTAL)
    return None if found is None else RunningResults(pa.array(found[0]), found[1])


def run_mean(groups: KeyGroups, column: Column | None, before: Sequence[Any]) -> RunningResults | None:
    """Return the results of `mean`, and its accumulators; None if it has to be done row by row."""
    assert column is not None
    counts = _int_array([count for count, _ in before])
    totals = [total for _, total in before]
    if column.values.dtype != np.int64 and _starts_without(groups, column, totals, (int,)):
        return None
    found = _sums(groups, column, totals, _MAX_EXACT_FLOAT)  # beyond, Python divides more exactly than NumPy
    if found is None or counts is None:
        return None
    running, last = groups.accumulate(np.add, _is_there(column), counts)
    with np.errstate(all="ignore"):
        means = found[0] / running
    after = [[count, total] for count, total in zip(last.tolist(), found[1], strict=True)]
    return RunningResults(pa.array(means, mask=running == 0), after)


def run_min(groups: KeyGroups, column: Column | None, before: Sequence[Any]) -> RunningResults | None:
    """Return the results of `min`, and its accumulators; None if it has to be done row by row."""
    return _run_extremes(np.minimum, groups, column, before)


def run_max(groups: KeyGroups, column: Column | None, before: Sequence[Any]) -> RunningResults | None:
    """Return the results of `max`, and its accumulators; None if it has to be done row by row."""
    return _run_extremes(np.maximum, groups, column, before)


def _sums(groups: KeyGroups, column: Column, before: Sequence[Any], limit: int) -> tuple[Array, list[Any]] | None:
    """Return the sum after each row, and that of each key; None if sums of whole numbers may reach `limit`."""
    values, valid = column
    types = set(map(type, before)) - {type(None)}
    if values.dtype == np.int64:
        first = _int_array([0 if old is None else old for old in before])
        if first is None or _largest(values) * groups.largest + _largest(first) >= limit:
            return None
    else:
        if not types <= {int, float}:
            return None
        try:  # adding -0.0 changes nothing, not even another -0.0
            first = np.array([-0.0 if old is None else float(old) for old in before], np.float64)
        except OverflowError:
            return None
        values = values if valid is None else np.where(valid, values, -0.0)
    running, last = groups.accumulate(np.add, values, first)
    after = last.tolist()
    if valid is not None:
        _, counts = groups.accumulate(np.add, _is_there(column), np.zeros(len(first), np.int64))
        after = [new if count else old for new, count, old in zip(after, counts.tolist(), before, strict=True)]
    return running, after


def _run_extremes(
    better: np.ufunc, groups: KeyGroups, column: Column | None, before: Sequence[Any]
) -> RunningResults | None:
    assert column is not None
    values, valid = column
    kept = [old[0] for old in before if old]
    if not set(map(type, kept)) <= {int if values.dtype == np.int64 else float}:
        return None
    worst: Any
    if values.dtype == np.int64:
        ends = np.iinfo(np.int64)
        worst = ends.max if better is np.minimum else ends.min
    else:
        worst = np.inf if better is np.minimum else -np.inf
        is_number = ~np.isnan(values)
        valid = is_number if valid is None else valid & is_number
    try:
        first = np.array([old[0] if old else worst for old in before], values.dtype)
    except OverflowError:
        return None
    values = values if valid is None else np.where(valid, values, worst)
    if values.dtype == np.float64 and any((np.signbit(each) & (each == 0)).any() for each in (values, first)):
        return None  # -0.0 is equal to 0.0, but not the same
    running, last = groups.accumulate(better, values, first)
    seen, ever = groups.accumulate(np.add, _is_there(Column(values, valid)), np.array(list(map(len, before)), np.int64))
    after: list[Any] = [[value] if n else [] for value, n in zip(last.tolist(), ever.tolist(), strict=True)]
    return RunningResults(pa.array(running, mask=seen == 0), after)


def _starts_without(groups: KeyGroups, column: Column, before: Sequence[Any], types: tuple[type, ...]) -> bool:
    """Whether a key has no value in its first row, and an accumulator of one of these types."""
    if column.valid is None:
        return False
    has_none = ~column.valid[groups.first_rows]
    return any(isinstance(before[key], types) for key in np.flatnonzero(has_none).tolist())


def _is_there(column: Column) -> Array:
    """Return 1 for each row that has a value, and 0 for the others."""
    return np.ones(len(column.values), np.int64) if column.valid is None else column.valid.astype(np.int64)


def _int_array(numbers: Sequence[Any]) -> Array | None:
    """Return whole numbers as an array; None if some are of another type, or too large."""
    if not set(map(type, numbers)) <= {int}:
        return None
    try:
        found = np.array(numbers, np.int64)
    except OverflowError:
        return None
    return found if _largest(found) < _MAX_TOTAL else None


def _largest(values: Array) -> int:
    """Return the largest absolute value; 0 if there are none."""
    return max(int(values.max()), -int(values.min())) if len(values) else 0


def _slices(start: int, lengths: Array) -> list[slice]:
    """Return slices of these lengths, one after the other."""
    ends = (start + np.cumsum(lengths)).tolist()
    return [slice(end - length, end) for end, length in zip(ends, lengths.tolist(), strict=True)]


def _stable_order(numbers: Array) -> Array:
    """Return the order that sorts small numbers; equal ones stay as they are.

    NumPy sorts numbers of 16 bits in linear time, larger ones not: those are sorted by their lower half first.
    """
    order = np.argsort(numbers.astype(np.uint16), kind="stable")
    if len(numbers) and int(numbers.max()) >= 1 << 16:
        order = order[np.argsort((numbers >> 16).astype(np.uint16)[order], kind="stable")]
    return order
