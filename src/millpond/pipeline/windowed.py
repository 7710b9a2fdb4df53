"""Windowed streams: rows of each key in windows, to be aggregated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar

from millpond.aggregations import Aggregation
from millpond.aggregations.base import check_given_aggregations
from millpond.errors import InvalidUse
from millpond.pipeline.event_time import check_aggregations
from millpond.pipeline.retractions import with_retractions
from millpond.pipeline.state_options import StateOptions, step_settings
from millpond.pipeline.stream import R, Stream, missing_verb_error
from millpond.steps.windows.definitions import Window, check_grace
from millpond.steps.windows.panes import PANE_FIELDS, RETRACTED
from millpond.steps.windows.triggers import Trigger
from millpond.steps.windows.window_step import By, Fires, Panes, WindowStep
from millpond.timing import Duration

if TYPE_CHECKING:
    from millpond.pipeline.keyed import KeyedStream

K = TypeVar("K")

_FIELDS = (*PANE_FIELDS, RETRACTED)


class WindowOptions(TypedDict):
    window: Window
    grace: Duration
    trigger: Trigger
    panes: Panes
    fires: Fires
    clock: By


class GivenWindow(TypedDict):
    window: Any
    grace: Any
    trigger: Any
    panes: Any
    fires: Any
    clock: Any


class WindowedStream(Generic[K, R]):
    """Rows in windows, returned by `KeyedStream.window`. Call `aggregate` to say what to compute over each window.

    >>> import millpond as mp
    >>> app = mp.App("shop")
    >>> orders = app.stream("orders", mp.sources.rows([]), timestamp="at").key_by("customer")
    >>> windowed = orders.window("per-ten", mp.tumbling(10), grace=mp.NO_GRACE)
    >>> totals = windowed.aggregate(n=mp.count(), spent=mp.sum("amount")).to("totals", mp.sinks.memory())
    >>> late = windowed.late.to("late", mp.sinks.memory())
    >>> with mp.testing.TestDriver(app) as driver:
    ...     for at, amount in [(1, 3), (4, 4), (12, 5), (9, 6)]:
    ...         driver.send("orders", [{"customer": "ann", "at": at, "amount": amount}])
    ...     driver.output("totals")
    ...     [(letter["late_by"], letter["missed"]) for letter in driver.output("late")]
    [{'customer': 'ann', 'window_start': 0, 'window_end': 10, 'pane': 0, 'final': True, 'n': 2, 'spent': 7}]
    [(3, [(0, 10)])]
    """

    def __init__(
        self, stream: KeyedStream[K, R], name: str, options: WindowOptions, state_options: StateOptions
    ) -> None:
        self._stream, self._name, self._options, self._state_options = stream, name, options, state_options
        stream._graph.unfinished[name] = "call .aggregate(name=aggregation, …) on its windows"
        self._aggregated: KeyedStream[K, dict[str, Any]] | None = None

    if not TYPE_CHECKING:  # for type checkers, a name that is not defined stays an error

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError; for a verb of streams, it says that `aggregate` comes first."""
            raise missing_verb_error(
                self,
                name,
                f"{name} needs a stream, and these are windows without results: call aggregate first, as in "
                f"windows.aggregate(n=mp.count()).{name}(…)",
            )

    def aggregate(self, **aggregations: Aggregation) -> KeyedStream[K, dict[str, Any]]:
        """Return a stream with a row per pane: the key's fields, `window_start`, `window_end`, `pane`, `final`, and the
        result of each aggregation by its name.

        `pane` counts the panes of a window from 0; `final` is True for the one that comes when the window closes.

        >>> import millpond as mp
        >>> app = mp.App("site")
        >>> clicks = app.stream("clicks", mp.sources.rows([]), timestamp="at").key_by("user")
        >>> visits = clicks.window("visits", mp.session(30), grace=mp.NO_GRACE)
        >>> out = visits.aggregate(pages=mp.count()).to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("clicks", [{"user": "ann", "at": 10}, {"user": "ann", "at": 25}, {"user": "ann", "at": 90}])
        ...     driver.output("out")
        [{'user': 'ann', 'window_start': 10, 'window_end': 25, 'pane': 0, 'final': True, 'pages': 2}]
        """
        where = f"window({self._name!r}).aggregate"
        graph, node = self._stream._graph, self._stream._node
        window, names = self._options["window"], node.keyed or ()
        check_given_aggregations(aggregations, where)
        clash = sorted(set(aggregations) & {*names, *_FIELDS} | {name for name in aggregations if name[:1] == "$"})
        if clash:
            raise InvalidUse(
                f"{where}: expected names that do not begin with '$' and are other than the key's {list(names)} and "
                f"{', '.join(_FIELDS)}, got {clash}"
            )
        cannot = [name for name, a in aggregations.items() if not a.can_merge]
        if cannot and window.is_merged:
            raise InvalidUse(
                f"{where}: windows of {window!r} are put together from parts, which needs merge=, and {cannot} has "
                "none; give mp.aggregation a merge=, a function of two accumulators that returns one"
            )
        check_aggregations(graph, node, aggregations, where)
        retracting = with_retractions(where, graph, node, aggregations, by_rows=window.is_by_rows)
        graph.unfinished.pop(self._name, None)
        step = WindowStep(
            **self._options,
            aggregations=retracting or aggregations,
            takes_back=retracting is not None,
            key_names=names,
            **step_settings(graph, node, "window", self._name, self._state_options),
        )
        self._aggregated = self._stream._add_step(step)
        return self._aggregated

    @property
    def late(self) -> Stream[dict[str, Any]]:
        """The rows that came too late for a window, as `{row, key, late_by, missed}`.

        `missed` holds the windows that had closed. Where windows overlap, such a row still counts in those of its
        windows that are open.
        """
        if self._aggregated is None:
            raise InvalidUse(
                f"window({self._name!r}).late: call aggregate(…) first; a row is late for the results of its window"
            )
        return self._aggregated._side_output()


def check_window(name: str, given: GivenWindow) -> WindowOptions:
    """Check the arguments of a window."""
    window, trigger, clock = given["window"], given["trigger"], given["clock"]
    where = f"window({name!r})"
    if not isinstance(window, Window):
        raise InvalidUse(f'{where}: expected a window such as mp.tumbling("1m") or mp.session("30m"), got {window!r}')
    if not isinstance(trigger, Trigger):
        raise InvalidUse(f"{where}, trigger: expected one such as mp.triggers.every_rows(10), got {trigger!r}")
    if trigger.needs_end and not window.is_timed:
        raise InvalidUse(f"{where}, trigger: {trigger!r} needs windows that have an end, and {window!r} has none")
    for what, value, known in (
        ("panes", given["panes"], ("accumulate", "discard", "retract")),
        ("fires", given["fires"], ("this", "all")),
        ("clock", clock, ("stream", "key")),
    ):
        if value not in known:
            raise InvalidUse(f"{where}, {what}: expected {' or '.join(map(repr, known))}, got {value!r}")
    if clock == "key" and not window.is_timed:
        raise InvalidUse(f'{where}, clock: {window!r} has no times to close by; leave clock="key" out')
    return {
        "window": window,
        "grace": check_grace(given["grace"], window, where),
        "trigger": trigger,
        "panes": given["panes"],
        "fires": given["fires"],
        "clock": clock,
    }
