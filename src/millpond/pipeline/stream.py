"""Streams: what the user builds a program from. Each offers only the verbs that are legal on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Generic, Literal, Self, TypeVar, Unpack

from millpond.aggregations import Aggregation
from millpond.errors import InvalidUse
from millpond.flow import Sink
from millpond.pipeline import graph as g
from millpond.pipeline import joins
from millpond.pipeline.fields import Field
from millpond.pipeline.kept import Kept, checked_versions
from millpond.pipeline.table import Table, lookup_node
from millpond.pipeline.windowed import By, Fires, Panes, WindowedStream, window_options
from millpond.steps.aggregate import Aggregate
from millpond.steps.apply import Apply
from millpond.steps.base import Step
from millpond.steps.deduplicate import Deduplicate
from millpond.steps.expiring_map import begin as begin_map
from millpond.steps.external import External
from millpond.steps.failure import OnError, checked
from millpond.steps.join_asof import JoinAsof
from millpond.steps.join_interval import JoinInterval
from millpond.steps.join_window import JoinWindow
from millpond.steps.process import Process, Processor, made
from millpond.steps.state import State
from millpond.steps.ttl import TTL, Lifetime, checked_ttl
from millpond.timing import Duration, duration
from millpond.windows.kinds import MISSING, Hopping, Window
from millpond.windows.triggers import Trigger, on_close

R = TypeVar("R")
K = TypeVar("K")
Out = TypeVar("Out")
S = TypeVar("S")
On = str | tuple[str, ...] | Callable[[Any], Any]

_ON_CLOSE = on_close()


class Stream(Generic[R]):
    """Rows on their way.

    >>> import millpond as mp
    >>> app = mp.App("words")
    >>> words = app.stream("lines", mp.sources.rows(["to be", "or not"])).flat_map(str.split)
    >>> out = words.map(str.upper).filter(lambda word: word != "OR").to("out", mp.sinks.memory())
    >>> with mp.testing.TestDriver(app) as driver:
    ...     driver.send("lines", ["to be", "or not"])
    ...     driver.output("out")
    ['TO', 'BE', 'NOT']
    """

    def __init__(self, graph: g.Graph, node: g.Node) -> None:
        self._graph, self._node = graph, node

    def _then(self, op: g.Op, *, keyed: tuple[str, ...] | None, more: tuple[int, ...] = ()) -> g.Node:
        inputs = (self._node.id, *more)
        return self._graph.add(op, inputs, keyed=keyed, on_error=self._node.on_error)

    def _same(self, op: g.Op) -> g.Node:
        return self._then(op, keyed=self._node.keyed)

    def map(self, f: Callable[[R], Out]) -> Stream[Out]:
        """Each row becomes what `f` makes of it.

        >>> import millpond as mp
        >>> doubled = mp.App("a").stream("n", mp.sources.rows([1])).map(lambda n: n * 2)
        """
        return Stream(self._graph, self._same(g.Map(_function(f, "map"))))

    def filter(self, f: Callable[[R], Any]) -> Stream[R]:
        """Only the rows for which `f` is true go on.

        >>> import millpond as mp
        >>> odd = mp.App("a").stream("n", mp.sources.rows([1])).filter(lambda n: n % 2)
        """
        return Stream(self._graph, self._same(g.Filter(_function(f, "filter"))))

    def flat_map(self, f: Callable[[R], Iterable[Out]]) -> Stream[Out]:
        """Each row becomes any number of rows.

        >>> import millpond as mp
        >>> words = mp.App("a").stream("lines", mp.sources.rows(["a b"])).flat_map(str.split)
        """
        return Stream(self._graph, self._same(g.FlatMap(_function(f, "flat_map"))))

    def inspect(self, f: Callable[[R], Any]) -> Stream[R]:
        """Show each row to `f`, which may not change it, and let it go on.

        >>> import millpond as mp
        >>> seen = mp.App("a").stream("n", mp.sources.rows([1])).inspect(print)
        """
        return Stream(self._graph, self._same(g.Inspect(_function(f, "inspect"))))

    def with_time(self, f: Callable[[R], Any]) -> Stream[R]:
        """Set each row's event time anew.

        >>> import millpond as mp
        >>> timed = mp.App("a").stream("n", mp.sources.rows([{"at": 1}])).with_time(lambda row: row["at"])
        """
        return Stream(self._graph, self._same(g.WithTime(_function(f, "with_time"))))

    def map_async(self, f: Callable[[R], Any], workers: int = 8, *, on_error: OnError | None = None) -> Stream[Any]:
        """As `map`, for a function that waits: for a service, a disk. It runs over `workers` rows at a time.

        `f` is a coroutine function, or a plain one that several threads may call at once. What it makes of the rows
        goes on in their order. A row that fails is tried again, skipped or kept as `on_error` says; rows in hand go on
        while one of them pauses.

        >>> import millpond as mp
        >>> async def priced(order):
        ...     return {**order, "price": 3}
        >>> app = mp.App("a")
        >>> orders = app.stream("orders", mp.sources.rows([])).map_async(priced, workers=32)
        >>> out = orders.to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("orders", [{"id": 1}, {"id": 2}])
        ...     driver.output("out")
        [{'id': 1, 'price': 3}, {'id': 2, 'price': 3}]
        """
        return Stream(self._graph, self._same(_concurrent(f, workers, on_error, self._node)))

    @property
    def on_time(self) -> Self:
        """The rows that are not older than the watermark with which their batch began.

        >>> import millpond as mp
        >>> ticks = mp.App("a").stream("ticks", mp.sources.rows([{"at": 1}]), timestamp="at")
        >>> fresh = ticks.on_time
        """
        return type(self)(self._graph, self._same(g.Judge(late=False)))

    @property
    def late(self) -> Self:
        """The rows that are older than the watermark with which their batch began.

        >>> import millpond as mp
        >>> ticks = mp.App("a").stream("ticks", mp.sources.rows([{"at": 1}]), timestamp="at")
        >>> late = ticks.late.to("late", mp.sinks.memory())
        """
        return type(self)(self._graph, self._same(g.Judge(late=True)))

    def lookup(
        self,
        name: str,
        table: Table | External,
        *,
        on: On | None = None,
        how: Literal["left", "inner"] = "left",
        merge: Callable[[R, Any], Any] | None = None,
        on_error: OnError | None = None,
    ) -> Stream[Any]:
        """Each row with the row of a table, or of `mp.external`, that has its key.

        What a batch changes in a table comes before what it looks up there.

        A stream that is keyed like the table meets it by its key. Where the table lies everywhere, `on` says by what:
        a field, several, or a function of the row that gives the table's key; one that is `None` meets nothing.

        `merge` is given the row and the table's, `None` if there is none. Without it the output has the fields of both;
        those of the table that clash and differ get `_right`. With `how="inner"` a row that meets none is left out.

        >>> import millpond as mp
        >>> app = mp.App("shop")
        >>> prices = app.table("prices", app.stream("updates", mp.sources.rows([])).key_by("sku"), everywhere=True)
        >>> orders = app.stream("orders", mp.sources.rows([]))
        >>> out = orders.lookup("priced", prices, on="item").to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send({"orders": [{"item": "tea"}, {"item": "pen"}], "updates": [{"sku": "tea", "price": 3}]})
        ...     driver.output("out")
        [{'item': 'tea', 'sku': 'tea', 'price': 3}, {'item': 'pen'}]
        """
        return Stream(self._graph, lookup_node(self._graph, self._node, name, table, on, how, merge, on_error))

    def branch(self, **predicates: Callable[[R], Any]) -> dict[str, Stream[R]]:
        """Part the stream: each row goes to the first predicate that it meets, and else to "rest".

        >>> import millpond as mp
        >>> parts = mp.App("a").stream("n", mp.sources.rows([1])).branch(small=lambda n: n < 10)
        >>> sorted(parts)
        ['rest', 'small']
        """
        if not predicates or "rest" in predicates:
            raise InvalidUse(
                "branch(name=predicate, …): expected at least one predicate, none of them named 'rest', "
                f"got {sorted(predicates)}"
            )
        pairs = tuple((name, _function(f, f"branch({name})")) for name, f in predicates.items())
        node = self._same(g.Branch(pairs))
        parted: Stream[R] = Stream(self._graph, node)
        return {name: Stream(self._graph, parted._same(g.Pick(name))) for name in [*predicates, "rest"]}

    def union(self, *others: Stream[Any]) -> Stream[Any]:
        """The rows of this stream and of the others; they have no key until the next `key_by`.

        >>> import millpond as mp
        >>> app = mp.App("a")
        >>> both = app.stream("x", mp.sources.rows([1])).union(app.stream("y", mp.sources.rows([2])))
        """
        if not others or any(not isinstance(o, Stream) or o._graph is not self._graph for o in others):
            raise InvalidUse("union(other, …): expected one or more streams of the same app")
        return Stream(self._graph, self._then(g.Union(), keyed=None, more=tuple(o._node.id for o in others)))

    def key_by(self, *by: str | Callable[[R], Any], **named: Callable[[R], Any]) -> KeyedStream[Any, R]:
        """Give each row a key: a field, several fields, or what a function makes of it.

        Rows of one key are processed in their order, by the one partition that owns the key's state.

        >>> import millpond as mp
        >>> orders = mp.App("a").stream("orders", mp.sources.rows([]))
        >>> by_customer = orders.key_by("customer")
        >>> by_place = orders.key_by("country", "city")
        >>> by_size = orders.key_by(size=lambda order: order["amount"] // 100)
        """
        if not by and not named:
            raise InvalidUse("key_by: expected a field, several fields or a function, got nothing")
        names: list[str] = []
        for part in by:
            if not isinstance(part, str) and not callable(part):
                raise InvalidUse(f"key_by: expected a field's name or a function, got {part!r}")
            names.append(part if isinstance(part, str) else "key")
        names.extend(named)
        if len(set(names)) != len(names):
            raise InvalidUse(
                f"key_by: the parts of a key need names that differ, got {names}. Name a function: "
                "key_by(size=lambda row: …)"
            )
        op = g.Key((*by, *named.values()), tuple(names))
        return KeyedStream(self._graph, self._then(op, keyed=tuple(names)))

    def to(self, name: str, sink: Sink) -> Stream[R]:
        """Send the rows to a sink, and return the stream.

        >>> import millpond as mp
        >>> out = mp.sinks.memory()
        >>> stream = mp.App("a").stream("n", mp.sources.rows([1])).to("out", out)
        """
        if not isinstance(sink, Sink):
            raise InvalidUse(f"to({name!r}): expected a sink such as mp.sinks.console(), got {sink!r}")
        self._same(g.Deliver(self._graph.claim(name, "sink"), sink))
        return self


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
        return KeyedStream(self._graph, self._same(g.Map(_function(f, "map"))))

    def filter(self, f: Callable[[R], Any]) -> KeyedStream[K, R]:
        """Only the rows for which `f` is true go on, with their key.

        >>> import millpond as mp
        >>> rows = mp.App("a").stream("n", mp.sources.rows([{"k": 1}])).key_by("k").filter(bool)
        """
        return KeyedStream(self._graph, self._same(g.Filter(_function(f, "filter"))))

    def flat_map(self, f: Callable[[R], Iterable[Out]]) -> KeyedStream[K, Out]:
        """Each row becomes any number of rows of the same key.

        >>> import millpond as mp
        >>> rows = mp.App("a").stream("n", mp.sources.rows([{"k": 1}])).key_by("k").flat_map(list)
        """
        return KeyedStream(self._graph, self._same(g.FlatMap(_function(f, "flat_map"))))

    def inspect(self, f: Callable[[R], Any]) -> KeyedStream[K, R]:
        """Show each row to `f`, and let it go on with its key.

        >>> import millpond as mp
        >>> rows = mp.App("a").stream("n", mp.sources.rows([{"k": 1}])).key_by("k").inspect(print)
        """
        return KeyedStream(self._graph, self._same(g.Inspect(_function(f, "inspect"))))

    def with_time(self, f: Callable[[R], Any]) -> KeyedStream[K, R]:
        """Set each row's event time anew.

        >>> import millpond as mp
        >>> rows = mp.App("a").stream("n", mp.sources.rows([{"k": 1}])).key_by("k").with_time(lambda row: 1)
        """
        return KeyedStream(self._graph, self._same(g.WithTime(_function(f, "with_time"))))

    def map_async(
        self, f: Callable[[R], Any], workers: int = 8, *, on_error: OnError | None = None
    ) -> KeyedStream[K, Any]:
        """As `map`, for a function that waits: it runs over `workers` rows at a time, and rows keep their key.

        >>> import millpond as mp
        >>> rows = mp.App("a").stream("n", mp.sources.rows([{"k": 1}])).key_by("k").map_async(lambda row: row)
        """
        return KeyedStream(self._graph, self._same(_concurrent(f, workers, on_error, self._node)))

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

    def _aside(self) -> Stream[Any]:
        """What the step that this stream comes from puts aside."""
        return Stream(self._graph, self._same(g.Aside()))

    def _step(
        self,
        begin: Any,
        name: str,
        kind: str,
        options: dict[str, Any],
        *,
        type: Any = None,
        ttl: Lifetime | None = None,
        version: int = 1,
        migrate: Mapping[int, Callable[..., Any]] | None = None,
        renamed_from: str | None = None,
        on_error: OnError | None = None,
        other: KeyedStream[Any, Any] | None = None,
        holds: tuple[Duration, ...] | None = (),
        **detail: Any,
    ) -> KeyedStream[K, Any]:
        """A step over this stream's rows, and over those of another that is keyed alike, if there is one."""
        self._graph.claim(name, "step")
        lives = checked_ttl(ttl, f"{kind}({name!r}, ttl)")
        if lives is not None:
            options, detail = {**options, "ttl": lives}, {**detail, "ttl": lives.detail}
        policy: OnError = self._node.on_error if on_error is None else checked(on_error, f"{kind}({name!r})")
        types = () if type is None else ((type,) if isinstance(type, _CLASS) else tuple(type))
        migrations = checked_versions(version, migrate, f"{kind}({name!r})")
        step = Step(name, kind, begin, options, policy, types, detail, version, migrations, renamed_from, holds)
        inputs: tuple[int, ...] = (self._node.id,)
        if other is not None:
            inputs = tuple(stream._same(g.Side(side)).id for side, stream in enumerate((self, other)))
        node = self._graph.add(g.Keep(step), inputs, keyed=self._node.keyed, on_error=self._node.on_error)
        return KeyedStream(self._graph, node)

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
        options = {"f": _function(f, f"stateful_map({name!r})"), "initial": initial}
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
        options = {"f": _function(f, f"apply({name!r})")}
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
        options = {"f": _function(f, f"flat_apply({name!r})")}
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
        options = {"f": _function(f, f"update({name!r})")}
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
        options = {"f": _function(f, f"stateful_filter({name!r})")}
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

        >>> import millpond as mp
        >>> payments = mp.App("a").stream("payments", mp.sources.rows([])).key_by("card")
        >>> once = payments.deduplicate("once", by="payment_id", within="1d")
        """
        within = None if within is None else duration(within, f"deduplicate({name!r}, within)")
        options = {"by": by if by is None or callable(by) else Field(by), "within": within}
        detail = {} if within is None else {"within": TTL(within).detail["after"]}
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

    def _joined(
        self,
        begin: Any,
        name: str,
        kind: str,
        other: Any,
        options: dict[str, Any],
        type: Any,
        on_error: Any,
        holds: Any,
    ) -> JoinedStream[K, Any]:
        where = f"{kind}({name!r})"
        if not isinstance(other, KeyedStream) or other._graph is not self._graph:
            raise InvalidUse(f"{where}: expected as the other side a keyed stream of the same app, got {other!r}")
        joins.keyed_alike(where, self._node, other._node)
        found = self._step(
            begin, name, kind, options, type=type, on_error=on_error, other=other, holds=holds, how=options["how"]
        )
        return JoinedStream(self._graph, found._node)

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
        options = joins.interval(name, before, after, grace, how, merge)
        holds = joins.interval_holds(options)
        return self._joined(JoinInterval, name, "join_interval", other, options, type, on_error, holds)

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
        options = joins.asof(name, keep, how, wait, merge)
        return self._joined(JoinAsof, name, "join_asof", other, options, type, on_error, ())

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
        options = joins.window(name, window, grace, how, merge)
        holds = (window.size, options["grace"])
        return self._joined(JoinWindow, name, "join_window", other, options, type, on_error, holds)


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


_CLASS = type


def _concurrent(f: Any, workers: Any, on_error: Any, node: g.Node) -> g.MapAsync:
    if type(workers) is not int or workers < 1:
        raise InvalidUse(f"map_async(workers): expected a whole number of 1 or more, got {workers!r}")
    policy: OnError = node.on_error if on_error is None else checked(on_error, "map_async(on_error)")
    return g.MapAsync(_function(f, "map_async"), workers, policy)


def _function(f: Any, where: str) -> Any:
    if not callable(f):
        raise InvalidUse(f"{where}: expected a function, got {f!r}")
    return f
