"""Triggers: when a window shows its results before it closes. `import millpond as mp; mp.triggers.on_update()`.

A trigger is three functions:

    initial() -> state              before any event
    advance(state, event) -> state  after an event
    fires(state, event) -> bool     whether a pane goes out now

Its state is stored with the window, or with the key if `fires="all"`. If nothing has changed since the last pane, no
pane goes out, even if the trigger fires.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from millpond.codec import copy_value
from millpond.errors import InvalidUse
from millpond.timing import Duration, Time, Unit, as_user, duration, seconds, span
from millpond.user_functions import check_function

__all__ = [
    "Event",
    "Trigger",
    "all_of",
    "any_of",
    "at_end",
    "at_fraction",
    "custom",
    "every",
    "every_rows",
    "on_close",
    "on_match",
    "on_update",
    "when",
]


def __dir__() -> list[str]:
    return __all__


Cause = Literal["before", "row", "watermark", "clock"]
TriggerState = Any


@dataclass
class Event:
    """What a trigger gets: a row, before or after it is added to the window, or a watermark or time of the clock.

    `cause` is "before" (the row is not in the result yet), "row" (it is), "watermark" or "clock".
    `key` is the key of the window. `row` and `time` are those of the row, None if there is no row. `result` holds the
    window's aggregates by name. `now` is the batch's processing time in seconds.

    >>> import millpond as mp
    >>> event = mp.triggers.Event("row", row={"v": 3}, at=105, start=100, end=110, unit="number", key="ann")
    >>> event.key, event.time, event.window_start, event.window_end, event.watermark, event.wall, event.result
    ('ann', 105, 100, 110, None, 0, {})
    """

    cause: Cause
    row: Any = None
    now: float = 0.0
    unit: Unit | None = None
    at: int | None = None  # times as ticks: microseconds since the epoch, or the whole number itself
    start: int | None = None
    end: int | None = None
    mark: int | None = None
    is_first: bool = False  # the first row since the last pane
    results: Callable[[], dict[str, Any]] = field(default=dict)
    key: Any = None

    @property
    def result(self) -> dict[str, Any]:
        """The window's aggregates by name."""
        return self.results()

    @property
    def time(self) -> Time | None:
        """The row's event time."""
        return self._as_user(self.at)

    @property
    def window_start(self) -> Time | None:
        """The window's start; None for a global window."""
        return self._as_user(self.start)

    @property
    def window_end(self) -> Time | None:
        """The window's end; None for a global window."""
        return self._as_user(self.end)

    @property
    def watermark(self) -> Time | None:
        """The watermark that decides what closes."""
        return self._as_user(self.mark)

    @property
    def wall(self) -> int:
        """`now` in whole microseconds."""
        return round(self.now * 1_000_000)

    def _as_user(self, at: int | None) -> Time | None:
        return at if at is None or self.unit is None else as_user(at, self.unit)


def _keep_state(state: TriggerState, event: Event) -> TriggerState:
    return state


@dataclass(frozen=True)
class Trigger:
    """Decides when a window shows a pane before it closes. Made by the functions of `mp.triggers`.

    >>> import millpond as mp
    >>> trigger = mp.triggers.every_rows(2)
    >>> state = trigger.initial()
    >>> for n in (1, 2):
    ...     event = mp.triggers.Event("row", row=n)
    ...     state = trigger.advance(state, event)
    ...     print(trigger.fires(state, event))
    False
    True
    """

    label: str
    causes: frozenset[Cause]  # of the events that it gets
    initial: Callable[[], TriggerState] = field(
        default_factory=lambda: lambda: None
    )  # a default by itself would be a method
    advance: Callable[[TriggerState, Event], TriggerState] = field(default_factory=lambda: _keep_state)
    fires: Callable[[TriggerState, Event], bool] = field(default_factory=lambda: lambda state, event: True)
    # For triggers of this module: the state after it has fired and when two sessions are merged, and the watermark
    # and the time of the clock at which it wants to be asked again.
    fired: Callable[[TriggerState, Event], TriggerState] = field(default_factory=lambda: _keep_state)
    merge: Callable[[TriggerState, TriggerState], TriggerState] = field(default_factory=lambda: lambda a, b: a)
    due: Callable[[TriggerState, int, Unit], int | None] = field(default_factory=lambda: lambda state, end, unit: None)
    wall: Callable[[TriggerState], int | None] = field(default_factory=lambda: lambda state: None)
    needs_end: bool = False

    def __repr__(self) -> str:
        return f"mp.triggers.{self.label}"


