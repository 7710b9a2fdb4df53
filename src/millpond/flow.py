"""What sources and sinks agree on with the rest: splits, chunks, deliveries.

A source plans on the driver and reads in a task; a sink takes deliveries. Both are small classes
that anyone can write, and `millpond.testing` holds a conformance suite for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import pyarrow as pa


@dataclass(frozen=True)
class Limit:
    """How much one batch may read of a source: at most so many rows, and about so many bytes.

    >>> import millpond as mp
    >>> mp.Limit(rows=100_000, bytes=1 << 28).rows
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
    >>> mp.Split("a.jsonl", start=0, stop=4096, weight=4096).place
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
    >>> len(mp.JsonLines([b'{"n": 1}', b'{"n": 2}']).lines)
    2
    """

    lines: list[bytes]


@dataclass(frozen=True)
class BadRow:
    """A piece of input that is no row: where it stands, what stands there and what is wrong with it.

    >>> import millpond as mp
    >>> mp.BadRow("a.csv, line 3", "1,2,3", "expected 2 fields, got 3").where
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
    >>> mp.Chunk([{"n": 1}, {"n": 2}], position=2).position
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
    ...         return [mp.Split("0", done, 10)] if done < 10 else []
    ...     def read(self, split):
    ...         yield mp.Chunk([10 - n for n in range(split.start, split.stop)], split.stop)
    >>> source = Countdown()
    >>> [split] = source.plan({"0": 7}, mp.Limit(rows=100, bytes=1 << 20), now=0.0)
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
    >>> [split] = source.plan({}, mp.Limit(rows=100, bytes=1 << 20), now=1.0)
    >>> split.stop
    2
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
    >>> [split] = source.plan_to({"0": 0}, {"0": 2}, mp.Limit(rows=100, bytes=1 << 20), now=0.0)
    >>> split.stop
    2
    """

    def plan_to(self, position: Mapping[str, Any], end: Mapping[str, Any], limit: Limit, now: float) -> Sequence[Split]:
        """As `plan`, but not beyond `end`, a position that was reached before; an empty plan once all of that is read.

        Raises `InvalidUse` if the input no longer holds what lies between.
        """
        ...


@dataclass(frozen=True)
class Delivery:
    """The name of one delivery: the same for ever, and no other delivery has it.

    `attempt` is the attempt id of the commit record whose outputs are delivered. A batch number can come twice, after
    an older copy of `state_dir` was put back; a record's attempt id cannot. It is empty for records of format 1.

    >>> from millpond.flow import Delivery
    >>> Delivery("orders", "5e1f", "totals", 42, 3, "a7c0").id
    'orders/5e1f/totals/42/3/a7c0'
    """

    app: str
    incarnation: str
    sink: str
    batch: int
    partition: int
    attempt: str = ""

    @property
    def id(self) -> str:
        """All of it in one text.

        >>> import millpond as mp
        >>> mp.Delivery("orders", "5e1f", "totals", 42, 3, "a7c0").id
        'orders/5e1f/totals/42/3/a7c0'
        """
        text = f"{self.app}/{self.incarnation}/{self.sink}/{self.batch}/{self.partition}"
        return f"{text}/{self.attempt}" if self.attempt else text


@dataclass(frozen=True)
class Registration:
    """What a target knows of the driver that delivers to it, for one app, incarnation and sink.

    `claim` and `claim_attempt` name the driver's claim in the ledger, `batch` and `attempt` the newest record that
    the driver has begun to deliver, or the claim itself before the first delivery.

    >>> from millpond.flow import Registration
    >>> Registration("orders", "5e1f", "totals", 40, "c1a1", 42, "a7c0").batch
    42
    """

    app: str
    incarnation: str
    sink: str
    claim: int
    claim_attempt: str
    batch: int
    attempt: str


@runtime_checkable
class Sink(Protocol):
    """Where outputs go.

    `deliver` is called with the outputs of one partition and batch, in order, at least once, and
    never before they are committed. A second call with the same delivery has the same rows: the sink
    must see to it that they count once, by the delivery's id. It raises `Unavailable` to be asked again
    later. `where` says who calls it: the driver, the workers, or, with a DataFrame, the Spark session; nobody
    calls one that is "nowhere".

    >>> import millpond as mp
    >>> class Latest:
    ...     where = "driver"
    ...     def __init__(self):
    ...         self.held = {}
    ...     def deliver(self, rows, delivery):
    ...         self.held[delivery.id] = rows
    >>> sink = Latest()
    >>> sink.deliver([1, 2], mp.Delivery("orders", "5e1f", "totals", 42, 0, "a7c0"))
    >>> sink.where, sink.held
    ('driver', {'orders/5e1f/totals/42/0/a7c0': [1, 2]})
    """

    @property
    def where(self) -> Literal["driver", "workers", "session", "nowhere"]:
        """Who calls `deliver`."""
        ...

    def deliver(self, rows: list[Any], delivery: Delivery) -> None:
        """Take the outputs of one partition and batch, so that a second call with them counts for nothing."""
        ...


@runtime_checkable
class RollbackSink(Protocol):
    """A sink that can take deliveries back. Optional: a sink without it keeps what it holds when the app is rolled
    back.

    >>> from millpond.flow import RollbackSink
    >>> import millpond as mp
    >>> isinstance(mp.sinks.files("out"), RollbackSink), isinstance(mp.sinks.console(), RollbackSink)
    (True, False)
    """

    def rollback(self, deliveries: Sequence[Delivery], rows: Callable[[Delivery], list[Any]]) -> None:
        """Make these deliveries void for ever, whether they have arrived or not, and change nothing else.

        Called on the driver, or in the process that runs an administrative command, after the rollback is committed
        and before anything newer is delivered. It may be called again with the same deliveries, also much later, by a
        process that was paused: so it must not look for "everything after a batch". A `deliver` of one of them that
        comes afterwards, from a driver that was paused, must add no row. `rows(delivery)` reads what was delivered
        from the log; it is empty if the log no longer has it.
        """
        ...


@runtime_checkable
class RegisteredSink(Protocol):
    """A sink whose target remembers who delivers to it. Optional: it lets a driver notice a target that is ahead of its
    ledger (an older copy of `state_dir` was put back, or runs beside the original) or behind it (files were lost).

    All methods are called on the driver.

    >>> from millpond.flow import RegisteredSink
    >>> import millpond as mp
    >>> isinstance(mp.sinks.files("out"), RegisteredSink), isinstance(mp.sinks.console(), RegisteredSink)
    (True, False)
    """

    @property
    def target(self) -> str:
        """The place that is delivered to, as a text that stays the same from run to run."""
        ...

    def registrations(self, app: str, incarnation: str, sink: str) -> Sequence[Registration]:
        """What the target knows of this app's incarnation and sink: one entry for each claim that registered and was
        not forgotten. Called when a driver starts, before it claims the app, and before each delivery."""
        ...

    def register(self, registration: Registration) -> None:
        """Write the entry of one claim, in the place of an older one of the same claim, durably.

        It must change no entry of another claim: a driver that was paused may write its own at any time. Called after a
        claim, and before the outputs of each batch."""
        ...

    def forget(self, registrations: Sequence[Registration]) -> None:
        """Remove the entries of these claims. Called after a newer claim has registered."""
        ...

    def status(self, delivery: Delivery) -> Literal["held", "void", "gone"]:
        """Whether a delivery is there, or was made void, or neither. Called when a driver starts, for the newest
        deliveries."""
        ...

    def take_back(self, registration: Registration, known: Callable[[int, str], bool]) -> Callable[[], list[str]]:
        """Find the deliveries of this incarnation and sink that the ledger does not contain, for
        `run(take_back=[...])`.

        `registration` is one of the entries that the ledger does not contain. `known(batch, attempt)` says whether the
        ledger contains a delivery. Return a function that makes what was found void and returns
        their names. The driver calls that one once it has made sure that it still owns the app."""
        ...

    def revive(self, rows: list[Any], delivery: Delivery) -> None:
        """Deliver what was made void after all, in one step: whoever looks finds it void, or whole.

        Called when a driver starts, for what counts in its ledger: if an older copy of `state_dir` was put back, some
        of that may have been rolled back since."""
        ...
