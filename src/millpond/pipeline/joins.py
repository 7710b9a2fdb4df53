"""Checks of the arguments of joins. Mistakes raise where the program is written, not when it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

from millpond.errors import InvalidUse
from millpond.pipeline import graph as g
from millpond.pipeline.table import quote_names
from millpond.steps.joins.join_step import How
from millpond.steps.windows.definitions import MISSING, Hopping
from millpond.timing import Duration, duration
from millpond.user_functions import check_function

HOWS: tuple[How, ...] = ("inner", "left", "right", "outer")


def required_grace(where: str, grace: Any) -> Any:
    """Return the grace. It has no default: rows that come later are late, and that is for the user to decide."""
    if grace is MISSING or grace is None:
        raise InvalidUse(
            f'{where}, grace): expected how long to wait for late rows, for example "10s"; what comes later is late. '
            "To wait for none, give grace=mp.NO_GRACE"
        )
    return grace


def check_keyed_alike(where: str, left: g.Node, right: g.Node) -> None:
    """Raise unless both sides are keyed by parts of the same names: rows are joined by key."""
    if left.keyed != right.keyed:
        ours, theirs = quote_names(left.keyed or ()), quote_names(right.keyed or ())
        raise InvalidUse(
            f"{where}: expected both sides keyed alike, got the left keyed by {ours} and the right by "
            f"{theirs}. Give the parts of both keys the same names, in the same order, for example "
            f"key_by({(left.keyed or ('key',))[0]}=lambda row: …)."
        )


def _check_how(where: str, how: Any, hows: tuple[How, ...]) -> How:
    if how not in hows:
        raise InvalidUse(f"{where}, how): expected {', '.join(map(repr, hows))}, got {how!r}")
    return how  # type: ignore[no-any-return]


def _check_merge(where: str, merge: Any) -> Any:
    if merge is not None and not callable(merge):
        raise InvalidUse(f"{where}, merge): expected a function of both rows, got {merge!r}")
    return merge if merge is None else check_function(merge, f"{where}, merge)", "left", "right")


class IntervalJoinOptions(TypedDict):
    before: Duration
    after: Duration
    grace: Duration
    how: How
    merge: Callable[[Any, Any], Any] | None


class AsofJoinOptions(TypedDict):
    keep: Duration
    how: How
    wait: bool
    merge: Callable[[Any, Any], Any] | None


class WindowJoinOptions(TypedDict):
    window: Hopping
    grace: Duration
    how: How
    merge: Callable[[Any, Any], Any] | None


def check_join_interval(name: str, before: Any, after: Any, grace: Any, how: Any, merge: Any) -> IntervalJoinOptions:
    """Check the arguments of a `join_interval`."""
    where = f"join_interval({name!r}"
    given = {"before": before, "after": after, "grace": required_grace(where, grace)}
    spans = {what: duration(value, f"{where}, {what})") for what, value in given.items()}
    _check_one_unit(where, spans)
    how, merge = _check_how(where, how, HOWS), _check_merge(where, merge)
    return {"before": spans["before"], "after": spans["after"], "grace": spans["grace"], "how": how, "merge": merge}


def check_join_asof(name: str, keep: Any, how: Any, wait: Any, merge: Any) -> AsofJoinOptions:
    """Check the arguments of a `join_asof`."""
    where = f"join_asof({name!r}"
    if keep is MISSING or keep is None:
        raise InvalidUse(f'{where}, keep): expected how far back a match may lie, for example "7d"')
    if not isinstance(wait, bool):
        raise InvalidUse(f"{where}, wait): expected True or False, got {wait!r}")
    return {
        "keep": duration(keep, f"{where}, keep)"),
        "how": _check_how(where, how, ("inner", "left")),
        "wait": wait,
        "merge": _check_merge(where, merge),
    }


def check_join_window(name: str, window: Any, grace: Any, how: Any, merge: Any) -> WindowJoinOptions:
    """Check the arguments of a `join_window`."""
    where = f"join_window({name!r}"
    if not isinstance(window, Hopping):
        raise InvalidUse(f"{where}, window): expected mp.tumbling(size) or mp.hopping(size, every), got {window!r}")
    checked_grace = duration(required_grace(where, grace), f"{where}, grace)")
    _check_one_unit(where, {"size": window.size, "grace": checked_grace})
    how, merge = _check_how(where, how, HOWS), _check_merge(where, merge)
    return {"window": window, "grace": checked_grace, "how": how, "merge": merge}


def _check_one_unit(where: str, spans: dict[str, Duration]) -> None:
    kinds = {isinstance(value, int) for value in spans.values() if value}
    if len(kinds) > 1:
        given = ", ".join(f"{name}={value!r}" for name, value in spans.items())
        raise InvalidUse(
            f'{where}): expected durations of one kind, all of them such as "10s" or all whole numbers, got {given}'
        )
