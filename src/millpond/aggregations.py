"""Aggregations: many rows to one value, by four small functions.

    initial() -> acc               nothing seen yet
    update(acc, row, time) -> acc  one more row, and its event time
    result(acc) -> value           what it comes to
    merge(acc, acc) -> acc         two into one, where sessions join; the one that began earlier comes first

Accumulators are plain values that can be encoded: they are state, stored between batches. `update` and
`merge` may change what they are given, so hand them an accumulator of your own, and use only what they
return. When one raises, throw the accumulator away and read it again. Rows that are kept and results that
are returned are copies: nothing outside shares an accumulator's insides.

Nulls: `count(field)` counts what is not null, `sum`, `mean`, `min` and `max` pass over nulls, the others
take them like any value. Of nothing, `count` and `sum` are 0, `collect`, `distinct` and `top` are empty, and
the rest are `None`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as dataclass_fields
from datetime import timedelta
from decimal import Context, Decimal
from typing import Any

from millpond.codec import NotEncodable, copy_value
from millpond.errors import InvalidUse

Field = str | Callable[[Any], Any] | None
"""The name of a field, a function of the row, or the row itself."""


@dataclass(frozen=True)
class Aggregation:
    """Four functions under a name. Made by `mp.count`, `mp.sum`, … or `mp.aggregation`.

    `kind` says which accumulators are of the same make: state can be read by it without the program that
    wrote it. `can_merge` is false for an aggregation of the user's own without `merge`.

    >>> import millpond as mp
    >>> spent = mp.sum("amount")
    >>> acc = spent.initial()
    >>> acc = spent.update(acc, {"amount": 3}, None)
    >>> acc = spent.update(acc, {"amount": 4}, None)
    >>> spent.result(acc)
    7
    """

    kind: str
    label: str
    initial: Callable[[], Any]
    update: Callable[[Any, Any, Any], Any]
    result: Callable[[Any], Any]
    merge: Callable[[Any, Any], Any]
    can_merge: bool = True

    def __repr__(self) -> str:
        return f"mp.{self.label}"


def count(field: Field = None) -> Aggregation:
    """How many rows, or how many whose field is not null.

    >>> import millpond as mp
    >>> mp.count("email")
    mp.count('email')
    """
    label = _label("count", field)
    read = _reader(label, field)

    def update(acc: int, row: Any, time: Any) -> int:
        return acc + 1 if field is None or read(row) is not None else acc

    return Aggregation("count", label, lambda: 0, update, _RESULTS["count"], lambda a, b: a + b)


def sum(field: Field = None) -> Aggregation:
    """The sum of numbers, Decimals or timedeltas; exact for ints and Decimals. Nulls are passed over.

    >>> import millpond as mp
    >>> mp.sum(lambda row: row["price"] * row["n"])
    mp.sum(<function>)
    """
    label = _label("sum", field)
    read = _reader(label, field)

    def update(acc: Any, row: Any, time: Any) -> Any:
        value = read(row)
        return acc if value is None else _add(label, acc, value)

    def merge(a: Any, b: Any) -> Any:
        return a if b is None else _add(label, a, b)

    return Aggregation("sum", label, lambda: None, update, _RESULTS["sum"], merge)


def mean(field: Field = None) -> Aggregation:
    """The mean of what is not null: the sum, exact as `sum` is, over the count.

    >>> import millpond as mp
    >>> mp.mean("age")
    mp.mean('age')
    """
    label = _label("mean", field)
    read = _reader(label, field)

    def update(acc: list[Any], row: Any, time: Any) -> list[Any]:
        value = read(row)
        return acc if value is None else [acc[0] + 1, _add(label, acc[1], value)]

    def merge(a: list[Any], b: list[Any]) -> list[Any]:
        return [a[0] + b[0], a[1] if b[1] is None else _add(label, a[1], b[1])]

    return Aggregation("mean", label, lambda: [0, None], update, _RESULTS["mean"], merge)


def min(field: Field = None) -> Aggregation:
    """The least value; nulls and NaN are passed over.

    >>> import millpond as mp
    >>> mp.min("price")
    mp.min('price')
    """
    return _extreme("min", field, lambda new, old: new < old)


def max(field: Field = None) -> Aggregation:
    """The greatest value; nulls and NaN are passed over.

    >>> import millpond as mp
    >>> mp.max("price")
    mp.max('price')
    """
    return _extreme("max", field, lambda new, old: new > old)


def first(field: Field = None) -> Aggregation:
    """The value, or row, that arrived first.

    >>> import millpond as mp
    >>> mp.first("page")
    mp.first('page')
    """
    label = _label("first", field)
    read = _reader(label, field)

    def update(acc: list[Any], row: Any, time: Any) -> list[Any]:
        value = read(row)  # a row without the field is a mistake, also where its value would not be kept
        return acc or [copy_value(value)]

    return Aggregation("first", label, list, update, _RESULTS["first"], lambda a, b: a or b)


def last(field: Field = None) -> Aggregation:
    """The value, or row, that arrived last.

    >>> import millpond as mp
    >>> mp.last("page")
    mp.last('page')
    """
    label = _label("last", field)
    read = _reader(label, field)

    def update(acc: list[Any], row: Any, time: Any) -> list[Any]:
        return [copy_value(read(row))]

    return Aggregation("last", label, list, update, _RESULTS["last"], lambda a, b: b or a)


def earliest(field: Field = None) -> Aggregation:
    """The value, or row, with the oldest event time; of several, the one that arrived first.

    >>> import millpond as mp
    >>> mp.earliest("price")
    mp.earliest('price')
    """
    return _by_time("earliest", field, lambda new, old: new < old)


def latest(field: Field = None) -> Aggregation:
    """The value, or row, with the newest event time; of several, the one that arrived last.

    >>> import millpond as mp
    >>> mp.latest("price")
    mp.latest('price')
    """
    return _by_time("latest", field, lambda new, old: new >= old)


def collect(field: Field = None) -> Aggregation:
    """All values, or rows, in the order of arrival.

    >>> import millpond as mp
    >>> mp.collect("sku")
    mp.collect('sku')
    """
    label = _label("collect", field)
    read = _reader(label, field)

    def update(acc: list[Any], row: Any, time: Any) -> list[Any]:
        acc.append(copy_value(read(row)))
        return acc

    return Aggregation("collect", label, list, update, _RESULTS["collect"], lambda a, b: a + b)


def distinct(field: Field = None) -> Aggregation:
    """Each value once, in the order in which they first arrived; equal as Python compares, so 1 is 1.0.

    >>> import millpond as mp
    >>> mp.distinct("country")
    mp.distinct('country')
    """
    label = _label("distinct", field)
    read = _reader(label, field)

    def update(acc: dict[Any, None], row: Any, time: Any) -> dict[Any, None]:
        return add(acc, read(row))

    def add(acc: dict[Any, None], value: Any) -> dict[Any, None]:
        try:
            # No NaN equals another, so it is kept only if there is none.
            if value == value or all(known == known for known in acc):
                acc.setdefault(value)
        except TypeError:
            raise InvalidUse(
                f"{label}: expected values that can be compared, such as text, numbers or tuples, "
                f"got {_short(value)}; name a field, or give a function that returns a tuple"
            ) from None
        return acc

    def merge(a: dict[Any, None], b: dict[Any, None]) -> dict[Any, None]:
        for value in b:
            a = add(a, value)
        return a

    return Aggregation("distinct", label, dict, update, _RESULTS["distinct"], merge)


def top(k: int, field: Field = None, *, by: Field = None) -> Aggregation:
    """The k greatest values, or rows, greatest first; of equal ones those that arrived first.

    `by` says what is compared, a field or a function of the row; without it, the values themselves. What
    compares as null is passed over.

    >>> import millpond as mp
    >>> mp.top(3, by="amount")
    mp.top(3, by='amount')
    """
    if type(k) is not int or k < 1:
        raise InvalidUse(f"top(k): expected how many to keep, a whole number from 1, got {k!r}")
    shown = [repr(k)] + [_show(field)] * (field is not None) + [f"by={_show(by)}"] * (by is not None)
    label = f"top({', '.join(shown)})"
    read = _reader(label, field)
    rank = read if by is None else _reader(label, by)

    def update(acc: list[Any], row: Any, time: Any) -> list[Any]:
        value, new = read(row), rank(row)
        if new is None or new != new:
            return acc
        place = len(acc)
        try:  # from the least up: most rows are below it, and what is equal came earlier and stays before
            while place and acc[place - 1][0] < new:
                place -= 1
        except TypeError as error:
            raise _incomparable(label, new, error) from None
        if place < k:
            acc.insert(place, [copy_value(new), copy_value(value)])
        del acc[k:]
        return acc

    def merge(a: list[Any], b: list[Any]) -> list[Any]:
        return sorted(a + b, key=lambda pair: pair[0], reverse=True)[:k]

    return Aggregation("top", label, list, update, _RESULTS["top"], merge)


def aggregation(
    *,
    initial: Any,
    update: Callable[[Any, Any], Any],
    result: Callable[[Any], Any] | None = None,
    merge: Callable[[Any, Any], Any] | None = None,
) -> Aggregation:
    """An aggregation of your own.

    `initial` is a value, copied each time, or a function that makes one. `update(acc, row)` returns the
    accumulator with the row in it, a new one or the same one changed. `result(acc)` is what goes out; without
    it, the accumulator. `merge(acc, acc)` is needed for sessions only.

    >>> import millpond as mp
    >>> product = mp.aggregation(initial=1, update=lambda acc, row: acc * row["factor"])
    >>> product.update(product.initial(), {"factor": 3}, None)
    3
    """
    for name, function in {"update": update, "result": result, "merge": merge}.items():
        if not callable(function) and (name == "update" or function is not None):
            raise InvalidUse(f"aggregation({name}=): expected a function, got {function!r}")
    if not callable(initial):
        copy_value(initial)  # what cannot be stored is refused here and now, not at the first row
    read = result or (lambda acc: acc)
    return Aggregation(
        CUSTOM,
        "aggregation(…)",
        initial if callable(initial) else lambda: copy_value(initial),
        lambda acc, row, time: update(acc, row),
        lambda acc: _independent(read(acc)),
        merge or _cannot_merge,
        can_merge=merge is not None,
    )


CUSTOM = "custom"
"""The kind of the users' own aggregations."""