def on_close() -> Trigger:
    """No pane before the window closes: the default of every window.

    >>> import millpond as mp
    >>> mp.triggers.on_close()
    mp.triggers.on_close()
    """
    return Trigger("on_close()", frozenset(), fires=lambda state, event: False)


def on_update() -> Trigger:
    """A pane for every row.

    >>> import millpond as mp
    >>> mp.triggers.on_update()
    mp.triggers.on_update()
    """
    return Trigger("on_update()", frozenset({"row"}))


def every_rows(n: int) -> Trigger:
    """A pane for every n rows of the window.

    >>> import millpond as mp
    >>> mp.triggers.every_rows(100)
    mp.triggers.every_rows(100)
    """
    if type(n) is not int or n < 1:
        raise InvalidUse(f"every_rows(n): expected a number of rows, 1 or more, got {n!r}")
    return Trigger(
        f"every_rows({n})",
        frozenset({"row"}),
        initial=lambda: 0,
        advance=lambda count, event: count + 1,
        fires=lambda count, event: count >= n,
        fired=lambda count, event: 0,
        merge=lambda a, b: a + b,
    )


def every(interval: str | int | float | timedelta) -> Trigger:
    """A pane at regular intervals by the clock, counted from the window's first row, if anything is new.

    A batch runs when the time has come, even if there are no rows.

    >>> import millpond as mp
    >>> mp.triggers.every("10s")
    mp.triggers.every('10s')
    """
    step = round(seconds(interval, "every(interval)") * 1_000_000)
    if step <= 0:
        raise InvalidUse(f'every(interval): expected a duration such as "10s", got {interval!r}')

    def after(state: list[int], wall: int) -> list[int]:
        began, tick = state
        return state if tick > wall else [began, began + ((wall - began) // step + 1) * step]

    def advance(state: TriggerState, event: Event) -> TriggerState:
        if state is None:
            return [event.wall, event.wall + step]
        return after(state, event.wall) if event.cause == "row" and event.is_first else state

    return Trigger(
        f"every({interval!r})",
        frozenset({"row", "clock"}),
        advance=advance,
        fires=lambda state, event: event.cause == "clock" and event.wall >= state[1],
        fired=lambda state, event: after(state, event.wall),
        merge=lambda a, b: min(a, b) if a and b else a or b,
        wall=lambda state: None if state is None else state[1],
    )


def on_match(predicate: Callable[[Any], Any]) -> Trigger:
    """A pane when `predicate(row)` is true for a row; the pane includes the row.

    >>> import millpond as mp
    >>> mp.triggers.on_match(lambda row: row["type"] == "checkout")
    mp.triggers.on_match(<function>)
    """
    f = check_function(predicate, "on_match(predicate)", "row")
    return Trigger("on_match(<function>)", frozenset({"row"}), fires=lambda state, event: bool(f(event.row)))


def at_end(delay: str | int | timedelta = 0) -> Trigger:
    """A pane when the watermark is `delay` past the window's end.

    If the grace is longer, rows that come after that pane are in the one that goes out when the window closes.

    >>> import millpond as mp
    >>> mp.triggers.at_end("5s")
    mp.triggers.at_end('5s')
    """
    wait: Duration = duration(delay, "at_end(delay)")

    def due(state: TriggerState, end: int, unit: Unit) -> int | None:
        return None if state is not None and end <= state else end + span(wait, unit, "at_end(delay)")

    def fires(state: TriggerState, event: Event) -> bool:
        if event.end is None or event.mark is None or event.unit is None:
            return False
        at = due(state, event.end, event.unit)
        return at is not None and event.mark >= at

    return Trigger(
        f"at_end({'' if not delay else repr(delay)})",
        frozenset({"watermark"}),
        fires=fires,
        fired=lambda state, event: event.end if state is None else max(state, event.end or state),
        merge=lambda a, b: None,
        due=due,
        needs_end=True,
    )


def at_fraction(fraction: float) -> Trigger:
    """A pane for every row whose time is at this fraction of the window's length, or beyond it.

    >>> import millpond as mp
    >>> mp.triggers.at_fraction(0.5)
    mp.triggers.at_fraction(0.5)
    """
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
        raise InvalidUse(f"at_fraction(fraction): expected a number from 0 to 1, for example 0.5, got {fraction!r}")

    def fires(state: TriggerState, event: Event) -> bool:
        if event.at is None or event.start is None or event.end is None:
            return False
        return event.at - event.start >= fraction * (event.end - event.start)

    return Trigger(f"at_fraction({fraction!r})", frozenset({"row"}), fires=fires, needs_end=True)


def when(f: Callable[[dict[str, Any], Any], Any], before: bool = False) -> Trigger:
    """A pane when `f(result, row)` is true, where `result` holds the window's aggregates by name.

    With `before=True` it is called before the row is added: the pane does not include the row, which is the first of
    the next pane.

    >>> import millpond as mp
    >>> mp.triggers.when(lambda result, row: result["total"] >= 9)
    mp.triggers.when(<function>)
    """
    f = check_function(f, "when(f)", "result", "row")
    return Trigger(
        f"when(<function>{', before=True' if before else ''})",
        frozenset({"before" if before else "row"}),
        fires=lambda state, event: bool(f(event.result, event.row)),
    )


def custom(
    *,
    initial: Any = None,
    advance: Callable[[Any, Event], Any],
    fires: Callable[[Any, Event], Any],
    merge: Callable[[Any, Any], Any] | None = None,
    before: bool = False,
) -> Trigger:
    """A trigger of your own: three functions.

    `initial` is the first state of a window: a value, copied each time, or a function that returns one. It is stored
    with the window, so it must be a value that can be stored. For every row `advance(state, event)` returns the next
    state, and then `fires(state, event)` says whether a pane goes out. See `Event` for what an event holds. Both are
    called after the row was added to the window, with `before=True` before it is. When two sessions are merged,
    `merge(state, state)` returns one state for both; without it, the state of the session that began earlier is used.

    >>> import millpond as mp
    >>> def jump(seen, event):                     # a pane when a price is twice the last one
    ...     return [seen[1], event.row["price"]]
    >>> mp.triggers.custom(initial=[0, 0], advance=jump, fires=lambda seen, event: seen[1] >= 2 * seen[0] > 0)
    mp.triggers.custom(…)
    """
    for name, function in {"advance": advance, "fires": fires}.items():
        check_function(function, f"custom({name}=)", "state", "event")
    if merge is not None:
        check_function(merge, "custom(merge=)", "state", "state")
    if callable(initial):
        check_function(initial, "custom(initial=)")
    else:
        copy_value(initial)  # a value that cannot be stored is refused here, not at the first row
    join = merge or (lambda a, b: a)
    return Trigger(
        "custom(…)",
        frozenset({"before" if before else "row"}),
        initial=initial if callable(initial) else lambda: copy_value(initial),
        advance=lambda state, event: copy_value(advance(copy_value(state), event)),
        fires=lambda state, event: bool(fires(copy_value(state), event)),
        merge=lambda a, b: copy_value(join(copy_value(a), copy_value(b))),
    )


def any_of(*triggers: Trigger) -> Trigger:
    """A pane when any of these fires; each has its own state.

    >>> import millpond as mp
    >>> mp.triggers.any_of(mp.triggers.every_rows(100), mp.triggers.every("10s"))
    mp.triggers.any_of(mp.triggers.every_rows(100), mp.triggers.every('10s'))
    """
    parts = _check_triggers(triggers, "any_of")

    def after_firing(states: list[TriggerState], event: Event) -> list[TriggerState]:
        return [
            t.fired(s, event) if t.fired is not _keep_state and event.cause in t.causes and t.fires(s, event) else s
            for t, s in zip(parts, states, strict=True)
        ]

    return Trigger(
        f"any_of({', '.join(map(repr, parts))})",
        _all_causes(parts),
        initial=lambda: [t.initial() for t in parts],
        advance=lambda states, event: [
            t.advance(s, event) if event.cause in t.causes else s for t, s in zip(parts, states, strict=True)
        ],
        fires=lambda states, event: any(
            event.cause in t.causes and t.fires(s, event) for t, s in zip(parts, states, strict=True)
        ),
        fired=after_firing,
        merge=lambda a, b: [t.merge(x, y) for t, x, y in zip(parts, a, b, strict=True)],
        due=lambda states, end, unit: _min_time(t.due(s, end, unit) for t, s in zip(parts, states, strict=True)),
        wall=lambda states: _min_time(t.wall(s) for t, s in zip(parts, states, strict=True)),
        needs_end=any(t.needs_end for t in parts),
    )


def all_of(*triggers: Trigger) -> Trigger:
    """A pane when each of these has fired, at the same time or one after the other; then all start over.

    >>> import millpond as mp
    >>> mp.triggers.all_of(mp.triggers.every_rows(100), mp.triggers.every("10s"))
    mp.triggers.all_of(mp.triggers.every_rows(100), mp.triggers.every('10s'))
    """
    parts = _check_triggers(triggers, "all_of")

    def advance(state: list[Any], event: Event) -> list[Any]:
        found = []
        for t, (s, has_fired) in zip(parts, state, strict=True):
            if event.cause in t.causes:
                s = t.advance(s, event)
                if t.fires(s, event):
                    s, has_fired = t.fired(s, event), True
            found.append([s, has_fired])
        return found

    def waiting(pick: Callable[[Trigger, TriggerState], int | None]) -> Callable[[list[Any]], int | None]:
        # One that has fired already is not asked again until the others have.
        return lambda state: _min_time(
            pick(t, s) for t, (s, has_fired) in zip(parts, state, strict=True) if not has_fired
        )

    return Trigger(
        f"all_of({', '.join(map(repr, parts))})",
        _all_causes(parts),
        initial=lambda: [[t.initial(), False] for t in parts],
        advance=advance,
        fires=lambda state, event: all(has_fired for _, has_fired in state),
        fired=lambda state, event: [[t.initial(), False] for t in parts],
        merge=lambda a, b: [[t.merge(x[0], y[0]), x[1] or y[1]] for t, x, y in zip(parts, a, b, strict=True)],
        due=lambda state, end, unit: waiting(lambda t, s: t.due(s, end, unit))(state),
        wall=waiting(lambda t, s: t.wall(s)),
        needs_end=any(t.needs_end for t in parts),
    )


def _min_time(times: Any) -> int | None:
    return min((time for time in times if time is not None), default=None)


def _all_causes(triggers: tuple[Trigger, ...]) -> frozenset[Cause]:
    return frozenset(cause for trigger in triggers for cause in trigger.causes)


def _check_triggers(triggers: tuple[Any, ...], where: str) -> tuple[Trigger, ...]:
    if not triggers or not all(isinstance(trigger, Trigger) for trigger in triggers):
        raise InvalidUse(
            f"{where}: expected triggers such as mp.triggers.every_rows(10), "
            f"got {', '.join(map(repr, triggers)) or 'none'}"
        )
    return triggers
