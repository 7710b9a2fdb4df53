"""What the verbs that join two streams are given, checked: a mistake is told where the program is written."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from millpond.errors import InvalidUse
from millpond.pipeline import graph as g
from millpond.steps.windows.definitions import MISSING, Hopping
from millpond.timing import Duration, duration

HOWS = ("inner", "left", "right", "outer")


def required_grace(where: str, grace: Any) -> Any:
    """The grace, which has to be given: what comes later is late, and a default would decide that unasked."""
    if grace is MISSING or grace is None:
        raise InvalidUse(
            f'{where}, grace): expected how long to wait for late rows, for example "10s"; what comes later is late. '
            "If there is to be none, say grace=mp.NO_GRACE"
        )
    return grace


def keyed_alike(where: str, left: g.Node, right: g.Node) -> None:
    """Rows meet by key, so both sides are keyed by parts of the same names."""
    if left.keyed != right.keyed:
        raise InvalidUse(
            f"{where}: expected both sides keyed alike, got the left keyed by {_parts(left)} and the right by "
            f"{_parts(right)}. Give the parts of both keys the same names, in the same order, for example "
            f"key_by({(left.keyed or ('key',))[0]}=lambda row: …)."
        )


def _parts(node: g.Node) -> str:
    return ", ".join(map(repr, node.keyed or ()))


def _how(where: str, how: Any, hows: tuple[str, ...]) -> str:
    if how not in hows:
        raise InvalidUse(f"{where}, how): expected {', '.join(map(repr, hows))}, got {how!r}")
    return str(how)


def _merge(where: str, merge: Any) -> Any:
    if merge is not None and not callable(merge):
        raise InvalidUse(f"{where}, merge): expected a function of both rows, got {merge!r}")
    return merge


def interval(name: str, before: Any, after: Any, grace: Any, how: Any, merge: Any) -> dict[str, Any]:
    """The options of a `join_interval`."""
    where = f"join_interval({name!r}"
    spans = {"before": before, "after": after, "grace": required_grace(where, grace)}
    options: dict[str, Any] = {what: duration(value, f"{where}, {what})") for what, value in spans.items()}
    _one_kind(where, options)
    return {**options, "how": _how(where, how, HOWS), "merge": _merge(where, merge)}


def interval_holds(options: dict[str, Any]) -> tuple[Duration, ...]:
    """By what the watermark of the output lags: a pair is as late as its row at most, an unmatched row comes late."""
    waits = {
        "inner": (),
        "left": (options["after"],),
        "right": (options["before"],),
        "outer": (max(options["before"], options["after"], key=_ticks),),
    }
    return (*waits[options["how"]], options["grace"])


def asof(name: str, keep: Any, how: Any, wait: Any, merge: Any) -> dict[str, Any]:
    """The options of a `join_asof`."""
    where = f"join_asof({name!r}"
    if keep is MISSING or keep is None:
        raise InvalidUse(f'{where}, keep): expected how far back a match may lie, for example "7d"')
    if not isinstance(wait, bool):
        raise InvalidUse(f"{where}, wait): expected True or False, got {wait!r}")
    return {
        "keep": duration(keep, f"{where}, keep)"),
        "how": _how(where, how, ("inner", "left")),
        "wait": wait,
        "merge": _merge(where, merge),
    }


def window(name: str, window: Any, grace: Any, how: Any, merge: Any) -> dict[str, Any]:
    """The options of a `join_window`."""
    where = f"join_window({name!r}"
    if not isinstance(window, Hopping):
        raise InvalidUse(f"{where}, window): expected mp.tumbling(size) or mp.hopping(size, every), got {window!r}")
    options = {"grace": duration(required_grace(where, grace), f"{where}, grace)")}
    _one_kind(where, {"size": window.size, **options})
    return {"window": window, **options, "how": _how(where, how, HOWS), "merge": _merge(where, merge)}


def _ticks(of: Duration) -> float:
    return of.total_seconds() if isinstance(of, timedelta) else of


def _one_kind(where: str, spans: dict[str, Duration]) -> None:
    kinds = {isinstance(value, int) for value in spans.values() if value}
    if len(kinds) > 1:
        given = ", ".join(f"{name}={value!r}" for name, value in spans.items())
        raise InvalidUse(
            f'{where}): expected durations of one kind, all of them such as "10s" or all whole numbers, got {given}'
        )
