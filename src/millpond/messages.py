"""What the driver and its tasks tell each other: small, plain values that travel with a job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from millpond.errors import MillpondError
from millpond.log.paths import Attempt, Paths
from millpond.log.pointer import Pointer
from millpond.log.record import Pointers, Record, StreamTime
from millpond.sources.base import Split
from millpond.timing import Unit

Segments = dict[str, list[Pointer]]  # step or sink → files


@dataclass(frozen=True)
class Moment:
    """Where event time stands when a batch begins."""

    times: dict[str, StreamTime] = field(default_factory=dict)  # stream → its time, as the batch begins
    idle: dict[str, frozenset[str]] = field(default_factory=dict)  # stream → partitions that hold nothing back
    asleep: frozenset[str] = frozenset()  # streams of which nothing is to be expected just now
    reached: dict[str, int] = field(default_factory=dict)  # step → the watermark that it has worked with
    details: dict[str, dict[str, Any]] = field(default_factory=dict)  # step → what the record says of it
    final: bool = False  # the input has ended
    bound: int | None = None  # the clock, in microseconds, where it bounds what a row may say of its time
    ends: dict[str, StreamTime] | None = None  # as the batch ends; known once every row was read


@dataclass(frozen=True)
class Link:
    """Where a record stands in its ledger: a copy of the ledger may have another record of the same number."""

    number: int
    checksum: str
    previous: str

    @classmethod
    def of(cls, record: Record) -> Link:
        return cls(record.number, record.checksum, record.previous)


@dataclass(frozen=True)
class Context:
    """One batch, as every one of its tasks must see it."""

    app: str
    incarnation: str
    partitions: int
    batch: int  # the number that its record will have
    base: int  # the record that it builds on: every replica must stand exactly there
    arrival: int  # its place among all batches that the state has seen; unlike `batch`, it never comes twice
    born: int
    driver: str
    now: float
    state_url: str
    home: str | None  # where replicas live; each host decides for itself if nothing is said
    recent: dict[int, dict[int, Segments]] = field(default_factory=dict)  # record → partition → segments
    links: dict[int, Link] = field(default_factory=dict)  # of those records, and of the one at `base`
    epoch: int = 0
    manifest: Pointer | None = None  # the state at some record before: replicas that lack it begin there
    moment: Moment = field(default_factory=lambda: Moment())
    made: Pointers = field(default_factory=dict)  # table → partition → what an earlier stage of the batch has changed
    ahead: bool = False  # the batch before it is not done: `moment` is as that one begins

    @property
    def paths(self) -> Paths:
        return Paths(self.app)

    def attempt(self, nonce: str) -> Attempt:
        return Attempt(self.batch, self.driver, nonce)


def by_partition(record: Record) -> dict[int, Segments]:
    """The segments of a record, for each partition those of its steps."""
    found: dict[int, Segments] = {}
    for step, partitions in record.segments.items():
        for partition, pointers in partitions.items():
            found.setdefault(partition, {})[step] = pointers
    return found


@dataclass(frozen=True)
class Planned:
    """A split with its stream and its place in the plan of the batch."""

    place: int
    stream: str
    split: Split
    share: int | None = None  # of the rows that the batch may read; None means any number
    is_last: bool = True  # of its lane in the plan: it may be read in part


@dataclass(frozen=True)
class Piece:
    """Where rows for one partition lie in an exchange file."""

    path: str
    start: int
    length: int
    checksum: int


@dataclass
class Progress:
    """How far reading has moved one place of one stream, by how many rows and bytes."""

    stream: str
    place: str
    position: Any
    rows: int
    bytes: int = 0


@dataclass
class Made:
    """What one task made, besides state."""

    outputs: Segments = field(default_factory=dict)
    carried: dict[int, dict[int, list[Piece]]] = field(default_factory=dict)  # exchange → partition → pieces
    skipped: dict[str, int] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)
    failure: MillpondError | None = None


@dataclass
class Header:
    """What a reading task says to every partition: who it is, in which attempt, and how far it came."""

    task: int
    nonce: str
    blobs: int  # how many of its blobs the reader of this header must have
    made: Made | None = None  # only one partition is told, and hands it on
    progress: list[Progress] = field(default_factory=list)
    newest: dict[str, dict[str, int]] = field(default_factory=dict)  # stream → source partition → newest time read
    units: dict[str, Unit] = field(default_factory=dict)


@dataclass
class Result:
    """What a keyed task returns to the driver: pointers, and proof of what it saw."""

    partition: int
    segments: Segments = field(default_factory=dict)
    made: Made = field(default_factory=Made)
    nonces: dict[int, str] = field(default_factory=dict)
    headers: list[Header] = field(default_factory=list)
    due: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)  # step → what is due next
    closed: dict[str, int] = field(default_factory=dict)  # step → the last moment that it has closed
    ends: dict[str, StreamTime] = field(default_factory=dict)  # stream → its time, as the batch ends
    incomplete: str = ""  # why the batch must be run again, if it must
    host: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Stage:
    """The results of one keyed stage, and how many reading tasks fed it."""

    results: list[Result]
    tasks: int


class TooSoon(MillpondError):
    """Rows that were read ahead need to know where event time stands once the batch before them is done."""


class Incomplete(Exception):
    """A keyed task did not get all rows of one attempt of a reading task: the batch is run again."""


class TooMuch(MillpondError):
    """One reading task made more than can be moved at once: the batch is planned again, smaller."""


class TooManyRows(TooMuch):
    """A split held more rows than the batch may read: the batch is planned again, by what was seen of them."""

    def __init__(self, stream: str, rows: int, bytes: int) -> None:
        super().__init__(f"stream {stream!r}: {rows} rows were read, which is more than the share of their task")
        self.stream, self.rows, self.bytes = stream, rows, bytes

    def __reduce__(self) -> Any:
        return TooManyRows, (self.stream, self.rows, self.bytes)
