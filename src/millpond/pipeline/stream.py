"""Streams, from which users build a program. Each class has only the verbs that its rows allow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar

from millpond.errors import InvalidUse
from millpond.pipeline import graph as g
from millpond.pipeline.table import LookupOptions, Table, add_lookup
from millpond.rows.frame_kinds import frame_kind
from millpond.sinks.base import Sink
from millpond.steps.failure import OnError, check_on_error
from millpond.steps.operator import Operator
from millpond.steps.verbs.branch import REST, Branch, Pick
from millpond.steps.verbs.external import External
from millpond.steps.verbs.filter import Filter
from millpond.steps.verbs.flat_map import FlatMap
from millpond.steps.verbs.inspect import Inspect
from millpond.steps.verbs.key_by import KeyBy
from millpond.steps.verbs.late_split import LateSplit
from millpond.steps.verbs.map import Map
from millpond.steps.verbs.map_async import MapAsync
from millpond.steps.verbs.map_batch import MapBatch
from millpond.steps.verbs.union import Union
from millpond.steps.verbs.with_time import WithTime
from millpond.user_functions import check_function

if TYPE_CHECKING:
    from millpond.pipeline.keyed import KeyedStream

R = TypeVar("R")
Out = TypeVar("Out")
Frame = TypeVar("Frame")  # a pyarrow.Table, a polars.DataFrame or a pandas.DataFrame
On = str | tuple[str, ...] | Callable[[Any], Any]


def missing_verb_error(stream: object, name: str, advice: str) -> AttributeError:
    """Return the error for an attribute that is not there; `advice` is its text if keyed streams have such a verb."""
    from millpond.pipeline.keyed import KeyedStream

    is_verb = not name.startswith("_") and hasattr(KeyedStream, name)
    text = advice if is_verb else f"{type(stream).__name__!r} object has no attribute {name!r}"
    return AttributeError(text, name=name, obj=stream)


class Stream(Generic[R]):
    """A stream of rows without a key.

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

    if not TYPE_CHECKING:  # for type checkers, a name that is not defined stays an error

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError; for a verb that only keyed streams have, it says that `key_by` comes first."""
            raise missing_verb_error(
                self,
                name,
                f"{name} needs rows with a key, and this stream has none: call key_by first, as in "
                f'stream.key_by("customer").{name}(…)',
            )

    def _then(self, op: Operator, *, keyed: tuple[str, ...] | None, more: tuple[int, ...] = ()) -> g.Node:
        inputs = (self._node.id, *more)
        return self._graph.add(op, inputs, keyed=keyed, on_error=self._node.on_error)

    def _same(self, op: Operator) -> g.Node:
        return self._then(op, keyed=self._node.keyed)

    def map(self, f: Callable[[R], Out]) -> Stream[Out]:
        """Replace each row by `f(row)`.

        >>> import millpond as mp
        >>> app = mp.App("a")
        >>> out = app.stream("n", mp.sources.rows([])).map(lambda n: n * 2).to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("n", [1, 2])
        ...     driver.output("out")
        [2, 4]
        """
        return Stream(self._graph, self._same(Map(check_function(f, "map", "row"))))

    def filter(self, f: Callable[[R], Any]) -> Stream[R]:
        """Keep the rows for which `f(row)` is true.

        >>> import millpond as mp
        >>> app = mp.App("a")
        >>> out = app.stream("n", mp.sources.rows([])).filter(lambda n: n % 2).to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("n", [1, 2, 3])
        ...     driver.output("out")
        [1, 3]
        """
        return Stream(self._graph, self._same(Filter(check_function(f, "filter", "row"))))

    def flat_map(self, f: Callable[[R], Iterable[Out]]) -> Stream[Out]:
        """Replace each row by the rows of the iterable `f(row)`.

        >>> import millpond as mp
        >>> app = mp.App("a")
        >>> out = app.stream("lines", mp.sources.rows([])).flat_map(str.split).to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("lines", ["to be", "or not"])
        ...     driver.output("out")
        ['to', 'be', 'or', 'not']
        """
        return Stream(self._graph, self._same(FlatMap(check_function(f, "flat_map", "row"))))

    def inspect(self, f: Callable[[R], Any]) -> Stream[R]:
        """Call `f` with each row and keep the row. `f` must not change it.

        >>> import millpond as mp
        >>> app = mp.App("a")
        >>> out = app.stream("n", mp.sources.rows([])).inspect(print).to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("n", [1, 2])
        ...     driver.output("out")
        1
        2
        [1, 2]
        """
        return Stream(self._graph, self._same(Inspect(check_function(f, "inspect", "row"))))

    def with_time(self, f: Callable[[R], Any]) -> Stream[R]:
        """Set the event time of each row to `f(row)`, a datetime or a whole number.

        >>> import millpond as mp
        >>> app = mp.App("a")
        >>> orders = app.stream("orders", mp.sources.rows([])).with_time(lambda order: order["at"])
        >>> minutes = orders.key_by("who").window("minutes", mp.tumbling(60), grace=0)
        >>> out = minutes.aggregate(n=mp.count()).to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("orders", [{"who": "ann", "at": 3}, {"who": "ann", "at": 59}, {"who": "ann", "at": 60}])
        ...     [row["n"] for row in driver.output("out")]
        [2]
        """
        return Stream(self._graph, self._same(WithTime(check_function(f, "with_time", "row"))))

    def map_async(self, f: Callable[[R], Any], workers: int = 8, *, on_error: OnError | None = None) -> Stream[Any]:
        """Replace each row by `f(row)`, for up to `workers` rows at a time: for functions that wait for a service.

        `f` is a coroutine function, or a plain one that several threads may call at once. The results keep the order of
        the rows. `on_error` applies to each row by itself: a row that is retried does not delay the others.

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
        return Stream(self._graph, self._same(async_operator(f, workers, on_error, self._node)))

    def map_batch(self, f: Callable[[Frame], Frame], *, on_error: OnError | None = None) -> Stream[dict[str, Any]]:
        """Call `f` with many rows at once, as a table; the rows of the table that it returns go on.

        The annotation of its first parameter says what `f` takes and returns: `pyarrow.Table` (also without an
        annotation), `polars.DataFrame` or `pandas.DataFrame` (with Arrow-backed columns). Rows that a source reads as
        columns, such as Parquet, are handed over as they are, and stay columns until a function needs Python objects.
        Other rows must be dicts, dataclasses or Structs whose fields have one type each. The type of a column comes
        from the values of the call: if all are `None`, it is null, so cast a column whose type the function needs.

        How many rows come together depends on the source and on the batch, so `f` should treat rows one by one: use
        windows or `aggregate` to compute across rows. Without keys and event times it may return any number of rows.
        Rows with a key or an event time keep it, so `f` must return one row for each, in their order.

        A call cannot say which row failed: `on_error` applies to all rows of the call.

        >>> import millpond as mp
        >>> import pyarrow.compute as pc
        >>> def in_euro(prices):
        ...     return prices.set_column(0, "euro", pc.multiply(prices["dollar"], 0.5))
        >>> app = mp.App("a")
        >>> out = app.stream("prices", mp.sources.rows([])).map_batch(in_euro).to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("prices", [{"dollar": 3.0}, {"dollar": 5.0}])
        ...     driver.output("out")
        [{'euro': 1.5}, {'euro': 2.5}]
        """
        return Stream(self._graph, self._same(batch_operator(f, on_error, self._node)))

    @property
    def on_time(self) -> Self:
        """The rows that are not older than the watermark at the start of their batch.

        >>> import millpond as mp
        >>> app = mp.App("a")
        >>> out = app.stream("ticks", mp.sources.rows([]), timestamp="at").on_time.to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("ticks", [{"at": 10}])
        ...     driver.send("ticks", [{"at": 9}, {"at": 11}])
        ...     driver.output("out")
        [{'at': 10}, {'at': 11}]
        """
        return type(self)(self._graph, self._same(LateSplit(late=False)))

    @property
    def late(self) -> Self:
        """The rows that are older than the watermark at the start of their batch.

        >>> import millpond as mp
        >>> app = mp.App("a")
        >>> out = app.stream("ticks", mp.sources.rows([]), timestamp="at").late.to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("ticks", [{"at": 10}])
        ...     driver.send("ticks", [{"at": 9}, {"at": 11}])
        ...     driver.output("out")
        [{'at': 9}]
        """
        return type(self)(self._graph, self._same(LateSplit(late=True)))

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
        """Add to each row the row of a table, or of `mp.external`, that has its key.

        Within a batch, a table is changed before it is looked up.

        A stream that is keyed like the table looks up its own key. In a table with `everywhere=True`, any stream can
        look up any key: `on` is the field or fields that hold the key, or a function of the row that returns it. If the
        key is `None`, nothing is found.

        `merge(row, table_row)` returns the output; `table_row` is `None` if none was found. Without `merge`, the output
        has the fields of both rows; a field of the table's row that the row has with another value gets the suffix
        `_right`. With `how="inner"`, rows for which nothing was found are left out.

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
        options: LookupOptions = {"on": on, "how": how, "merge": merge, "on_error": on_error}
        return Stream(self._graph, add_lookup(self._graph, self._node, name, table, options))

    def branch(self, **predicates: Callable[[R], Any]) -> dict[str, Stream[R]]:
        """Split the stream: each row goes to the first predicate that is true for it, otherwise to "rest".

        >>> import millpond as mp
        >>> parts = mp.App("a").stream("n", mp.sources.rows([1])).branch(small=lambda n: n < 10)
        >>> sorted(parts)
        ['rest', 'small']
        """
        if not predicates or REST in predicates:
            raise InvalidUse(
                "branch(name=predicate, …): expected at least one predicate, none of them named 'rest', "
                f"got {sorted(predicates)}"
            )
        pairs = tuple((name, check_function(f, f"branch({name})", "row")) for name, f in predicates.items())
        node = self._same(Branch(pairs))
        parted: Stream[R] = Stream(self._graph, node)
        return {name: Stream(self._graph, parted._same(Pick(name))) for name in [*predicates, REST]}

    def union(self, *others: Stream[Any]) -> Stream[Any]:
        """Put the rows of this stream and of others into one stream; they have no key until the next `key_by`.

        >>> import millpond as mp
        >>> app = mp.App("a")
        >>> web, phone = app.stream("web", mp.sources.rows([])), app.stream("phone", mp.sources.rows([]))
        >>> out = web.union(phone).to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send({"web": ["tea"], "phone": ["pen"]})
        ...     driver.output("out")
        ['tea', 'pen']
        """
        if not others or any(not isinstance(o, Stream) or o._graph is not self._graph for o in others):
            raise InvalidUse("union(other, …): expected one or more streams of the same app")
        return Stream(self._graph, self._then(Union(), keyed=None, more=tuple(o._node.id for o in others)))

    def key_by(self, *by: str | Callable[[R], Any], **named: Callable[[R], Any]) -> KeyedStream[Any, R]:
        """Give each row a key: a field, several fields, or the result of a function.

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
            if not isinstance(part, str):
                check_function(part, "key_by", "row")
            names.append(part if isinstance(part, str) else "key")
        for name, part in named.items():
            check_function(part, f"key_by({name}=)", "row")
            names.append(name)
        if len(set(names)) != len(names):
            raise InvalidUse(
                f"key_by: the parts of a key need names that differ, got {names}. Name a function: "
                "key_by(size=lambda row: …)"
            )
        from millpond.pipeline.keyed import KeyedStream

        op = KeyBy((*by, *named.values()), tuple(names))
        return KeyedStream(self._graph, self._then(op, keyed=tuple(names)))

    def to(self, name: str, sink: Sink) -> Stream[R]:
        """Send the rows to a sink, and return the stream.

        >>> import millpond as mp
        >>> app = mp.App("a")
        >>> out = app.stream("n", mp.sources.rows([])).to("out", mp.sinks.memory())
        >>> with mp.testing.TestDriver(app) as driver:
        ...     driver.send("n", [1, 2])
        ...     driver.output("out")
        [1, 2]
        """
        if isinstance(name, Sink):
            raise InvalidUse(
                f"to: expected a name before the sink, as in to('out', sink), got {name!r} in its place. "
                "Deliveries are recorded under the name."
            )
        if not isinstance(sink, Sink):
            raise InvalidUse(f"to({name!r}): expected a sink such as mp.sinks.console(), got {sink!r}")
        self._same(g.Deliver(self._graph.claim(name, "sink"), sink))
        return self


def async_operator(f: Any, workers: Any, on_error: Any, node: g.Node) -> MapAsync:
    """Return the operator of `map_async`; InvalidUse if an argument cannot be used."""
    if type(workers) is not int or workers < 1:
        raise InvalidUse(f"map_async(workers): expected a whole number of 1 or more, got {workers!r}")
    policy: OnError = node.on_error if on_error is None else check_on_error(on_error, "map_async(on_error)")
    return MapAsync(check_function(f, "map_async", "row"), workers, policy)


def batch_operator(f: Any, on_error: Any, node: g.Node) -> MapBatch:
    """Return the operator of `map_batch`; InvalidUse if an argument cannot be used."""
    policy: OnError = node.on_error if on_error is None else check_on_error(on_error, "map_batch(on_error)")
    return MapBatch(check_function(f, "map_batch", "table"), frame_kind(f, "map_batch"), policy)
