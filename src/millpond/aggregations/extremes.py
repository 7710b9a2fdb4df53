"""`min`, `max` and `top`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millpond.aggregations.base import Aggregation, Field, incomparable, make_label, reader, show, single_value
from millpond.aggregations.columns import max_groups, min_groups
from millpond.aggregations.kinds import AccumulatorKind, register_kind
from millpond.aggregations.running_columns import run_max, run_min
from millpond.codec import copy_value
from millpond.errors import InvalidUse

_MIN = register_kind(
    AccumulatorKind(
        name="min",
        result=single_value,
        example=lambda: min(),
        is_pure=True,
        update_groups=min_groups,
        run_groups=run_min,
    )
)
_MAX = register_kind(
    AccumulatorKind(
        name="max",
        result=single_value,
        example=lambda: max(),
        is_pure=True,
        update_groups=max_groups,
        run_groups=run_max,
    )
)
_TOP = register_kind(
    AccumulatorKind(
        name="top", result=lambda acc: [copy_value(value) for _, value in acc], example=lambda: top(1 << 30)
    )
)


def min(field: Field = None) -> Aggregation:
    """The least value; nulls and NaN are skipped.

    >>> import millpond as mp
    >>> mp.min("price")
    mp.min('price')
    """
    return _extreme(_MIN, field, lambda new, old: new < old)


def max(field: Field = None) -> Aggregation:
    """The greatest value; nulls and NaN are skipped.

    >>> import millpond as mp
    >>> mp.max("price")
    mp.max('price')
    """
    return _extreme(_MAX, field, lambda new, old: new > old)


def top(k: int, field: Field = None, *, by: Field = None) -> Aggregation:
    """The k greatest values, or rows, greatest first; of equal ones those that arrived first.

    `by` is what is compared, a field or a function of the row; without it, the values themselves. Rows for which it
    is null are skipped.

    >>> import millpond as mp
    >>> mp.top(3, by="amount")
    mp.top(3, by='amount')
    """
    if type(k) is not int or k < 1:
        raise InvalidUse(f"top(k): expected how many to keep, a whole number from 1, got {k!r}")
    shown = [repr(k)] + [show(field)] * (field is not None) + [f"by={show(by)}"] * (by is not None)
    label = f"top({', '.join(shown)})"
    read = reader(label, field)
    rank = read if by is None else reader(label, by)

    def update(acc: list[Any], row: Any, time: Any) -> list[Any]:
        value, new = read(row), rank(row)
        if new is None or new != new:
            return acc
        place = len(acc)
        try:  # from the least up: most rows are below it; equal values came earlier and stay before
            while place and acc[place - 1][0] < new:
                place -= 1
        except TypeError as error:
            raise incomparable(label, new, error) from None
        if place < k:
            acc.insert(place, [copy_value(new), copy_value(value)])
        del acc[k:]
        return acc

    def merge(a: list[Any], b: list[Any]) -> list[Any]:
        return sorted(a + b, key=lambda pair: pair[0], reverse=True)[:k]

    return Aggregation("top", label, list, update, _TOP.result, merge, field=field)


def _extreme(kind: AccumulatorKind, field: Field, beats: Callable[[Any, Any], bool]) -> Aggregation:
    label = make_label(kind.name, field)
    read = reader(label, field)

    def better(acc: list[Any], value: Any) -> list[Any]:
        try:
            return [copy_value(value)] if not acc or beats(value, acc[0]) else acc
        except TypeError as error:
            raise incomparable(label, value, error) from None

    def update(acc: list[Any], row: Any, time: Any) -> list[Any]:
        value = read(row)
        return acc if value is None or value != value else better(acc, value)

    return Aggregation(
        kind.name, label, list, update, kind.result, lambda a, b: better(a, b[0]) if b else a, field=field
    )
