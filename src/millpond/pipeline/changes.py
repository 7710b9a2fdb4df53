"""`app.changes(step)`: the changes of a step's state, to be read from the log or used as a stream of the program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from functools import cached_property
from typing import Any, Generic, TypeVar

from millpond.errors import InvalidUse
from millpond.pipeline import graph as g
from millpond.pipeline.stream import Stream
from millpond.sinks.base import ChangesSink, Sink

C = TypeVar("C")


class Changes(Stream[dict[str, Any]], Generic[C]):
    """The changes of a step's state, returned by `app.changes`.

    Iterating it reads the log: one item per changed cell of a key. Each loop begins at the first change.

    Its verbs make it a stream of the program: one row per key and batch, `{"key", "value", "batch"}`. `value` is what
    `app.state(step).get(key)` returns after the batch, and None if the key is gone. A key whose value the batch has not
    changed gives no row. Rows have no event time and no key of their own: call `with_time` or `key_by` for them.

    >>> import millpond as mp
    >>> app = mp.App("orders")
    >>> orders = app.stream("orders", mp.sources.rows([])).key_by("who")
    >>> totals = orders.stateful_map("total", lambda who, order, n: (None, n + order["n"]), initial=0)
    >>> out = app.changes("total").to("totals", mp.sinks.memory())
    >>> with mp.testing.TestDriver(app) as driver:
    ...     driver.send("orders", [{"who": "ann", "n": 1}, {"who": "ann", "n": 2}])
    ...     driver.output("totals")
    [{'key': 'ann', 'value': 3, 'batch': 1}]
    """

    def __init__(self, graph: g.Graph, step: str, after: int, read: Callable[[], Iterator[C]]) -> None:
        self._graph, self._step, self._after, self._read = graph, step, after, read
        self._begun: Iterator[C] | None = None  # what `next` goes on with

    def __iter__(self) -> Iterator[C]:
        return self._read() if self._begun is None else self._begun

    def __next__(self) -> C:
        if self._begun is None:
            self._begun = self._read()
        return next(self._begun)

    @cached_property
    def _node(self) -> g.Node:  # type: ignore[override]
        """The node in the graph. It is added with the first verb: to read the log changes no program."""
        if self._after != -1:
            raise InvalidUse(
                f"changes({self._step!r}, after={self._after}): after= is for reading the log, and a stream of the "
                "program has all changes: leave it out"
            )
        step = find_step(self._graph, self._step)
        return self._graph.add(g.StepChanges(self._step), (step.id,), on_error=step.on_error)

    def to(self, name: str, sink: Sink) -> Stream[dict[str, Any]]:
        """Send the rows to a sink, as `Stream.to` does. In Kafka a row whose value is None becomes a tombstone."""
        return super().to(name, sink.for_changes() if isinstance(sink, ChangesSink) else sink)

    @property
    def on_time(self) -> Stream[dict[str, Any]]:  # type: ignore[override]
        """All rows: they have no event time, so none is late."""
        return Stream[dict[str, Any]](self._graph, self._node).on_time

    @property
    def late(self) -> Stream[dict[str, Any]]:  # type: ignore[override]
        """No rows: they have no event time, so none is late."""
        return Stream[dict[str, Any]](self._graph, self._node).late


def find_step(graph: g.Graph, name: str) -> g.Node:
    """Return the node of a step with state; InvalidUse if the program has none of that name so far."""
    nodes = {node.name: node for node in graph.nodes if isinstance(node.op, g.StatefulStep)}
    steps = {each: node for each, node in nodes.items() if node.op.table is None}  # type: ignore[attr-defined]
    if name in steps:
        return steps[name]
    where = f"changes({name!r})"
    if name in nodes:
        raise InvalidUse(
            f"{where}: expected a step with state, got a lookup, which has none. Ask for the changes of its table."
        )
    if name in graph.unfinished:
        raise InvalidUse(f"{where}: the step is not complete yet: {graph.unfinished[name]}")
    close = get_close_matches(str(name), steps, n=1, cutoff=0.0)
    nearest = f" The nearest name is {close[0]!r}; there are: {', '.join(map(repr, steps))}." if close else ""
    raise InvalidUse(
        f"{where}: expected the name of a step that the program has so far, got {name!r}.{nearest} Build the step "
        "before the stream of its changes."
    )
