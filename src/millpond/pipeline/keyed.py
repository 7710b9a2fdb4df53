"""Keyed streams: rows that belong to keys, and the verbs that keep state for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Generic, Literal, Self, TypeVar, Unpack

from millpond.aggregations import Aggregation
from millpond.errors import InvalidUse
from millpond.pipeline.fields import Field
from millpond.pipeline.joining import Joining
from millpond.pipeline.retractions import with_retractions
from millpond.pipeline.state_options import Kept
from millpond.pipeline.stream import On, Stream, concurrent, function
from millpond.pipeline.table import Table, lookup_node
from millpond.pipeline.windowed import By, Fires, Panes, WindowedStream, window_options
from millpond.sinks.base import Sink
from millpond.steps.failure import OnError
from millpond.steps.state.handle import State
from millpond.steps.state.ttl import TTL, Lifetime, checked_ttl
from millpond.steps.verbs.aggregate import Aggregate
from millpond.steps.verbs.apply import Apply
from millpond.steps.verbs.deduplicate import Deduplicate
from millpond.steps.verbs.expiring_map import begin as begin_map
from millpond.steps.verbs.external import External
from millpond.steps.verbs.filter import Filter
from millpond.steps.verbs.flat_map import FlatMap
from millpond.steps.verbs.inspect import Inspect
from millpond.steps.verbs.map import Map
from millpond.steps.verbs.process import Process, Processor, made
from millpond.steps.verbs.with_time import WithTime
from millpond.steps.windows.definitions import MISSING, Window
from millpond.steps.windows.triggers import Trigger, on_close
from millpond.timing import duration

R = TypeVar("R")
K = TypeVar("K")
Out = TypeVar("Out")
S = TypeVar("S")

_ON_CLOSE = on_close()


class KeyedStream(Joining[K, R], Generic[K, R]):
    """Rows that belong to keys, each of which has state of its own.

    >>> import millpond as mp
    >>> app = mp.App("orders")
    >>> orders = app.stream("orders", mp.sources.rows([]))
    >>> def add_up(key, order, total):
    ...     total += order["amount"]
    ...     return {"customer": key, "total": total}, total
    >>> totals = orders.key_by("customer").stateful_map("total", add_up, initial=0)
    >>> out = totals.to("totals", mp.sinks.memory())
    >>> with mp.testing.TestDriver(app) as driver:
    ...     driver.send("orders", [{"customer": "ann", "amount": 3}, {"customer": "ann", "amount": 4}])
    ...     driver.state("total").get("ann")
    7
    """

    # The key stays with the rows through these verbs, so they give a keyed stream again.
    def map(self, f: Callable[[R], Out]) -> KeyedStream[K, Out]:
        """Each row becomes what `f` makes of it, and keeps its key.

        >>> import millpond as mp
        >>> rows = mp.App("a").stream("n", mp.sources.rows([{"k": 1}])).key_by("k").map(lambda row: row)
        """
        return KeyedStream(self._graph, self._same(Map(function(f, "map"))))

    def filter(self, f: Callable[[R], Any]) -> KeyedStream[K, R]:
        """Only the rows for which `f` is true go on, with their key.

        >>> import millpond as mp
        >>> rows = mp.App("a").stream("n", mp.sources.rows([{"k": 1}])).key_by("k").filter(bool)
        """
        return KeyedStream(self._graph, self._same(Filter(function(f, "filter"))))

    def flat_map(self, f: Callable[[R], Iterable[Out]]) -> KeyedStream[K, Out]:
        """Each row becomes any number of rows of the same key.

        >>> import millpond as mp
        >>> rows = mp.App("a").stream("n", mp.sources.rows([{"k": 1}])).key_by("k").flat_map(list)
        """
        return KeyedStream(self._graph, self._same(FlatMap(function(f, "flat_map"))))

    def inspect(self, f: Callable[[R], Any]) -> KeyedStream[K, R]:
        """Show each row to `f`, and let it go on with its key.

        >>> import millpond as mp
        >>> rows = mp.App("a").stream("n", mp.sources.rows([{"k": 1}])).key_by("k").inspect(print)
        """
        return KeyedStream(self._graph, self._same(Inspect(function(f, "inspect"))))

    def with_time(self, f: Callable[[R], Any]) -> KeyedStream[K, R]:
        """Set each row's event time anew.

        >>> import millpond as mp
        >>> rows = mp.App("a").stream("n", mp.sources.rows([{"k": 1}])).key_by("k").with_time(lambda row: 1)
        """
        return KeyedStream(self._graph, self._same(WithTime(function(f, "with_time"))))

    def map_async(
        self, f: Callable[[R], Any], workers: int = 8, *, on_error: OnError | None = None
    ) -> KeyedStream[K, Any]:
        """As `map`, for a function that waits: it runs over `workers` rows at a time, and rows keep their key.

        >>> import millpond as mp
        >>> rows = mp.App("a").stream("n", mp.sources.rows([{"k": 1}])).key_by("k").map_async(lambda row: row)
        """
        return KeyedStream(self._graph, self._same(concurrent(f, workers, on_error, self._node)))

    def lookup(
        self,
        name: str,
        table: Table | External,
        *,
        on: On | None = None,
        how: Literal["left", "inner"] = "left",
        merge: Callable[[R, Any], Any] | None = None,
        on_error: OnError | None = None,
    ) -> KeyedStream[K, Any]:
        """Each row with the row of a table that has its key, or the key that `on` says; it keeps its own.

        >>> import millpond as mp
        >>> app = mp.App("shop")
        >>> prices = app.table("prices", app.stream("updates", mp.sources.rows([])).key_by("sku"))
        >>> priced = app.stream("orders", mp.sources.rows([])).key_by("sku").lookup("priced", prices, how="inner")
        """
        return KeyedStream(self._graph, lookup_node(self._graph, self._node, name, table, on, how, merge, on_error))

    def branch(self, **predicates: Callable[[R], Any]) -> dict[str, Stream[R]]:
        """Part the stream; the rows of every part keep their key.

        >>> import millpond as mp
        >>> parts = mp.App("a").stream("n", mp.sources.rows([{"k": 1}])).key_by("k").branch(one=lambda r: r["k"])
        """
        parts = super().branch(**predicates)
        return {name: KeyedStream(self._graph, part._node) for name, part in parts.items()}

    def to(self, name: str, sink: Sink) -> KeyedStream[K, R]:
        """Send the rows to a sink, and return the stream.

        >>> import millpond as mp
        >>> rows = mp.App("a").stream("n", mp.sources.rows([{"k": 1}])).key_by("k").to("out", mp.sinks.memory())
        """
        super().to(name, sink)
        return self

    def stateful_map(
        self,
        name: str,
        f: Callable[[K, R, S], tuple[Out | None, S | None]],
        *,
        initial: Any = None,
        **how: Unpack[Kept],
    ) -> KeyedStream[K, Out]:
        """`f(key, row, state)` gives `(output, state)`. State `None` drops it, output `None` emits nothing.

        `initial` is what a key begins with: a value, copied each time, or a function that makes one. `ttl` is how long
        a state lives from the last row on, a duration or `mp.ttl(…)`; then the key begins with `initial` again.

        >>> import millpond as mp
        >>> rows = mp.App("a").stream("n", mp.sources.rows([{"k": 1}])).key_by("k")
        >>> counted = rows.stateful_map("count", lambda key, row, n: (n + 1, n + 1), initial=0)
        """
        options = {"f": function(f, f"stateful_map({name!r})"), "initial": initial}
        return self._step(begin_map, name, "stateful_map", options, **how)

    def apply(
        self,
        name: str,
        f: Callable[[R, State], Out | None],
        **how: Unpack[Kept],
    ) -> KeyedStream[K, Out]:
        """`f(row, state)` gives an output, or `None` for none, and reads and writes the key's named state.

        `ttl` is how long what is set lives, each value, list and element of a map on its own: a duration from the last
        time that it was written, or `mp.ttl(…)`.

        >>> import millpond as mp
        >>> def nth(row, state):
        ...     state.set("n", state.get("n", 0) + 1)
        ...     return {**row, "n": state.get("n")}
        >>> rows = mp.App("a").stream("n", mp.sources.rows([{"k": 1}])).key_by("k").apply("nth", nth)
        """
        options = {"f": function(f, f"apply({name!r})")}
        return self._step(Apply, name, "apply", options, **how)

    def flat_apply(
        self,
        name: str,
        f: Callable[[R, State], Iterable[Out] | None],
        **how: Unpack[Kept],
    ) -> KeyedStream[K, Out]:
        """`f(row, state)` gives any number of outputs.

        >>> import millpond as mp
        >>> rows = mp.App("a").stream("n", mp.sources.rows([{"k": 1}])).key_by("k")
        >>> twice = rows.flat_apply("twice", lambda row, state: [row, row])
        """
        options = {"f": function(f, f"flat_apply({name!r})")}
        return self._step(Apply, name, "flat_apply", options, **how)

    def update(
        self,
        name: str,
        f: Callable[[R, State], Any],
        **how: Unpack[Kept],
    ) -> KeyedStream[K, R]:
        """`f(row, state)` changes the row in place; what it returns does not matter.

        >>> import millpond as mp
        >>> def number(row, state):
        ...     row["n"] = state.get("n", 0)
        ...     state.set("n", row["n"] + 1)
        >>> rows = mp.App("a").stream("n", mp.sources.rows([{"k": 1}])).key_by("k").update("number", number)
        """
        options = {"f": function(f, f"update({name!r})")}
        return self._step(Apply, name, "update", options, **how)

    def stateful_filter(
        self,
        name: str,
        f: Callable[[R, State], Any],
        **how: Unpack[Kept],
    ) -> KeyedStream[K, R]:
        """The row goes on when `f(row, state)` is true.

        >>> import millpond as mp
        >>> def rising(row, state):
        ...     last = state.get("last")
        ...     state.set("last", row["v"])
        ...     return last is None or row["v"] > last
        >>> rows = mp.App("a").stream("n", mp.sources.rows([])).key_by("k").stateful_filter("rising", rising)
        """
        options = {"f": function(f, f"stateful_filter({name!r})")}
        return self._step(Apply, name, "stateful_filter", options, **how)

    def aggregate(
        self,
        name: str,
        *,
        ttl: Lifetime | None = None,
        renamed_from: str | None = None,
        on_error: OnError | None = None,
        **aggregations: Aggregation,
    ) -> KeyedStream[K, dict[str, Any]]:
        """Running aggregates: an output per row, with the key's fields and every aggregate by its name.

        With a `ttl` a key that had no row for so long begins anew.

        >>> import millpond as mp
        >>> orders = mp.App("a").stream("orders", mp.sources.rows([])).key_by("customer")
        >>> spend = orders.aggregate("spend", n=mp.count(), spent=mp.sum("amount"))
        """
        wrong = [n for n, a in aggregations.items() if not isinstance(a, Aggregation)]
        clash = sorted(set(aggregations) & set(self._node.keyed or ()))
        if not aggregations or wrong or clash:
            raise InvalidUse(
                f"aggregate({name!r}): expected aggregations by name such as n=mp.count(), with names other "
                f"than the key's {list(self._node.keyed or ())}, got {wrong or clash or 'none'}"
            )
        aggregations = with_retractions(f"aggregate({name!r})", self._graph, self._node, aggregations) or aggregations
        options = {"aggregations": aggregations, "key_names": self._node.keyed}
        return self._step(Aggregate, name, "aggregate", options, on_error=on_error, ttl=ttl, renamed_from=renamed_from)

    def deduplicate(
        self,
        name: str,
        by: str | Callable[[R], Any] | None = None,
        within: Any = None,
        *,
        renamed_from: str | None = None,
        on_error: OnError | None = None,
    ) -> KeyedStream[K, R]:
        """Only the first row of each key, or of each `by` of a key, goes on; `within` a time, or for ever.

        `within` counts as a `ttl` does: a row that passes at t is remembered until t + `within`, by event time where
        rows have one, and one that is older than the watermark from the watermark on.

        >>> import millpond as mp
        >>> payments = mp.App("a").stream("payments", mp.sources.rows([])).key_by("card")
        >>> once = payments.deduplicate("once", by="payment_id", within="1d")
        """
        where = f"deduplicate({name!r}, within)"
        lives = None if within is None else checked_ttl(duration(within, where), where)
        options: dict[str, Any] = {"by": by if by is None or callable(by) else Field(by), "within": None}
        detail = {}
        if lives is not None:
            options |= {"within": lives.after, "ttl": TTL(lives.after, refresh="never")}
            detail["within"] = lives.detail["after"]
        return self._step(
            Deduplicate, name, "deduplicate", options, on_error=on_error, renamed_from=renamed_from, **detail
        )

    def process(
        self,
        name: str,
        processor: Processor | Callable[[], Processor],
        **how: Unpack[Kept],
    ) -> KeyedStream[K, Any]:
        """State and timers: `processor` is an object, or its class, or a function without arguments that makes one.

        `on_row(key, row, state, timers)` is called for every row, and `on_timer(key, timer, state, timers)` for every
        timer that it has set, in the order of time, when the watermark or the clock has come to it. Both return an
        output, a list of them or `None`, or yield outputs. What a timer puts out has the timer's time, or the watermark
        if the timer went by the clock. At the end of the input every timer of event time fires once.

        >>> import millpond as mp
        >>> class Forgotten:
        ...     def on_row(self, key, row, state, timers):
        ...         if row["what"] == "pay":
        ...             timers.cancel("remind")
        ...         else:
        ...             timers.set("remind", after="30m", payload=row["what"])
        ...     def on_timer(self, key, timer, state, timers):
        ...         return {"customer": key, "forgot": timer.payload}
        >>> app = mp.App("shop")
        >>> clicks = app.stream("clicks", mp.sources.rows([]), timestamp="at").key_by("customer")
        >>> out = clicks.process("reminders", Forgotten).to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("clicks", [{"customer": "ann", "what": "tea", "at": "2030-01-01T12:00Z"}])
        ...     driver.send("clicks", [{"customer": "bob", "what": "pen", "at": "2030-01-01T12:31Z"}])
        ...     driver.output("out")
        [{'customer': 'ann', 'forgot': 'tea'}]
        """
        options = {"make": made(processor, f"process({name!r})")}
        return self._step(Process, name, "process", options, **how)

    def window(
        self,
        name: str,
        window: Window,
        *,
        grace: str | int | timedelta = MISSING,
        trigger: Trigger = _ON_CLOSE,
        panes: Panes = "accumulate",
        fires: Fires = "this",
        clock: By = "stream",
        renamed_from: str | None = None,
        on_error: OnError | None = None,
    ) -> WindowedStream[K, R]:
        """Put the rows of each key into windows; `aggregate` then says what to make of them.

        A window closes when the watermark has passed its end by `grace`; what comes later is late. `trigger` says
        when it shows a pane before that, `panes` whether a pane holds all rows so far, those since the last pane, or
        all of them with the last pane taken back. With `fires="all"` one trigger per key shows all open windows of
        the key. With `clock="key"` windows go by the newest time of their own key.

        >>> import millpond as mp
        >>> orders = mp.App("a").stream("orders", mp.sources.rows([]), timestamp="at").key_by("customer")
        >>> per_minute = orders.window("per-minute", mp.tumbling("1m"), grace="10s")
        >>> totals = per_minute.aggregate(n=mp.count(), spent=mp.sum("amount"))
        """
        options = window_options(name, window, grace, trigger, panes, fires, clock)
        return WindowedStream(self, name, options, on_error, renamed_from)


class JoinedStream(KeyedStream[K, R], Generic[K, R]):
    """What a join of two streams brings, and beside it the rows that came too late for it.

    >>> import millpond as mp
    >>> app = mp.App("shop")
    >>> orders = app.stream("orders", mp.sources.rows([]), timestamp="at").key_by("order")
    >>> payments = app.stream("payments", mp.sources.rows([]), timestamp="at").key_by("order")
    >>> paid = orders.join_interval("paid", payments, after="1h", grace="5m").to("out", mp.sinks.memory())
    >>> late = paid.late.to("late", mp.sinks.memory())
    """

    @property
    def on_time(self) -> KeyedStream[K, R]:  # type: ignore[override]
        """The outputs that are not older than the watermark with which their batch began.

        >>> import millpond as mp
        >>> rows = mp.App("a").stream("n", mp.sources.rows([]), timestamp="at").key_by("k")
        >>> fresh = rows.join_asof("j", rows, keep="1d").on_time
        """
        return KeyedStream[K, R](self._graph, self._node).on_time

    @property
    def late(self) -> Stream[dict[str, Any]]:  # type: ignore[override]
        """The rows that came too late to join: `{row, key, late_by, side}`, the side being "left" or "right".

        >>> import millpond as mp
        >>> rows = mp.App("a").stream("n", mp.sources.rows([]), timestamp="at").key_by("k")
        >>> late = rows.join_asof("j", rows, keep="1d").late
        """
        return self._aside()

    def to(self, name: str, sink: Sink) -> Self:
        """Send the outputs to a sink, and return the stream.

        >>> import millpond as mp
        >>> rows = mp.App("a").stream("n", mp.sources.rows([]), timestamp="at").key_by("k")
        >>> joined = rows.join_asof("j", rows, keep="1d").to("out", mp.sinks.memory())
        """
        super().to(name, sink)
        return self
