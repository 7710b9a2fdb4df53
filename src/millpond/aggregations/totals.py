"""`count`, `sum` and `mean`."""

from __future__ import annotations

from datetime import timedelta
from decimal import Context, Decimal
from typing import Any

from millpond.aggregations.base import Aggregation, Field, make_label, reader, repr_with_type
from millpond.aggregations.columns import count_groups, mean_groups, sum_groups
from millpond.aggregations.kinds import AccumulatorKind, register_kind
from millpond.aggregations.running_columns import run_count, run_mean, run_sum
from millpond.errors import InvalidUse

_COUNT = register_kind(
    AccumulatorKind(
        name="count",
        result=lambda acc: acc,
        example=lambda: count(),
        is_pure=True,
        is_own_result=True,
        update_groups=count_groups,
        counts_rows=True,
        run_groups=run_count,
    )
)
_SUM = register_kind(
    AccumulatorKind(
        name="sum",
        result=lambda acc: 0 if acc is None else acc,
        example=lambda: sum(),
        is_pure=True,
        is_own_result=True,
        update_groups=sum_groups,
        run_groups=run_sum,
    )
)
_MEAN = register_kind(
    AccumulatorKind(
        name="mean",
        result=lambda acc: acc[1] / acc[0] if acc[0] else None,
        example=lambda: mean(),
        is_pure=True,
        update_groups=mean_groups,
        run_groups=run_mean,
    )
)

# Decimals are added without rounding up to this many digits, whatever context the caller has set.
_EXACT = Context(prec=1000)
_NUMBERS: Any = (int, float, Decimal, timedelta)


def count(field: Field = None) -> Aggregation:
    """How many rows, or how many whose field is not null.

    >>> import millpond as mp
    >>> mp.count("email")
    mp.count('email')
    """
    label = make_label("count", field)
    read = reader(label, field)

    def update(acc: int, row: Any, time: Any) -> int:
        return acc + 1 if field is None or read(row) is not None else acc

    def retract(acc: int, row: Any, time: Any) -> int:
        return acc - 1 if field is None or read(row) is not None else acc

    return Aggregation(
        "count", label, lambda: 0, update, _COUNT.result, lambda a, b: a + b, field=field, retract=retract
    )


def sum(field: Field = None) -> Aggregation:
    """The sum of numbers, Decimals or timedeltas; exact for ints and Decimals. Nulls are skipped.

    >>> import millpond as mp
    >>> mp.sum(lambda row: row["price"] * row["n"])
    mp.sum(<function>)
    """
    label = make_label("sum", field)
    read = reader(label, field)

    def update(acc: Any, row: Any, time: Any) -> Any:
        value = read(row)
        return acc if value is None else _add(label, acc, value)

    def merge(a: Any, b: Any) -> Any:
        return a if b is None else _add(label, a, b)

    def retract(acc: Any, row: Any, time: Any) -> Any:
        value = read(row)
        return acc if value is None else _add(label, acc, _negative(value))

    return Aggregation("sum", label, lambda: None, update, _SUM.result, merge, field=field, retract=retract)


def mean(field: Field = None) -> Aggregation:
    """The mean of what is not null: the sum, exact as `sum` is, over the count.

    >>> import millpond as mp
    >>> mp.mean("age")
    mp.mean('age')
    """
    label = make_label("mean", field)
    read = reader(label, field)

    def update(acc: list[Any], row: Any, time: Any) -> list[Any]:
        value = read(row)
        return acc if value is None else [acc[0] + 1, _add(label, acc[1], value)]

    def merge(a: list[Any], b: list[Any]) -> list[Any]:
        return [a[0] + b[0], a[1] if b[1] is None else _add(label, a[1], b[1])]

    def retract(acc: list[Any], row: Any, time: Any) -> list[Any]:
        value = read(row)
        if value is None:
            return acc
        total = _add(label, acc[1], _negative(value))
        return [acc[0] - 1, total] if acc[0] != 1 else [0, None]

    return Aggregation("mean", label, lambda: [0, None], update, _MEAN.result, merge, field=field, retract=retract)


def _negative(value: Any) -> Any:
    """Return a number with its sign changed, not rounded; other values as they are, for `_add` to refuse."""
    if isinstance(value, Decimal):
        return value.copy_negate()
    return -value if isinstance(value, _NUMBERS) else value


def _add(label: str, total: Any, value: Any) -> Any:
    if not isinstance(value, _NUMBERS):
        raise InvalidUse(
            f"{label}: expected a number, got {repr_with_type(value)}; name a field that holds numbers, "
            'or give a function, for example lambda row: float(row["amount"])'
        )
    if total is None:
        return int(value) if type(value) is bool else value
    try:
        # A Decimal and an int would be rounded too, so one Decimal is enough to add exactly.
        return _EXACT.add(total, value) if Decimal in (type(total), type(value)) else total + value
    except TypeError:
        raise InvalidUse(
            f"{label}: expected numbers that can be added up, got {repr_with_type(value)} after "
            f"{repr_with_type(total)}; turn all of them into one type"
        ) from None
