"""Windowed streams: rows of a key that are to be put together by windows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from millpond.aggregations import Aggregation
from millpond.errors import InvalidUse
from millpond.pipeline.retractions import with_retractions
from millpond.steps.base import Step, StepContext
from millpond.steps.failure import OnError
from millpond.steps.windows.columnar.windows import fields_read, hops
from millpond.steps.windows.definitions import TIMED, Counting, Global, Hopping, Session, Sliding, Window, checked_grace
from millpond.steps.windows.hopping import Counts, Everything
from millpond.steps.windows.sessions import Sessions
from millpond.steps.windows.sliding import Slides
from millpond.steps.windows.step import Windows
from millpond.steps.windows.triggers import Trigger
from millpond.timing import Duration

if TYPE_CHECKING:
    from millpond.pipeline.keyed import KeyedStream
    from millpond.pipeline.stream import Stream

K = TypeVar("K")
R = TypeVar("R")

Panes = Literal["accumulate", "discard", "retract"]
Fires = Literal["this", "all"]
By = Literal["stream", "key"]

_RUNS: dict[type, Callable[[Step, StepContext], Windows]] = {
    Hopping: hops,
    Session: Sessions,
    Sliding: Slides,
    Global: Everything,
    Counting: Counts,
}
_FIELDS = ("window_start", "window_end", "pane", "final", "retracted")


class WindowedStream(Generic[K, R]):
    """Rows in windows, made by `KeyedStream.window`: say what to make of them with `aggregate`.

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
        self,
        stream: KeyedStream[K, R],
        name: str,
        options: dict[str, Any],
        on_error: OnError | None,
        renamed_from: str | None = None,
    ) -> None:
        self._stream, self._name, self._options, self._on_error = stream, name, options, on_error
        self._renamed_from = renamed_from
        stream._graph.unfinished[name] = "say what its windows are to hold with .aggregate(name=aggregation, …)"
        self._made: KeyedStream[K, dict[str, Any]] | None = None

    def aggregate(self, **aggregations: Aggregation) -> KeyedStream[K, dict[str, Any]]:
        """An output row per pane: the key's fields, `window_start`, `window_end`, `pane`, `final`, and each aggregate.

        >>> import millpond as mp
        >>> visits = mp.App("a").stream("clicks", mp.sources.rows([]), timestamp="at").key_by("user")
        >>> lengths = visits.window("visits", mp.session("30m"), grace="1m").aggregate(pages=mp.count())
        """
        where = f"window({self._name!r}).aggregate"
        window: Window = self._options["window"]
        names = self._stream._node.keyed or ()
        wrong = [name for name, a in aggregations.items() if not isinstance(a, Aggregation)]
        clash = sorted(set(aggregations) & {*names, *_FIELDS} | {name for name in aggregations if name[:1] == "$"})
        if not aggregations or wrong or clash:
            raise InvalidUse(
                f"{where}: expected aggregations by name such as n=mp.count(), with names that do not begin "
                f"with '$' and are other than the key's {list(names)} and {', '.join(_FIELDS)}, got "
                f"{wrong or clash or 'none'}"
            )
        cannot = [name for name, a in aggregations.items() if not a.can_merge]
        if cannot and isinstance(window, Session | Sliding):
            raise InvalidUse(
                f"{where}: windows of {window!r} are put together from parts, which needs merge=, and {cannot} has "
                "none; give mp.aggregation a merge=, a function of two accumulators that returns one"
            )
        retracting = with_retractions(
            where, self._stream._graph, self._stream._node, aggregations, by_rows=isinstance(window, Counting)
        )
        self._stream._graph.unfinished.pop(self._name, None)
        options = {
            **self._options,
            "aggregations": retracting or aggregations,
            "takes_back": retracting is not None,
            "key_names": names,
        }
        self._made = self._stream._step(
            _RUNS[type(window)],
            self._name,
            "window",
            options,
            reads=fields_read(options) if isinstance(window, Hopping) else None,
            on_error=self._on_error,
            renamed_from=self._renamed_from,
            holds=_holds(window, self._options["grace"], self._options["clock"]),
            window=repr(window),
            grace=str(self._options["grace"]),
            clock=self._options["clock"],
            windows=type(window).__name__.lower(),
            size=_ticks(window.size) if isinstance(window, Sliding) else None,
            early=bool(self._options["trigger"].causes),
            keys=list(names),
            aggregations={name: a.kind for name, a in aggregations.items()},
        )
        return self._made

    @property
    def late(self) -> Stream[dict[str, Any]]:
        """The rows that missed a window, as `{row, key, late_by, missed}`; what they did not miss, they count in."""
        if self._made is None:
            raise InvalidUse(
                f"window({self._name!r}).late: call aggregate(…) first; a row is late for what is made of its window"
            )
        return self._made._aside()


def _ticks(size: Duration) -> int:
    return size if isinstance(size, int) else size // timedelta(microseconds=1)


def _holds(window: Window, grace: Duration, clock: By) -> tuple[Duration, ...] | None:
    """What a window's output may lag behind its input."""
    if clock == "key":
        return None
    if isinstance(window, Session):
        return (window.gap, grace)
    return (grace,) if isinstance(window, TIMED) else ()


def window_options(
    name: str, window: Any, grace: Any, trigger: Any, panes: Any, fires: Any, clock: Any
) -> dict[str, Any]:
    """What a window was given, checked: a mistake is told where the program is written."""
    where = f"window({name!r})"
    if not isinstance(window, Window):
        raise InvalidUse(f'{where}: expected a window such as mp.tumbling("1m") or mp.session("30m"), got {window!r}')
    if not isinstance(trigger, Trigger):
        raise InvalidUse(f"{where}, trigger: expected one such as mp.triggers.every_rows(10), got {trigger!r}")
    if trigger.needs_end and not isinstance(window, TIMED):
        raise InvalidUse(f"{where}, trigger: {trigger!r} goes by the times of a window, and {window!r} has none")
    for what, value, known in (
        ("panes", panes, ("accumulate", "discard", "retract")),
        ("fires", fires, ("this", "all")),
        ("clock", clock, ("stream", "key")),
    ):
        if value not in known:
            raise InvalidUse(f"{where}, {what}: expected {' or '.join(map(repr, known))}, got {value!r}")
    if clock == "key" and not isinstance(window, TIMED):
        raise InvalidUse(f'{where}, clock: {window!r} goes by no time; leave clock="key" out')
    return {
        "window": window,
        "grace": checked_grace(grace, window, where),
        "trigger": trigger,
        "panes": panes,
        "fires": fires,
        "clock": clock,
    }
