"""`aggregation`: an aggregation of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millpond.aggregations.base import NO_CHANGE, Aggregation
from millpond.aggregations.kinds import AccumulatorKind, register_kind
from millpond.codec import NotEncodable, copy_value
from millpond.errors import InvalidUse
from millpond.user_functions import check_function

CUSTOM = "custom"
"""The kind of the users' own aggregations."""

register_kind(
    AccumulatorKind(
        name=CUSTOM,
        result=copy_value,
        # Without the program no rows can be added, and two accumulators can only be shown side by side.
        example=lambda: aggregation(initial=list, update=_add_nothing, merge=lambda a, b: [a, b]),
    )
)


def aggregation(
    *,
    initial: Any,
    update: Callable[[Any, Any], Any],
    result: Callable[[Any], Any] | None = None,
    merge: Callable[[Any, Any], Any] | None = None,
    retract: Callable[[Any, Any], Any] | None = None,
    change: Callable[[Any, Any], Any] | None = None,
) -> Aggregation:
    """An aggregation of your own.

    `initial` is a value, copied each time, or a function that returns one. `update(acc, row)` returns the accumulator
    with the row in it, a new one or the same one changed. `result(acc)` is what goes out; without it, the accumulator
    does. `merge(acc, acc)` is needed for session and sliding windows. `retract(acc, row)` returns the accumulator
    without a row that was added before; it is needed for rows that come from `panes="retract"`.

    With `change`, a running aggregate stores what a row changes, not the whole accumulator: use it where accumulators
    grow. `change(acc, row)` returns a small value that can be stored, or None if the row changes nothing; it leaves
    the accumulator alone. `update(acc, change)` gets that value in the place of the row. It is called again with the
    stored changes when the state is read, so it must give the same accumulator each time.

    >>> import millpond as mp
    >>> product = mp.aggregation(initial=1, update=lambda acc, row: acc * row["factor"])
    >>> product.update(product.initial(), {"factor": 3}, None)
    3

    >>> def best(acc, row):                        # the best score of each player
    ...     return [row["player"], row["score"]] if row["score"] > acc.get(row["player"], 0) else None
    >>> def put(acc, change):
    ...     return {**acc, change[0]: change[1]}
    >>> scores = mp.aggregation(initial=dict, change=best, update=put)
    >>> scores.update({"ann": 7}, {"player": "bob", "score": 3}, None)
    {'ann': 7, 'bob': 3}
    """
    check_function(update, "aggregation(update=)", "acc", "row" if change is None else "change")
    for name, function, arguments in (
        ("result", result, ("acc",)),
        ("merge", merge, ("acc", "acc")),
        ("retract", retract, ("acc", "row")),
        ("change", change, ("acc", "row")),
    ):
        if function is not None:
            check_function(function, f"aggregation({name}=)", *arguments)
    if callable(initial):
        check_function(initial, "aggregation(initial=)")
    else:
        copy_value(initial)  # a value that cannot be stored is refused here, not at the first row
    read = result or (lambda acc: acc)

    def find_change(acc: Any, row: Any, time: Any) -> Any:
        found = change(acc, row)  # type: ignore[misc]
        return NO_CHANGE if found is None else found

    def update_by_change(acc: Any, row: Any, time: Any) -> Any:
        found = find_change(acc, row, time)
        return acc if found is NO_CHANGE else update(acc, copy_value(found))

    return Aggregation(
        CUSTOM,
        "aggregation(…)",
        initial if callable(initial) else lambda: copy_value(initial),
        (lambda acc, row, time: update(acc, row)) if change is None else update_by_change,
        lambda acc: _independent(read(acc)),
        merge or _cannot_merge,
        can_merge=merge is not None,
        retract=None if retract is None else (lambda acc, row, time: retract(acc, row)),
        change=None if change is None else find_change,
        apply=None if change is None else update,
    )


def _add_nothing(acc: Any, row: Any) -> Any:
    raise AssertionError("a view of the state adds no rows")


def _cannot_merge(a: Any, b: Any) -> Any:
    raise InvalidUse(
        "aggregation(…): two sessions are merged here, which needs merge=; give a function of two accumulators "
        "that returns one, the accumulator that began earlier comes first"
    )


def _independent(value: Any) -> Any:
    """Return a copy, so that results do not change with the accumulator; the value itself if it cannot be copied."""
    try:
        return copy_value(value)
    except NotEncodable:
        return value
