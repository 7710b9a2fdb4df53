"""`first`, `last`, `earliest`, `latest`, `collect` and `distinct`: values as they arrived, or by their time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millpond.aggregations.base import NO_CHANGE, Aggregation, Field, make_label, reader, repr_with_type, single_value
from millpond.aggregations.gathered import GatheredList, GatheredSet
from millpond.aggregations.kinds import AccumulatorKind, register_kind
from millpond.codec import copy_value
from millpond.errors import InvalidUse

_FIRST = register_kind(AccumulatorKind(name="first", result=single_value, example=lambda: first(), is_pure=True))
_LAST = register_kind(
    AccumulatorKind(name="last", result=single_value, example=lambda: last(), is_pure=True, merges_by_last=True)
)
_EARLIEST = register_kind(
    AccumulatorKind(name="earliest", result=single_value, example=lambda: earliest(), is_pure=True, needs_time=True)
)
_LATEST = register_kind(
    AccumulatorKind(name="latest", result=single_value, example=lambda: latest(), is_pure=True, needs_time=True)
)
_COLLECT = register_kind(
    AccumulatorKind(name="collect", result=copy_value, example=lambda: collect(), gathers=GatheredList)
)
_DISTINCT = register_kind(
    AccumulatorKind(name="distinct", result=list, example=lambda: distinct(), gathers=GatheredSet)
)


def first(field: Field = None) -> Aggregation:
    """The value, or row, that arrived first.

    >>> import millpond as mp
    >>> mp.first("page")
    mp.first('page')
    """
    label = make_label("first", field)
    read = reader(label, field)

    def update(acc: list[Any], row: Any, time: Any) -> list[Any]:
        value = read(row)  # a row without the field must fail, even if its value would not be stored
        return acc or [copy_value(value)]

    return Aggregation("first", label, list, update, _FIRST.result, lambda a, b: a or b, field=field)


def last(field: Field = None) -> Aggregation:
    """The value, or row, that arrived last.

    >>> import millpond as mp
    >>> mp.last("page")
    mp.last('page')
    """
    label = make_label("last", field)
    read = reader(label, field)

    def update(acc: list[Any], row: Any, time: Any) -> list[Any]:
        return [copy_value(read(row))]

    return Aggregation("last", label, list, update, _LAST.result, lambda a, b: b or a, field=field)


def earliest(field: Field = None) -> Aggregation:
    """The value, or row, with the oldest event time; of several, the one that arrived first.

    >>> import millpond as mp
    >>> mp.earliest("price")
    mp.earliest('price')
    """
    return _by_time(_EARLIEST, field, lambda new, old: new < old)


def latest(field: Field = None) -> Aggregation:
    """The value, or row, with the newest event time; of several, the one that arrived last.

    >>> import millpond as mp
    >>> mp.latest("price")
    mp.latest('price')
    """
    return _by_time(_LATEST, field, lambda new, old: new >= old)


def collect(field: Field = None) -> Aggregation:
    """All values, or rows, in the order of arrival.

    >>> import millpond as mp
    >>> mp.collect("sku")
    mp.collect('sku')
    """
    label = make_label("collect", field)
    read = reader(label, field)

    def update(acc: list[Any], row: Any, time: Any) -> list[Any]:
        return add(acc, copy_value(read(row)))

    def add(acc: list[Any], value: Any) -> list[Any]:
        acc.append(value)
        return acc

    return Aggregation(
        "collect",
        label,
        list,
        update,
        _COLLECT.result,
        lambda a, b: a + b,
        field=field,
        change=lambda acc, row, time: read(row),
        apply=add,
    )


def distinct(field: Field = None) -> Aggregation:
    """Each value once, in the order in which they first arrived; equal as Python compares, so 1 is 1.0.

    >>> import millpond as mp
    >>> mp.distinct("country")
    mp.distinct('country')
    """
    label = make_label("distinct", field)
    read = reader(label, field)

    def update(acc: dict[Any, None], row: Any, time: Any) -> dict[Any, None]:
        return add(acc, read(row))

    def add(acc: dict[Any, None], value: Any) -> dict[Any, None]:
        if is_new(acc, value):
            acc[value] = None
        return acc

    def is_new(acc: dict[Any, None], value: Any) -> bool:
        try:
            # No NaN equals another, so one is added only if there is none yet.
            return value not in acc if value == value else all(known == known for known in acc) and value not in acc
        except TypeError:
            raise InvalidUse(
                f"{label}: expected values that can be compared, such as text, numbers or tuples, "
                f"got {repr_with_type(value)}; name a field, or give a function that returns a tuple"
            ) from None

    def merge(a: dict[Any, None], b: dict[Any, None]) -> dict[Any, None]:
        for value in b:
            a = add(a, value)
        return a

    def change(acc: dict[Any, None], row: Any, time: Any) -> Any:
        value = read(row)
        return value if is_new(acc, value) else NO_CHANGE

    return Aggregation("distinct", label, dict, update, _DISTINCT.result, merge, field=field, change=change, apply=add)


def _by_time(kind: AccumulatorKind, field: Field, beats: Callable[[Any, Any], bool]) -> Aggregation:
    """Return an aggregation whose accumulator is empty, or the time and the value of one row."""
    label = make_label(kind.name, field)
    read = reader(label, field)

    def update(acc: list[Any], row: Any, time: Any) -> list[Any]:
        if time is None:
            raise InvalidUse(
                f"{label}: expected rows with an event time, but the stream has none; give it one with "
                f"timestamp=…, or use {'first' if kind is _EARLIEST else 'last'}, which goes by arrival"
            )
        value = read(row)
        return [time, copy_value(value)] if not acc or beats(time, acc[0]) else acc

    def merge(a: list[Any], b: list[Any]) -> list[Any]:
        return b if not a or (b and beats(b[0], a[0])) else a

    return Aggregation(kind.name, label, list, update, kind.result, merge, field=field, needs_time=True)