def result_of(kind: str, acc: Any) -> Any:
    """The result of a stored accumulator, without the program that made it.

    An accumulator of a user's own aggregation is given as it is.

    >>> from millpond.aggregations import result_of
    >>> result_of("mean", [4, 10])
    2.5
    """
    if kind == CUSTOM:
        return copy_value(acc)
    try:
        result = _RESULTS[kind]
    except KeyError:
        raise InvalidUse(
            f"result_of: expected a kind of aggregation, one of {', '.join(_RESULTS)}, got {kind!r}; "
            "the state was written by a newer version: upgrade"
        ) from None
    return result(acc)


def _only(acc: list[Any]) -> Any:
    return copy_value(acc[-1]) if acc else None


_RESULTS: dict[str, Callable[[Any], Any]] = {
    "count": lambda acc: acc,
    "sum": lambda acc: 0 if acc is None else acc,
    "mean": lambda acc: acc[1] / acc[0] if acc[0] else None,
    "min": _only,
    "max": _only,
    "first": _only,
    "last": _only,
    "earliest": _only,
    "latest": _only,
    "collect": copy_value,
    "distinct": list,
    "top": lambda acc: [copy_value(value) for _, value in acc],
}

# Decimals are added without rounding up to this many digits, whatever context the caller has set.
_EXACT = Context(prec=1000)
_NUMBERS: Any = (int, float, Decimal, timedelta)


