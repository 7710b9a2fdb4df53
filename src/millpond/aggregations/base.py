"""The value that defines an aggregation, and how it reads its field of a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from millpond.codec import copy_value
from millpond.errors import InvalidUse, short_repr
from millpond.rows.fields import MissingField, field_names, field_reader
from millpond.user_functions import check_function

Field = str | Callable[[Any], Any] | None
"""The name of a field, a function of the row, or the row itself."""


class NoSuchField(MissingField, InvalidUse):
    """A row lacks the field of an aggregation: a bad row where an app runs, and invalid use anywhere else."""


class NoChange(Enum):
    """What `Aggregation.change` returns for a row that changes nothing. It is the same object in every worker."""

    NO_CHANGE = "no change"


NO_CHANGE = NoChange.NO_CHANGE


@dataclass(frozen=True)
class Aggregation:
    """Four functions under a name, and for some a fifth. Made by `mp.count`, `mp.sum`, … or `mp.aggregation`.

    `kind` is stored with the accumulators, so that they can be read without the program that wrote them. `can_merge`
    is False for an aggregation of the user's own without `merge`. `field` is what it reads of a row, as it was given.
    `retract` is the inverse of `update`: it takes a row out of an accumulator that it was added to; None if that is
    impossible. If the accumulator grows, `change` returns what a row adds to it, and `apply` adds that: the same as
    `update` does at once. A running aggregate stores such changes, not the whole accumulator.

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
    field: Field = None
    retract: Callable[[Any, Any, Any], Any] | None = None
    needs_time: bool = False  # whether every row must have an event time
    change: Callable[[Any, Any, Any], Any] | None = None  # accumulator, row, time → a value to store, or NO_CHANGE
    apply: Callable[[Any, Any], Any] | None = None  # accumulator, change → accumulator

    def __repr__(self) -> str:
        return f"mp.{self.label}"


def check_given_aggregations(aggregations: Mapping[str, Any], where: str) -> None:
    """Raise InvalidUse unless there are aggregations, and nothing else."""
    if not aggregations:
        raise InvalidUse(f"{where}: expected one or more aggregations by name, such as n=mp.count(), got none")
    for name, given in aggregations.items():
        if not isinstance(given, Aggregation):
            shown = getattr(given, "__name__", None) if callable(given) else None
            got = short_repr(given) if shown is None else f"the function {shown}"
            raise InvalidUse(
                f"{where}: expected {name}= to be an aggregation, such as {name}=mp.count() or "
                f"{name}=mp.sum('amount'), got {got}"
            )


def reader(where: str, field: Field) -> Callable[[Any], Any]:
    """Return a function that reads the field of a row."""
    if field is None:
        return lambda row: row
    if callable(field):
        return check_function(field, where, "row")  # type: ignore[no-any-return]
    if type(field) is not str:
        raise InvalidUse(
            f"{where}: expected the name of a field or a function of the row, got {field!r}; "
            f'for example {where.partition("(")[0]}("amount")'
        )

    def missing(row: Any) -> NoSuchField:
        names = field_names(row)
        has = f"no fields: it is {repr_with_type(row)}" if names is None else ", ".join(map(repr, names)) or "none"
        return NoSuchField(
            f"{where}: expected a field {field!r}, but the row has {has}; "
            "correct the name, or give a function that knows what to do without it"
        )

    return field_reader(field, missing)


def incomparable(label: str, value: Any, error: TypeError) -> InvalidUse:
    return InvalidUse(
        f"{label}: expected values that can be compared with each other, got {repr_with_type(value)} ({error}); "
        "name a field of one type, or give a function"
    )


def make_label(kind: str, field: Field) -> str:
    return f"{kind}({'' if field is None else show(field)})"


def show(field: Field) -> str:
    return "<function>" if callable(field) else repr(field)


def repr_with_type(value: Any) -> str:
    """Return a short `repr` of a value and the name of its type."""
    return f"{short_repr(value)} ({type(value).__name__})"


def single_value(acc: list[Any]) -> Any:
    """Return a copy of the last value of an accumulator; None if it is empty."""
    return copy_value(acc[-1]) if acc else None
