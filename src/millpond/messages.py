"""The values that the driver and its tasks exchange. All of them are plain data that travels with a job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from millpond.errors import MillpondError
from millpond.log.checked import Pointer
from millpond.log.manifest import Run
from millpond.log.point import LogPoint, SegmentsByStep
from millpond.log.record import Pointers, StreamTime
from millpond.sinks.base import Delivery
from millpond.sources.base import Split
from millpond.sources.base import TooMuch as TooMuch
from millpond.timing import Unit


@dataclass(frozen=True)
class EventTime:
    """The state of event time when a batch begins."""

    times: dict[str, StreamTime] = field(default_factory=dict)  # stream → its time as the batch begins
    idle: dict[str, frozenset[str]] = field(default_factory=dict)  # stream → partitions that do not hold it back
    asleep: frozenset[str] = frozenset()  # streams from which no row is expected at the moment
    reached: dict[str, int] = field(default_factory=dict)  # step → the highest watermark that it has worked with
    details: dict[str, dict[str, Any]] = field(default_factory=dict)  # step → its entry in the record
    final: bool = False  # the input has ended
    bound: int | None = None  # the clock in microseconds, if it limits how far in the future a row may be
    ends: dict[str, StreamTime] | None = None  # stream → its time as the batch ends; None until every row was read


@dataclass(frozen=True)
class Parcel:
    """One delivery to make: the output segments of one sink, batch and partition."""

    sink: str
    delivery: Delivery
    segments: tuple[Pointer, ...]

    @property
    def has_rows(self) -> bool:
        """Whether there is any row in it."""
        return any(file.rows for file in self.segments)


@dataclass(frozen=True)
class StoredState:
    """The state of a step at a record, as files of the log."""

    partitions: int
    files: dict[int, tuple[list[Run], list[Pointer]]]  # partition → runs, and later segments


@dataclass(frozen=True)
class Backlog:
    """What a stream of changes publishes in a batch besides the changes: the state that its readers do not have."""

    given: tuple[
        StoredState, ...
    ] = ()  # each reader has been given one: keys that are gone since are published as None
    can_compare: bool = False  # keys that are now as they are in all of `given` are left out


@dataclass(frozen=True)
class BatchContext:
    """What every task of one batch is given, the same for all of them."""

    log: LogPoint  # the record that it builds on: every replica must be exactly there
    batch: int  # the number that its record will have
    arrivals: int  # added to `batch`, its place among all batches that the state has seen, which never occurs twice
    driver: str
    now: float
    state_url: str
    home: str | None  # the folder of the replicas; each host chooses its own if this is None
    event_time: EventTime = field(default_factory=EventTime)
    table_changes: Pointers = field(default_factory=dict)  # table → partition → changes of the batch's earlier stages
    is_read_ahead: bool = False  # the batch before it is not done: `event_time` is as that one begins
    backlogs: dict[int, Backlog] = field(default_factory=dict)  # node of a stream of changes → what readers lack
    parcels: tuple[Parcel, ...] = ()  # outputs of the batch before, which the tasks of the first stage deliver
    # partition → ids of the places with a ready copy; None if there is one host, and no task says where it ran
    copies: dict[int, frozenset[str]] | None = None


@dataclass(frozen=True)
class PlannedSplit:
    """A split with its stream and its place in the plan of the batch."""

    place: int
    stream: str
    split: Split
    share: int | None = None  # the most rows of the batch that it may read; None means any number
    is_last: bool = True  # the last of its source partition: reading may stop within it


@dataclass(frozen=True)
class ExchangePiece:
    """The bytes of an exchange file that hold rows for one partition."""

    path: str
    start: int
    length: int
    checksum: int


@dataclass
class ReadProgress:
    """The position that reading has reached in one place of one stream, and the rows and bytes read for it."""

    stream: str
    place: str
    position: Any
    rows: int
    bytes: int = 0


@dataclass
class TaskOutput:
    """What one task produced besides state."""

    outputs: SegmentsByStep = field(default_factory=dict)
    carried: dict[int, dict[int, list[ExchangePiece]]] = field(default_factory=dict)  # exchange → partition → pieces
    skipped: dict[str, int] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)
    failure: MillpondError | None = None


@dataclass
class ReadHeader:
    """What a reading task sends to every partition: its number and attempt, and how far it has read."""

    task: int
    nonce: str
    blobs: int  # how many blobs of the task the receiving partition must have
    output: TaskOutput | None = None  # sent to one partition only, which passes it on to the driver
    progress: list[ReadProgress] = field(default_factory=list)
    newest: dict[str, dict[str, int]] = field(default_factory=dict)  # stream → source partition → newest time read
    units: dict[str, Unit] = field(default_factory=dict)


@dataclass
class KeyedResult:
    """What a keyed task returns to the driver: pointers, and evidence of the attempts whose rows it saw."""

    partition: int
    segments: SegmentsByStep = field(default_factory=dict)
    output: TaskOutput = field(default_factory=TaskOutput)
    nonces: dict[int, str] = field(default_factory=dict)
    headers: list[ReadHeader] = field(default_factory=list)
    due: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)  # step → what is due next
    closed: dict[str, int] = field(default_factory=dict)  # step → the latest event time that it has closed
    ends: dict[str, StreamTime] = field(default_factory=dict)  # stream → its time as the batch ends
    incomplete: str = ""  # why the batch must be run again, if it must
    host: str = ""
    place: str = ""  # the id of the folder of replicas on that host, if the driver has asked for it
    found: int | None = None  # the record that the replica there was at; None if there was none
    misplaced: bool = False  # nothing was done: another host has a ready copy of the state, and this one has none
    seconds: float = 0.0
    delivered: list[str] = field(default_factory=list)  # ids of the deliveries that the task has made
    delivery_failures: dict[str, MillpondError] = field(default_factory=dict)  # sink → why it did not take a parcel
    delivery_seconds: float = 0.0


@dataclass(frozen=True)
class StageResults:
    """The results of one keyed stage, and how many reading tasks fed it."""

    results: list[KeyedResult]
    tasks: int


class TooSoon(MillpondError):
    """Rows that were read ahead depend on the event time at the end of the batch before them."""


class Misplaced(MillpondError):
    """Tasks ran on hosts without a copy of their state, and other hosts have one: the batch is run again there."""


class Incomplete(Exception):
    """A keyed task did not get all rows of one attempt of a reading task: the batch is run again."""


class TooManyRows(TooMuch):
    """A split held more rows than the batch may read: the batch is planned again with the row size that was seen."""

    def __init__(self, stream: str, rows: int, bytes: int) -> None:
        super().__init__(f"stream {stream!r}: {rows} rows were read, which is more than the share of their task")
        self.stream, self.rows, self.bytes = stream, rows, bytes

    def __reduce__(self) -> Any:
        return TooManyRows, (self.stream, self.rows, self.bytes)