def _add(label: str, total: Any, value: Any) -> Any:
    if not isinstance(value, _NUMBERS):
        raise InvalidUse(
            f"{label}: expected a number, got {_short(value)}; name a field that holds numbers, "
            'or give a function, for example lambda row: float(row["amount"])'
        )
    if total is None:
        return int(value) if type(value) is bool else value
    try:
        # A Decimal and an int would be rounded too, so one Decimal is enough to add exactly.
        return _EXACT.add(total, value) if Decimal in (type(total), type(value)) else total + value
    except TypeError:
        raise InvalidUse(
            f"{label}: expected numbers that can be added up, got {_short(value)} after {_short(total)}; "
            "turn all of them into one type"
        ) from None


def _extreme(kind: str, field: Field, beats: Callable[[Any, Any], bool]) -> Aggregation:
    label = _label(kind, field)
    read = _reader(label, field)

    def better(acc: list[Any], value: Any) -> list[Any]:
        try:
            return [copy_value(value)] if not acc or beats(value, acc[0]) else acc
        except TypeError as error:
            raise _incomparable(label, value, error) from None

    def update(acc: list[Any], row: Any, time: Any) -> list[Any]:
        value = read(row)
        return acc if value is None or value != value else better(acc, value)

    return Aggregation(kind, label, list, update, _RESULTS[kind], lambda a, b: better(a, b[0]) if b else a)


