"""Keyed streams: rows that belong to keys, and the verbs that keep state for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Generic, Literal, Self, TypeVar, Unpack

from millpond.aggregations import Aggregation
from millpond.aggregations.base import check_given_aggregations
from millpond.errors import InvalidUse
from millpond.pipeline import graph as g
from millpond.pipeline import joins
from millpond.pipeline.event_time import check_aggregations, check_has_times
from millpond.pipeline.retractions import with_retractions
from millpond.pipeline.state_options import StateOptions, StepSettings, step_settings
from millpond.pipeline.stream import Frame, On, Out, R, Stream, async_operator, batch_operator
from millpond.pipeline.table import LookupOptions, Table, add_lookup, check_tables
from millpond.pipeline.windowed import GivenWindow, K, WindowedStream, check_window
from millpond.replica.store import Store
from millpond.rows.fields import FieldReader
from millpond.rows.frame_kinds import frame_kind
from millpond.sinks.base import Sink
from millpond.steps.failure import OnError
from millpond.steps.joins.asof import AsofJoinStep
from millpond.steps.joins.interval import IntervalJoinStep
from millpond.steps.joins.join_step import JoinStep
from millpond.steps.joins.window import WindowJoinStep
from millpond.steps.kind import Step
from millpond.steps.state.handle import State
from millpond.steps.state.state_columns import check_columns
from millpond.steps.state.ttl import TTL, Lifetime, check_ttl
from millpond.steps.verbs.aggregate import AggregateStep
from millpond.steps.verbs.apply import ApplyStep, FlatApplyStep, StatefulFilterStep, UpdateStep
from millpond.steps.verbs.apply_batch import ApplyBatchStep
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
from millpond.user_functions import check_function, check_step_function

S = TypeVar("S")

_ON_CLOSE = on_close()


class KeyedStream(Stream[R], Generic[K, R]):
    """Rows that belong to keys. Each key has state of its own in every step.

    The verbs of `Stream` work as they do there, and the rows keep their key through all of them.

    >>> import millpond as mp
    >>> app = mp.App("orders")
    >>> orders = app.stream("orders", mp.sources.rows([]))
    >>> def add_up(key, order, total):
    ...     total += order["amount"]
    ...     return {"customer": key, "total": total}, total
    >>> paid = orders.key_by("customer").filter(lambda order: order["paid"])
    >>> out = paid.stateful_map("total", add_up, initial=0).to("out", mp.sinks.memory())
    >>> with mp.testing.TestDriver(app) as driver:
    ...     driver.send("orders", [{"customer": "ann", "amount": 3, "paid": True}])
    ...     driver.send("orders", [{"customer": "ann", "amount": 4, "paid": True}])
    ...     driver.send("orders", [{"customer": "ann", "amount": 9, "paid": False}])
    ...     driver.output("out")
    ...     driver.state("total").get("ann")
    [{'customer': 'ann', 'total': 3}, {'customer': 'ann', 'total': 7}]
    7
    """

    # --- verbs of Stream, which return a keyed stream here: documented there ---

    def map(self, f: Callable[[R], Out]) -> KeyedStream[K, Out]:
        return KeyedStream(self._graph, self._same(Map(check_function(f, "map", "row"))))

    def filter(self, f: Callable[[R], Any]) -> KeyedStream[K, R]:
        return KeyedStream(self._graph, self._same(Filter(check_function(f, "filter", "row"))))

    def flat_map(self, f: Callable[[R], Iterable[Out]]) -> KeyedStream[K, Out]:
        return KeyedStream(self._graph, self._same(FlatMap(check_function(f, "flat_map", "row"))))

    def inspect(self, f: Callable[[R], Any]) -> KeyedStream[K, R]:
        return KeyedStream(self._graph, self._same(Inspect(check_function(f, "inspect", "row"))))

    def with_time(self, f: Callable[[R], Any]) -> KeyedStream[K, R]:
        return KeyedStream(self._graph, self._same(WithTime(check_function(f, "with_time", "row"))))

    def map_async(
        self, f: Callable[[R], Any], workers: int = 8, *, on_error: OnError | None = None
    ) -> KeyedStream[K, Any]:
        return KeyedStream(self._graph, self._same(async_operator(f, workers, on_error, self._node)))

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
        """Add to each row the row of a table that has its key, or the key that `on` gives. The row keeps its own key.

        The arguments are those of `Stream.lookup`. A stream that is keyed like the table needs no `on`.

        >>> import millpond as mp
        >>> app = mp.App("shop")
        >>> prices = app.table("prices", app.stream("updates", mp.sources.rows([])).key_by("sku"))
        >>> orders = app.stream("orders", mp.sources.rows([])).key_by("sku")
        >>> out = orders.lookup("priced", prices, how="inner").to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send({"updates": [{"sku": "tea", "price": 3}], "orders": [{"sku": "tea"}, {"sku": "pen"}]})
        ...     driver.output("out")
        [{'sku': 'tea', 'price': 3}]
        """
        options: LookupOptions = {"on": on, "how": how, "merge": merge, "on_error": on_error}
        return KeyedStream(self._graph, add_lookup(self._graph, self._node, name, table, options))

    def branch(self, **predicates: Callable[[R], Any]) -> dict[str, Stream[R]]:
        parts = super().branch(**predicates)
        return {name: KeyedStream(self._graph, part._node) for name, part in parts.items()}

    def to(self, name: str, sink: Sink) -> KeyedStream[K, R]:
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
        """Call `f(key, row, state)` for every row; it returns `(output, new state)`.

        An output of `None` emits nothing, a new state of `None` drops the key's state. `initial` is the state that a
        key starts with: a value, which is copied for each key, or a function that makes one. With a `ttl`, a key that
        had no row for that long starts with `initial` again.

        Rows of one key are processed in their order. If `f` raises, the state stays as it was before the row, and
        `on_error` decides about the row.

        >>> import millpond as mp
        >>> app = mp.App("visits")
        >>> def number(page, visit, n):
        ...     return {**visit, "number": n + 1}, n + 1
        >>> visits = app.stream("visits", mp.sources.rows([])).key_by("page")
        >>> out = visits.stateful_map("numbers", number, initial=0).to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("visits", [{"page": "/"}, {"page": "/about"}, {"page": "/"}])
        ...     driver.output("out")
        [{'page': '/', 'number': 1}, {'page': '/about', 'number': 1}, {'page': '/', 'number': 2}]
        """
        check_step_function(f, "stateful_map", name, "key", "row", "state")
        if callable(initial):
            check_function(initial, f"stateful_map({name!r}, initial)")
        return self._add_step(StatefulMapStep(f=f, initial=initial, **self._settings("stateful_map", name, how)))

    def apply(
        self,
        name: str,
        f: Callable[[R, State], Out | None],
        *,
        tables: Sequence[Table] = (),
        **how: Unpack[StateOptions],
    ) -> KeyedStream[K, Out]:
        """Call `f(row, state)` for every row; it returns an output, or `None` for none.

        `state` is a `State`: named values, lists and maps of the key. If `f` raises, what it wrote is undone. With a
        `ttl` each value, list and element of a map expires on its own: a duration after it was last written, or as
        `mp.ttl(…)` says.

        `tables` are tables with `everywhere=True` that `f` reads by `state.table(name)`, which is a `StateTable`. All
        changes that a batch makes to them come before its rows.

        >>> import millpond as mp
        >>> app = mp.App("readings")
        >>> def jump(reading, state):
        ...     last = state.get("last", reading["value"])
        ...     state.set("last", reading["value"])
        ...     if abs(reading["value"] - last) > 10:
        ...         return {"sensor": state.key, "from": last, "to": reading["value"]}
        >>> readings = app.stream("readings", mp.sources.rows([])).key_by("sensor")
        >>> out = readings.apply("jumps", jump).to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("readings", [{"sensor": "a", "value": value} for value in (20, 21, 45)])
        ...     driver.output("out")
        [{'sensor': 'a', 'from': 21, 'to': 45}]
        """
        check_step_function(f, "apply", name, "row", "state")
        return self._add_step(ApplyStep(f=f, **self._settings("apply", name, how)), tables)

    def apply_batch(
        self,
        name: str,
        f: Callable[[Frame, Frame], tuple[Frame | None, Frame | None]],
        *,
        state: Mapping[str, Any],
        ttl: Lifetime | None = None,
        version: int = 1,
        migrate: Mapping[int, Callable[..., Any]] | None = None,
        renamed_from: str | None = None,
        on_error: OnError | None = None,
        store: str | Store | None = None,
    ) -> KeyedStream[K, dict[str, Any]]:
        """Call `f(rows, states)` once per batch and partition that has rows; it returns `(outputs, states)`.

        All four are tables. `rows` has the rows of the partition's batch in their order, of many keys, as `map_batch`
        gives them. `states` has a row for each key that occurs in them: the key, and a column for each entry of
        `state`, which says its type (`int`, `float`, `str`, … or a `pyarrow.DataType`). The columns are null where the
        key has no state. In both tables the key is in columns that are named as in `key_by`: the fields, or the name
        of a function, which is "key" if it has none.

        The outputs have one row for each row, in their order, and keep its key and event time; None or a table without
        rows emits nothing. Of the returned states, each row replaces the state of its key, and a row with null in all
        columns of the state drops it. Keys that are left out keep their state, and None leaves all as they are.

        The annotation of the parameters says what `f` takes and returns: `pyarrow.Table` (also without an annotation),
        `polars.DataFrame` or `pandas.DataFrame`.

        A call cannot say which row failed, so `on_error` applies to all rows of the call, and no state changes. With a
        `ttl`, a key is read at the time of its first row in the batch, and written at its latest time.

        >>> import millpond as mp
        >>> import pyarrow as pa
        >>> import pyarrow.compute as pc
        >>> def number(rows, states):  # each visit of a user, numbered
        ...     place = pc.index_in(rows["user"], states["user"]).to_pylist()
        ...     counts, numbers = pc.fill_null(states["n"], 0).to_pylist(), []
        ...     for i in place:
        ...         counts[i] += 1
        ...         numbers.append(counts[i])
        ...     return rows.append_column("n", [numbers]), pa.table({"user": states["user"], "n": counts})
        >>> app = mp.App("visits")
        >>> visits = app.stream("visits", mp.sources.rows([])).key_by("user")
        >>> out = visits.apply_batch("numbers", number, state={"n": int}).to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("visits", [{"user": "ann"}, {"user": "bob"}, {"user": "ann"}])
        ...     driver.send("visits", [{"user": "ann"}])
        ...     driver.output("out")[-2:]
        ...     driver.state("numbers").get("ann")
        [{'user': 'ann', 'n': 2}, {'user': 'ann', 'n': 3}]
        {'n': 3}
        """
        where, key_names = f"apply_batch({name!r})", self._node.keyed or ()
        check_step_function(f, "apply_batch", name, "rows", "states")
        frames, columns = frame_kind(f, where, parameters=2), check_columns(state, key_names, where)
        how: StateOptions = {
            "ttl": ttl,
            "version": version,
            "migrate": migrate,
            "renamed_from": renamed_from,
            "on_error": on_error,
            "store": store,
        }
        settings = self._settings("apply_batch", name, how)
        return self._add_step(ApplyBatchStep(f=f, frames=frames, columns=columns, key_names=key_names, **settings))

    def flat_apply(
        self,
        name: str,
        f: Callable[[R, State], Iterable[Out] | None],
        *,
        tables: Sequence[Table] = (),
        **how: Unpack[StateOptions],
    ) -> KeyedStream[K, Out]:
        """Call `f(row, state)` for every row; it returns any number of outputs, as a list or another iterable.

        As `apply` otherwise.

        >>> import millpond as mp
        >>> app = mp.App("baskets")
        >>> def collect(row, state):
        ...     items = state.list("items")
        ...     items.append(row["item"])
        ...     if len(items) == 2:
        ...         done = [{"customer": state.key, "item": item} for item in items]
        ...         items.clear()
        ...         return done
        >>> rows = app.stream("rows", mp.sources.rows([])).key_by("customer")
        >>> out = rows.flat_apply("pairs", collect).to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("rows", [{"customer": "ann", "item": item} for item in ("tea", "pen", "cup")])
        ...     driver.output("out")
        [{'customer': 'ann', 'item': 'tea'}, {'customer': 'ann', 'item': 'pen'}]
        """
        check_step_function(f, "flat_apply", name, "row", "state")
        return self._add_step(FlatApplyStep(f=f, **self._settings("flat_apply", name, how)), tables)

    def update(
        self,
        name: str,
        f: Callable[[R, State], Any],
        *,
        tables: Sequence[Table] = (),
        **how: Unpack[StateOptions],
    ) -> KeyedStream[K, R]:
        """Call `f(row, state)` for every row, which changes the row in place. What it returns is ignored.

        As `apply` otherwise.

        >>> import millpond as mp
        >>> app = mp.App("lines")
        >>> def number(row, state):
        ...     state.set("n", state.get("n", 0) + 1)
        ...     row["n"] = state.get("n")
        >>> lines = app.stream("lines", mp.sources.rows([])).key_by("file")
        >>> out = lines.update("number", number).to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("lines", [{"file": "a"}, {"file": "a"}])
        ...     driver.output("out")
        [{'file': 'a', 'n': 1}, {'file': 'a', 'n': 2}]
        """
        check_step_function(f, "update", name, "row", "state")
        return self._add_step(UpdateStep(f=f, **self._settings("update", name, how)), tables)

    def stateful_filter(
        self,
        name: str,
        f: Callable[[R, State], Any],
        *,
        tables: Sequence[Table] = (),
        **how: Unpack[StateOptions],
    ) -> KeyedStream[K, R]:
        """Let a row pass if `f(row, state)` is true.

        As `apply` otherwise.

        >>> import millpond as mp
        >>> app = mp.App("prices")
        >>> def is_new_high(row, state):
        ...     if row["price"] > state.get("high", 0):
        ...         state.set("high", row["price"])
        ...         return True
        >>> prices = app.stream("prices", mp.sources.rows([])).key_by("paper")
        >>> out = prices.stateful_filter("highs", is_new_high).to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("prices", [{"paper": "X", "price": price} for price in (7, 5, 9)])
        ...     [row["price"] for row in driver.output("out")]
        [7, 9]
        """
        check_step_function(f, "stateful_filter", name, "row", "state")
        return self._add_step(StatefulFilterStep(f=f, **self._settings("stateful_filter", name, how)), tables)

    def aggregate(
        self,
        name: str,
        *,
        ttl: Lifetime | None = None,
        renamed_from: str | None = None,
        on_error: OnError | None = None,
        store: str | Store | Aggregation | None = None,
        **aggregations: Aggregation,
    ) -> KeyedStream[K, dict[str, Any]]:
        """Keep running aggregates per key, and emit a row per input row: the key's fields and each result by its name.

        With a `ttl`, a key that had no row for that long starts from the beginning.

        >>> import millpond as mp
        >>> app = mp.App("shop")
        >>> orders = app.stream("orders", mp.sources.rows([])).key_by("customer")
        >>> out = orders.aggregate("spend", n=mp.count(), spent=mp.sum("amount")).to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("orders", [{"customer": "ann", "amount": 3}, {"customer": "ann", "amount": 4}])
        ...     driver.output("out")
        [{'customer': 'ann', 'n': 1, 'spent': 3}, {'customer': 'ann', 'n': 2, 'spent': 7}]
        """
        if isinstance(store, Aggregation):  # a result may have any name
            aggregations, store = {"store": store, **aggregations}, None
        check_given_aggregations(aggregations, f"aggregate({name!r})")
        clash = sorted(set(aggregations) & set(self._node.keyed or ()))
        if clash:
            raise InvalidUse(
                f"aggregate({name!r}): expected names other than the key's {list(self._node.keyed or ())}, got {clash}"
            )
        check_aggregations(self._graph, self._node, aggregations, f"aggregate({name!r})")
        retracting = with_retractions(f"aggregate({name!r})", self._graph, self._node, aggregations)
        options: StateOptions = {"on_error": on_error, "ttl": ttl, "renamed_from": renamed_from, "store": store}
        settings = self._settings("aggregate", name, options)
        step = AggregateStep(
            aggregations=retracting or aggregations,
            takes_back=retracting is not None,
            key_names=self._node.keyed or (),
            **settings,
        )
        return self._add_step(step)

    def deduplicate(
        self,
        name: str,
        by: str | Callable[[R], Any] | None = None,
        within: Any = None,
        *,
        renamed_from: str | None = None,
        on_error: OnError | None = None,
        store: str | Store | None = None,
    ) -> KeyedStream[K, R]:
        """Let only the first row of each key pass, or of each `by` of a key: for ever, or `within` a duration.

        `by` is a field or a function of the row. A row that passes at time t is remembered until t + `within`: by event
        time where rows have one, else by the clock. One that is older than the watermark counts from the watermark.

        >>> import millpond as mp
        >>> app = mp.App("payments")
        >>> payments = app.stream("payments", mp.sources.rows([]), timestamp="at").key_by("card")
        >>> out = payments.deduplicate("once", by="id", within=60).to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("payments", [{"card": 1, "id": "a", "at": at} for at in (0, 30, 100)])
        ...     [row["at"] for row in driver.output("out")]
        [0, 100]
        """
        where = f"deduplicate({name!r}, within)"
        lives = None if within is None else check_ttl(duration(within, where), where)
        options: StateOptions = {"on_error": on_error, "renamed_from": renamed_from, "store": store}
        if lives is not None:
            options["ttl"] = TTL(lives.after, refresh="never")
        if callable(by):
            check_function(by, f"deduplicate({name!r}, by)", "row")
        reader = by if by is None or callable(by) else FieldReader(by)
        return self._add_step(DeduplicateStep(by=reader, **self._settings("deduplicate", name, options)))

    def process(
        self,
        name: str,
        processor: Processor | Callable[[], Processor],
        *,
        tables: Sequence[Table] = (),
        **how: Unpack[StateOptions],
    ) -> KeyedStream[K, Any]:
        """Call a processor for every row and for every timer that it has set.

        `processor` is an object with a method `on_row`, or its class, or a function without arguments that makes one;
        a class or function is called once per batch and partition. `on_row(key, row, state, timers)` is called for
        every row. `on_timer(key, timer, state, timers)` is called for every timer, in the order of time, when the
        watermark or the clock has reached it. Both return an output, a list of outputs or `None`, or yield outputs. An
        output of a timer has the time of the timer, or the watermark if the timer goes by the clock. At the end of the
        input every timer of event time fires once.

        `tables` are tables with `everywhere=True` that both methods read by `state.table(name)`, which is a
        `StateTable`. All changes that a batch makes to them come before its rows and timers.

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
        return self._add_step(ProcessStep(make=make, **self._settings("process", name, how)), tables)

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
        store: str | Store | None = None,
    ) -> WindowedStream[K, R]:
        """Put the rows of each key into windows. Call `aggregate` on the result to say what to compute over each.

        A window closes when the watermark has passed its end by `grace`; rows that come later are late. `trigger`
        says when a window shows a pane before it closes. `panes` says what a pane holds: all rows so far
        ("accumulate"), those since the last pane ("discard"), or all rows so far after a row that takes the last pane
        back ("retract"). With `fires="all"`, a key has one trigger, which shows all its open windows. With
        `clock="key"`, windows close by the newest time of their own key instead of the watermark.

        >>> import millpond as mp
        >>> app = mp.App("shop")
        >>> orders = app.stream("orders", mp.sources.rows([]), timestamp="at").key_by("customer")
        >>> per_minute = orders.window("per-minute", mp.tumbling(60), grace=10)
        >>> out = per_minute.aggregate(n=mp.count()).to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("orders", [{"customer": "ann", "at": at} for at in (5, 50, 130)])
        ...     driver.output("out")
        [{'customer': 'ann', 'window_start': 0, 'window_end': 60, 'pane': 0, 'final': True, 'n': 2}]
        """
        given: GivenWindow = {
            "window": window,
            "grace": grace,
            "trigger": trigger,
            "panes": panes,
            "fires": fires,
            "clock": clock,
        }
        options = check_window(name, given)
        if window.is_timed:
            check_has_times(self._graph, self._node, f"window({name!r})")
        state_options: StateOptions = {"on_error": on_error, "renamed_from": renamed_from, "store": store}
        return WindowedStream(self, name, options, state_options)

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
        store: str | Store | None = None,
    ) -> JoinedStream[K, Any]:
        """Join rows of one key whose times are near each other.

        The time of the other stream's row is at most `before` before and at most `after` after that of this stream's.
        Each pair is emitted once, when its second row comes, with the later of the two times. With `how` "left",
        "right" or "outer", a row of that side, or of either, that was in no pair is emitted once, with its own time,
        when no partner can come any more: when the watermark of both streams has passed its interval and the `grace`.

        `merge` gets both rows, `None` for a missing one. Without it the output has the fields of both; fields of the
        right that also exist on the left with another value get the suffix `_right`. If `merge` raises, `on_error`
        gets both rows, and only that pair is lost: either row may still be in other pairs.

        Rows that are older than the watermark by more than `grace` are not joined; they are in `.late`.

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
        options = joins.check_join_interval(name, before, after, grace, how, merge)
        kept: StateOptions = {"type": type, "on_error": on_error, "store": store}
        settings = self._join_settings("join_interval", name, other, kept)
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
        store: str | Store | None = None,
    ) -> JoinedStream[K, Any]:
        """Join each row with the newest row of the other stream, of the same key, at or before its time.

        That is the newest that has arrived so far, including those of the same batch; of several with the same time,
        the last to arrive. With `wait=True` the row waits until the watermark of both streams has passed it, so that
        no newer match can arrive. A row that is more than `keep` older is no match; the state holds rows of the other
        stream until the watermark is `keep` past them. With `how="left"` rows without a match are emitted, too.

        A row behind the watermark is joined if its match is still in the state; if none is, it is in `.late`, because
        there may have been one. So is a row of the other stream that is older than the watermark by more than `keep`.

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
        options = joins.check_join_asof(name, keep, how, wait, merge)
        kept: StateOptions = {"type": type, "on_error": on_error, "store": store}
        settings = self._join_settings("join_asof", name, other, kept)
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
        store: str | Store | None = None,
    ) -> JoinedStream[K, Any]:
        """Join all rows of one key that are in the same window.

        The windows are `mp.tumbling` or `mp.hopping`. Pairs are emitted when their window closes: when the watermark
        of both streams has passed its end by `grace`. Where windows overlap, a pair is emitted once for each window
        that holds both rows. With `how` "left", "right" or "outer", a row without a partner in a window is emitted
        alone, for that window. An output has the later time of its rows. `merge` is as in `join_interval`.

        A row that missed a window is in `.late`, with `missed`, and is joined in the windows that are still open.

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
        options = joins.check_join_window(name, window, grace, how, merge)
        kept: StateOptions = {"type": type, "on_error": on_error, "store": store}
        settings = self._join_settings("join_window", name, other, kept)
        return self._add_join(WindowJoinStep(**options, **settings), other)

    # --- how steps are added ---

    def _settings(self, verb: str, name: str, options: StateOptions) -> StepSettings:
        return step_settings(self._graph, self._node, verb, name, options)

    def _add_step(self, step: Step, tables: Sequence[Table] = ()) -> KeyedStream[K, Any]:
        read, before = check_tables(self._graph, f"{step.kind}({step.name!r}, tables)", tables), self._node
        if read:  # rows wait until the tables have all changes of the batch
            before = self._same(g.JoinInput(0, step.name, step.on_error))
        node = self._graph.add(
            g.StatefulStep(step, tables=read), (before.id,), keyed=self._node.keyed, on_error=self._node.on_error
        )
        return KeyedStream(self._graph, node)

    def _join_settings(self, verb: str, name: str, other: Any, options: StateOptions) -> StepSettings:
        """Check the other side of a join, then claim its name and check its options."""
        where = f"{verb}({name!r})"
        if not isinstance(other, KeyedStream) or other._graph is not self._graph:
            raise InvalidUse(f"{where}: expected as the other side a keyed stream of the same app, got {other!r}")
        joins.check_keyed_alike(where, self._node, other._node)
        for side, stream in (("left", self), ("right", other)):
            check_has_times(self._graph, stream._node, f"{where}, the {side} side")
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
    """The outputs of a join of two streams; `late` has the rows that came too late for it.

    >>> import millpond as mp
    >>> app = mp.App("shop")
    >>> orders = app.stream("orders", mp.sources.rows([]), timestamp="at").key_by("order")
    >>> payments = app.stream("payments", mp.sources.rows([]), timestamp="at").key_by("order")
    >>> paid = orders.join_interval("paid", payments, after=10, grace=mp.NO_GRACE)
    >>> out, late = paid.on_time.to("out", mp.sinks.memory()), paid.late.to("late", mp.sinks.memory())
    >>> with mp.testing.TestDriver(app) as driver:
    ...     driver.send({"orders": [{"order": 1, "at": 5}], "payments": [{"order": 1, "at": 30}]})
    ...     driver.send("orders", [{"order": 2, "at": 90}])
    ...     driver.send("payments", [{"order": 2, "at": 1}])
    ...     driver.output("late")
    [{'row': {'order': 2, 'at': 1}, 'key': 2, 'late_by': 29, 'side': 'right'}]
    """

    @property
    def on_time(self) -> KeyedStream[K, R]:  # type: ignore[override]
        """The outputs that are not older than the watermark with which their batch began."""
        return KeyedStream[K, R](self._graph, self._node).on_time

    @property
    def late(self) -> Stream[dict[str, Any]]:  # type: ignore[override]
        """The rows that came too late to join: `{row, key, late_by, side}`, the side being "left" or "right"."""
        return self._side_output()

    def to(self, name: str, sink: Sink) -> Self:
        super().to(name, sink)
        return self
