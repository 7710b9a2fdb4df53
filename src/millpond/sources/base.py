"""What sources and sinks agree on with the rest: splits, chunks, deliveries.

A source plans on the driver and reads in a task; a sink takes deliveries. Both are small classes
that anyone can write, and `millpond.testing` holds a conformance suite for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa


@dataclass(frozen=True)
class Limit:
    """How much one batch may read of a source: at most so many rows, and about so many bytes.

    >>> import millpond as mp
    >>> mp.lowlevel.Limit(rows=100_000, bytes=1 << 28).rows
    100000
    """

    rows: int
    bytes: int


@dataclass(frozen=True)
class Split:
    """A piece of a source that one task reads.

    `place` names the entry of the source's position that reading this split moves, `partition` the
    ordered lane that its rows belong to. Splits of one place that stand in one plan follow each other
    without a gap, in the order of the plan. `rows` is a number of rows that it does not exceed, if the source
    knows one. Everything in a split is plain JSON.

    >>> import millpond as mp
    >>> mp.lowlevel.Split("a.jsonl", start=0, stop=4096, weight=4096).place
    'a.jsonl'
    """

    place: str
    start: Any
    stop: Any
    partition: str = "0"
    weight: int = 1  # bytes, about: what tasks are balanced by
    detail: Mapping[str, Any] = field(default_factory=dict)
    rows: int | None = None


@dataclass(frozen=True)
class JsonLines:
    """Rows that are still JSON text, one per element, decoded once and only where they are needed.

    >>> import millpond as mp
    >>> len(mp.lowlevel.JsonLines([b'{"n": 1}', b'{"n": 2}']).lines)
    2
    """

    lines: list[bytes]


@dataclass(frozen=True)
class BadRow:
    """A piece of input that is no row: where it stands, what stands there and what is wrong with it.

    >>> import millpond as mp
    >>> mp.lowlevel.BadRow("a.csv, line 3", "1,2,3", "expected 2 fields, got 3").where
    'a.csv, line 3'
    """

    where: str
    raw: Any
    error: str


@dataclass
class Chunk:
    """Some rows of a split in their order, in the shape that the source has them in.

    `position` is where the split's `place` stands once these rows are taken. `where(i)` says in words
    where row i came from ("orders/a.jsonl, line 17") and is asked only when that row is bad.

    >>> import millpond as mp
    >>> mp.lowlevel.Chunk([{"n": 1}, {"n": 2}], position=2).position
    2
    """

    rows: pa.Table | JsonLines | list[Any]
    position: Any
    where: Callable[[int], str] | None = None
    bad: list[BadRow] = field(default_factory=list)


@runtime_checkable
class Source(Protocol):
    """Where rows come from.

    A position is a mapping of places to how far each has been read, all plain JSON. It starts empty,
    is kept in the ledger with the state that its rows made, and is only ever changed by commits.

    >>> import millpond as mp
    >>> class Countdown:
    ...     def plan(self, position, limit, now):
    ...         done = position.get("0", 0)
    ...         return [mp.lowlevel.Split("0", done, 10)] if done < 10 else []
    ...     def read(self, split):
    ...         yield mp.lowlevel.Chunk([10 - n for n in range(split.start, split.stop)], split.stop)
    >>> source = Countdown()
    >>> [split] = source.plan({"0": 7}, mp.lowlevel.Limit(rows=100, bytes=1 << 20), now=0.0)
    >>> [chunk.rows for chunk in source.read(split)]
    [[3, 2, 1]]
    """

    def plan(self, position: Mapping[str, Any], limit: Limit, now: float) -> Sequence[Split]:
        """On the driver, once per batch: what to read next; nothing when all is read. Reads no row."""
        ...

    def read(self, split: Split) -> Iterator[Chunk]:
        """In a task, perhaps on another machine and perhaps twice: the rows of the split, in order."""
        ...


@runtime_checkable
class SnapshotSource(Source, Protocol):
    """A source that can leave out what arrives from now on: what `run(until="caught-up")` needs to end.

    >>> import millpond as mp
    >>> rows = ["a", "b"]
    >>> source = mp.sources.rows(rows).as_of(now=0.0)
    >>> rows.append("c")
    >>> [split] = source.plan({}, mp.lowlevel.Limit(rows=100, bytes=1 << 20), now=1.0)
    >>> [chunk.rows for chunk in source.read(split)]
    [['a', 'b']]
    """

    def as_of(self, now: float) -> Source:
        """On the driver, once, as a run begins: the same source, in which nothing arrives any more.

        Its positions are this source's own: a later run goes on from them with what it left out.
        """
        ...


@runtime_checkable
class BoundedSource(Source, Protocol):
    """A source that can be read up to a position, and no further: what a rebuild needs.

    >>> import millpond as mp
    >>> source = mp.sources.rows(["a", "b", "c"])
    >>> [split] = source.plan_to({"0": 0}, {"0": 2}, mp.lowlevel.Limit(rows=100, bytes=1 << 20), now=0.0)
    >>> [chunk.rows for chunk in source.read(split)]
    [['a', 'b']]
    """

    def plan_to(self, position: Mapping[str, Any], end: Mapping[str, Any], limit: Limit, now: float) -> Sequence[Split]:
        """As `plan`, but not beyond `end`, a position that was reached before; an empty plan once all of that is read.

        Raises `InvalidUse` if the input no longer holds what lies between.
        """
        ...