def _by_time(kind: str, field: Field, beats: Callable[[Any, Any], bool]) -> Aggregation:
    """The accumulator is empty, or the time and the value of one row."""
    label = _label(kind, field)
    read = _reader(label, field)

    def update(acc: list[Any], row: Any, time: Any) -> list[Any]:
        if time is None:
            raise InvalidUse(
                f"{label}: expected rows with an event time, but the stream has none; give it one with "
                f"timestamp=…, or use {'first' if kind == 'earliest' else 'last'}, which goes by arrival"
            )
        value = read(row)
        return [time, copy_value(value)] if not acc or beats(time, acc[0]) else acc

    def merge(a: list[Any], b: list[Any]) -> list[Any]:
        return b if not a or (b and beats(b[0], a[0])) else a

    return Aggregation(kind, label, list, update, _RESULTS[kind], merge)


def _cannot_merge(a: Any, b: Any) -> Any:
    raise InvalidUse(
        "aggregation(…): two sessions join here, which needs merge=; give a function of two accumulators "
        "that returns one, the accumulator that began earlier comes first"
    )


def _independent(value: Any) -> Any:
    """A copy, so that a result does not change when the accumulator does; what has none goes out as it is."""
    try:
        return copy_value(value)
    except NotEncodable:
        return value


def _reader(where: str, field: Field) -> Callable[[Any], Any]:
    """A function that reads the field of a row."""
    if field is None:
        return lambda row: row
    if callable(field):
        return field
    if type(field) is not str:
        raise InvalidUse(
            f"{where}: expected the name of a field or a function of the row, got {field!r}; "
            f'for example {where.partition("(")[0]}("amount")'
        )

    def read(row: Any) -> Any:
        try:
            return row[field] if type(row) is dict else getattr(row, field)
        except (KeyError, AttributeError):
            raise InvalidUse(
                f"{where}: expected a field {field!r}, but the row has {_fields(row)}; "
                "correct the name, or give a function that knows what to do without it"
            ) from None

    return read


def _fields(row: Any) -> str:
    names: Any = None
    if isinstance(row, Mapping):
        names = row
    elif is_dataclass(row):
        names = [field.name for field in dataclass_fields(row)]
    else:
        names = getattr(row, "__struct_fields__", None) or getattr(row, "_fields", None)
    if names is None:
        return f"no fields: it is {_short(row)}"
    return ", ".join(map(repr, names)) or "none"


def _incomparable(label: str, value: Any, error: TypeError) -> InvalidUse:
    return InvalidUse(
        f"{label}: expected values that can be compared with each other, got {_short(value)} ({error}); "
        "name a field of one type, or give a function"
    )


def _label(kind: str, field: Field) -> str:
    return f"{kind}({'' if field is None else _show(field)})"


def _show(field: Field) -> str:
    return "<function>" if callable(field) else repr(field)


def _short(value: Any, limit: int = 80) -> str:
    text = repr(value)
    return f"{text if len(text) <= limit else text[:limit] + '…'} ({type(value).__name__})"
