"""Keyed streams: rows that belong to keys, and the verbs that keep state for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Generic, Literal, Self, TypeVar, Unpack

from millpond.aggregations import Aggregation
from millpond.errors import InvalidUse
from millpond.pipeline import graph as g
from millpond.pipeline import joins
from millpond.pipeline.fields import Field
from millpond.pipeline.retractions import with_retractions
from millpond.pipeline.state_options import StateOptions, StepSettings, step_settings
from millpond.pipeline.stream import Frame, On, Stream, batch_operator, concurrent, function
from millpond.pipeline.table import Table, lookup_node
from millpond.pipeline.windowed import WindowedStream, check_window
from millpond.sinks.base import Sink
from millpond.steps.failure import OnError
from millpond.steps.joins.asof import AsofJoinStep
from millpond.steps.joins.interval import IntervalJoinStep
from millpond.steps.joins.join_step import JoinStep
from millpond.steps.joins.window import WindowJoinStep
from millpond.steps.kind import Step
from millpond.steps.state.handle import State
from millpond.steps.state.ttl import TTL, Lifetime, checked_ttl
from millpond.steps.verbs.aggregate import AggregateStep
from millpond.steps.verbs.apply import ApplyStep, FlatApplyStep, StatefulFilterStep, UpdateStep
from millpond.steps.verbs.deduplicate import DeduplicateStep
from millpond.steps.verbs.external import External
from millpond.steps.verbs.filter import Filter
from millpond.steps.verbs.flat_map import FlatMap
from millpond.steps.verbs.inspect import Inspect
from millpond.steps.verbs.map import Map
from millpond.steps.verbs.process import Processor, ProcessStep, processor_factory
from millpond.steps.verbs.stateful_map import StatefulMapStep
from millpond.steps.verbs.with_time import WithTime
from millpond.steps.windows.definitions import MISSING, Hopping, Window
from millpond.steps.windows.triggers import Trigger, on_close
from millpond.steps.windows.window_step import By, Fires, Panes
from millpond.timing import duration

R = TypeVar("R")
K = TypeVar("K")
Out = TypeVar("Out")
S = TypeVar("S")

_ON_CLOSE = on_close()


class KeyedStream(Stream[R], Generic[K, R]):
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

    def map_batch(
        self, f: Callable[[Frame], Frame], *, on_error: OnError | None = None
    ) -> KeyedStream[K, dict[str, Any]]:
        """Call `f` with many rows at once, as a table; it returns one row for each, in their order.

        Rows keep their key, and the rows of one call may belong to several keys. The annotation of its first parameter
        says what `f` takes and returns: `pyarrow.Table` (also without an annotation), `polars.DataFrame` or
        `pandas.DataFrame`. `on_error` applies to all rows of a call. See `Stream.map_batch`.

        >>> import millpond as mp
        >>> import pyarrow.compute as pc
        >>> app = mp.App("a")
        >>> rows = app.stream("n", mp.sources.rows([])).key_by("k")
        >>> squares = rows.map_batch(lambda table: table.append_column("square", pc.power(table["n"], 2)))
        >>> total = squares.stateful_map("total", lambda key, row, sum: (sum + row["square"],) * 2, initial=0)
        >>> out = total.to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("n", [{"k": "a", "n": 2}, {"k": "b", "n": 3}, {"k": "a", "n": 4}])
        ...     driver.output("out")
        [4, 9, 20]
        """
        return KeyedStream(self._graph, self._same(batch_operator(f, on_error, self._node)))

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
        **how: Unpack[StateOptions],
    ) -> KeyedStream[K, Out]:
        """`f(key, row, state)` gives `(output, state)`. State `None` drops it, output `None` emits nothing.

        `initial` is what a key begins with: a value, copied each time, or a function that makes one. `ttl` is how long
        a state lives from the last row on, a duration or `mp.ttl(…)`; then the key begins with `initial` again.

        >>> import millpond as mp
        >>> rows = mp.App("a").stream("n", mp.sources.rows([{"k": 1}])).key_by("k")
        >>> counted = rows.stateful_map("count", lambda key, row, n: (n + 1, n + 1), initial=0)
        """
        function(f, f"stateful_map({name!r})")
        return self._add_step(StatefulMapStep(f=f, initial=initial, **self._settings("stateful_map", name, how)))

    def apply(
        self,
        name: str,
        f: Callable[[R, State], Out | None],
        **how: Unpack[StateOptions],
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
        function(f, f"apply({name!r})")
        return self._add_step(ApplyStep(f=f, **self._settings("apply", name, how)))

    def flat_apply(
        self,
        name: str,
        f: Callable[[R, State], Iterable[Out] | None],
        **how: Unpack[StateOptions],
    ) -> KeyedStream[K, Out]:
        """`f(row, state)` gives any number of outputs.

        >>> import millpond as mp
        >>> rows = mp.App("a").stream("n", mp.sources.rows([{"k": 1}])).key_by("k")
        >>> twice = rows.flat_apply("twice", lambda row, state: [row, row])
        """
        function(f, f"flat_apply({name!r})")
        return self._add_step(FlatApplyStep(f=f, **self._settings("flat_apply", name, how)))

    def update(
        self,
        name: str,
        f: Callable[[R, State], Any],
        **how: Unpack[StateOptions],
    ) -> KeyedStream[K, R]:
        """`f(row, state)` changes the row in place; what it returns does not matter.

        >>> import millpond as mp
        >>> def number(row, state):
        ...     row["n"] = state.get("n", 0)
        ...     state.set("n", row["n"] + 1)
        >>> rows = mp.App("a").stream("n", mp.sources.rows([{"k": 1}])).key_by("k").update("number", number)
        """
        function(f, f"update({name!r})")
        return self._add_step(UpdateStep(f=f, **self._settings("update", name, how)))

    def stateful_filter(
        self,
        name: str,
        f: Callable[[R, State], Any],
        **how: Unpack[StateOptions],
    ) -> KeyedStream[K, R]:
        """The row goes on when `f(row, state)` is true.

        >>> import millpond as mp
        >>> def rising(row, state):
        ...     last = state.get("last")
        ...     state.set("last", row["v"])
        ...     return last is None or row["v"] > last
        >>> rows = mp.App("a").stream("n", mp.sources.rows([])).key_by("k").stateful_filter("rising", rising)
        """
        function(f, f"stateful_filter({name!r})")
        return self._add_step(StatefulFilterStep(f=f, **self._settings("stateful_filter", name, how)))

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
        options: StateOptions = {"on_error": on_error, "ttl": ttl, "renamed_from": renamed_from}
        settings = self._settings("aggregate", name, options)
        return self._add_step(AggregateStep(aggregations=aggregations, key_names=self._node.keyed or (), **settings))

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
        options: StateOptions = {"on_error": on_error, "renamed_from": renamed_from}
        if lives is not None:
            options["ttl"] = TTL(lives.after, refresh="never")
        reader = by if by is None or callable(by) else Field(by)
        return self._add_step(DeduplicateStep(by=reader, **self._settings("deduplicate", name, options)))

    def process(
        self,
        name: str,
        processor: Processor | Callable[[], Processor],
        **how: Unpack[StateOptions],
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
        make = processor_factory(processor, f"process({name!r})")
        return self._add_step(ProcessStep(make=make, **self._settings("process", name, how)))

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
        options = check_window(name, window, grace, trigger, panes, fires, clock)
        return WindowedStream(self, name, options, {"on_error": on_error, "renamed_from": renamed_from})

    def join_interval(
        self,
        name: str,
        other: KeyedStream[K, Any],
        *,
        before: str | int | timedelta = 0,
        after: str | int | timedelta = 0,
        grace: str | int | timedelta = MISSING,
        how: Literal["inner", "left", "right", "outer"] = "inner",
        merge: Callable[[Any, Any], Any] | None = None,
        type: Any = None,
        on_error: OnError | None = None,
    ) -> JoinedStream[K, Any]:
        """Pairs of a row and one of the other stream, of one key, whose times are near each other.

        The other row's time lies from `before` before this one's to `after` after it, both included. Each pair comes
        once, with the later of its times, when the second of its rows comes. With `how` "left", "right" or "outer" a
        row of that side, or of either, that has met none comes once, with its own time, when no partner can come any
        more: when the watermark of both streams is past its reach and the `grace`.

        `merge` is given both rows, `None` for a missing one. Without it the output has the fields of both; those of the
        right that clash and differ get `_right`. If it raises, `on_error` is given both rows, and that pair is all
        that is lost: the two have met, and may meet others.

        Rows older than the watermark by more than `grace` join nothing and are on `.late`.

        >>> import millpond as mp
        >>> app = mp.App("shop")
        >>> orders = app.stream("orders", mp.sources.rows([]), timestamp="at").key_by("order")
        >>> payments = app.stream("payments", mp.sources.rows([]), timestamp="at").key_by("order")
        >>> paid = orders.join_interval("paid", payments, after=10, grace=mp.NO_GRACE, how="left")
        >>> out = paid.to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("orders", [{"order": 1, "at": 5}, {"order": 2, "at": 6}])
        ...     driver.send("payments", [{"order": 1, "at": 8, "by": "card"}])
        ...     driver.finish()
        ...     driver.output("out")
        [{'order': 1, 'at': 5, 'at_right': 8, 'by': 'card'}, {'order': 2, 'at': 6}]
        """
        options = joins.check_interval(name, before, after, grace, how, merge)
        settings = self._join_settings("join_interval", name, other, {"type": type, "on_error": on_error})
        return self._add_join(IntervalJoinStep(**options, **settings), other)

    def join_asof(
        self,
        name: str,
        other: KeyedStream[K, Any],
        *,
        keep: str | int | timedelta = MISSING,
        how: Literal["inner", "left"] = "inner",
        wait: bool = False,
        merge: Callable[[Any, Any], Any] | None = None,
        type: Any = None,
        on_error: OnError | None = None,
    ) -> JoinedStream[K, Any]:
        """Each row with the newest row of the other stream, of its key, at or before its time.

        That is the newest that has arrived, with the same batch at the latest; of several of one time, the last to
        arrive. With `wait=True` the row waits until the watermark of both streams has passed it, so that all have. A
        row more than `keep` older is no match, and rows of the other stream leave when the watermark is that far ahead.
        With `how="left"` a row without a match comes too.

        A row behind the watermark joins if its match is still kept; if none is, it is on `.late`, for there may have
        been one. So is a row of the other stream that is older than the watermark by more than `keep`.

        >>> import millpond as mp
        >>> app = mp.App("market")
        >>> trades = app.stream("trades", mp.sources.rows([]), timestamp="at").key_by("paper")
        >>> quotes = app.stream("quotes", mp.sources.rows([]), timestamp="at").key_by("paper")
        >>> quoted = trades.join_asof("quoted", quotes, keep=1000, how="left")
        >>> out = quoted.to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("quotes", [{"paper": "X", "at": 1, "bid": 9}, {"paper": "X", "at": 4, "bid": 8}])
        ...     driver.send("trades", [{"paper": "X", "at": 3}, {"paper": "Y", "at": 3}])
        ...     driver.output("out")
        [{'paper': 'X', 'at': 3, 'at_right': 1, 'bid': 9}, {'paper': 'Y', 'at': 3}]
        """
        options = joins.check_asof(name, keep, how, wait, merge)
        settings = self._join_settings("join_asof", name, other, {"type": type, "on_error": on_error})
        return self._add_join(AsofJoinStep(**options, **settings), other)

    def join_window(
        self,
        name: str,
        other: KeyedStream[K, Any],
        window: Hopping,
        *,
        grace: str | int | timedelta = MISSING,
        how: Literal["inner", "left", "right", "outer"] = "inner",
        merge: Callable[[Any, Any], Any] | None = None,
        type: Any = None,
        on_error: OnError | None = None,
    ) -> JoinedStream[K, Any]:
        """Every pair of a row and one of the other stream, of one key, that are in the same window.

        The windows are `mp.tumbling` or `mp.hopping`. Pairs come when their window closes: when the watermark of both
        streams has passed its end by `grace`. Where windows overlap, a pair comes once for each window that holds
        both. With `how` "left", "right" or "outer" a row that meets none in a window comes alone, for that window.
        An output has the later of its rows' times. `merge` is as in `join_interval`.

        A row that missed a window is on `.late`, with `missed`, and counts in the windows that are open.

        >>> import millpond as mp
        >>> app = mp.App("site")
        >>> views = app.stream("views", mp.sources.rows([]), timestamp="at").key_by("user")
        >>> clicks = app.stream("clicks", mp.sources.rows([]), timestamp="at").key_by("user")
        >>> seen = views.join_window("seen", clicks, mp.tumbling(10), grace=mp.NO_GRACE)
        >>> out = seen.to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send({
        ...         "views": [{"user": "ann", "at": 1, "page": "a"}, {"user": "ann", "at": 11, "page": "b"}],
        ...         "clicks": [{"user": "ann", "at": 9}],
        ...     })
        ...     driver.finish()
        ...     driver.output("out")
        [{'user': 'ann', 'at': 1, 'page': 'a', 'at_right': 9}]
        """
        options = joins.check_window(name, window, grace, how, merge)
        settings = self._join_settings("join_window", name, other, {"type": type, "on_error": on_error})
        return self._add_join(WindowJoinStep(**options, **settings), other)

    # --- how steps are added ---

    def _settings(self, verb: str, name: str, options: StateOptions) -> StepSettings:
        return step_settings(self._graph, self._node, verb, name, options)

    def _add_step(self, step: Step) -> KeyedStream[K, Any]:
        node = self._graph.add(
            g.StatefulStep(step), (self._node.id,), keyed=self._node.keyed, on_error=self._node.on_error
        )
        return KeyedStream(self._graph, node)

    def _join_settings(self, verb: str, name: str, other: Any, options: StateOptions) -> StepSettings:
        """Check the other side of a join, then claim its name and check its options."""
        where = f"{verb}({name!r})"
        if not isinstance(other, KeyedStream) or other._graph is not self._graph:
            raise InvalidUse(f"{where}: expected as the other side a keyed stream of the same app, got {other!r}")
        joins.check_keyed_alike(where, self._node, other._node)
        return self._settings(verb, name, options)

    def _add_join(self, step: JoinStep, other: KeyedStream[K, Any]) -> JoinedStream[K, Any]:
        inputs = tuple(
            stream._same(g.JoinInput(side, step.name, step.on_error)).id for side, stream in enumerate((self, other))
        )
        node = self._graph.add(g.StatefulStep(step), inputs, keyed=self._node.keyed, on_error=self._node.on_error)
        return JoinedStream(self._graph, node)

    def _side_output(self) -> Stream[Any]:
        """Return the side stream of the step that this stream comes from, such as its late rows."""
        return Stream(self._graph, self._same(g.SideOutput()))


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
        return self._side_output()

    def to(self, name: str, sink: Sink) -> Self:
        """Send the outputs to a sink, and return the stream.

        >>> import millpond as mp
        >>> rows = mp.App("a").stream("n", mp.sources.rows([]), timestamp="at").key_by("k")
        >>> joined = rows.join_asof("j", rows, keep="1d").to("out", mp.sinks.memory())
        """
        super().to(name, sink)
        return self
