"""One record of the ledger.

A record is a JSON object whose first field is the checksum of the rest of the file. It holds all that
a driver on an empty machine needs to continue, except the state itself, to which it points:

- a claim or a release says who owns the app, and repeats what the record before it said;
- a commit says what one batch read, changed and put out;
- a clear begins a new incarnation with nothing in it;
- a rewrite puts other state in the place of what was: of other partitions, of an earlier batch, migrated.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

from millpond.log.checked import Pointer

FORMAT = 3
READABLE_FORMATS = (1, 2, 3)  # 1: no attempt in the ids of deliveries. Before 3: no outputs that are columns

# Records of older versions do not say which places their state has used: the batch numbers of any app that the state
# was ever restored from. This is beyond all of them, and has room for as many again in the 12 digits of a cell's name.
UNKNOWN_ARRIVALS = 100_000_000_000

Kind = Literal["claim", "commit", "clear", "release", "rewrite"]
Pointers = dict[str, dict[int, list[Pointer]]]  # step or sink → partition → files


class Position(Struct, omit_defaults=True):
    """How far a stream has been read: the entries in the file `base`, if there is one, updated with `entries`."""

    entries: dict[str, Any] = field(default_factory=dict)
    base: Pointer | None = None


class StepInfo(Struct, omit_defaults=True):
    """The definition of a step when it last wrote: enough to read its state without the program."""

    kind: str
    version: int = 1
    detail: dict[str, Any] = field(default_factory=dict)
    types: dict[str, list[str]] = field(default_factory=dict)  # class of the state → its fields, where they are known
    unmarked: int | None = None  # the version of state without a mark of its own, where older state may be left

    @property
    def oldest(self) -> int:
        """The oldest version that any of its state may have."""
        return self.version if self.unmarked is None else self.unmarked


class SparkBatch(Struct, omit_defaults=True):
    """Where a streaming DataFrame stands: Spark's batch id and the checkpoint files that offer it again."""

    batch: int
    files: dict[str, Pointer] = field(default_factory=dict)


class StreamTime(Struct, omit_defaults=True, frozen=True):
    """How far a stream's event time has come, in microseconds since the epoch or in numbers of the user's."""

    unit: Literal["instant", "number"] | None = None
    watermark: int | None = None
    newest: dict[str, int] = field(default_factory=dict)  # source partition → newest time


class Published(Struct, omit_defaults=True, frozen=True):
    """What a reader of a step's changes has been given: the state at the record `upto`, stored as `step` then.

    With `least`, outputs were given up before it was known whether they had arrived: the reader may have been given the
    state at any record from `least` to `upto`. After a rollback, `back` is what a reader has that was rolled back, too.
    """

    upto: int
    step: str
    least: int | None = None
    back: Published | None = None


class Began(Struct, omit_defaults=True, frozen=True):
    """What a batch began with that the record before it does not say: quiet streams, and the end of the input.

    Together with positions, watermarks and the time of the batch it lets a rebuild run the batch again as it was.
    """

    times: dict[str, StreamTime] = field(default_factory=dict)  # stream → its event time, where quiet has moved it
    idle: dict[str, list[str]] = field(default_factory=dict)  # stream → source partitions that held nothing back
    asleep: list[str] = field(default_factory=list)  # streams of which nothing was expected
    final: bool = False  # the input had ended, and what was open was closed


class Record(Struct, kw_only=True, omit_defaults=True):
    """A record. What describes the app as a whole is carried over to the next record; the rest is its own."""

    format: int
    kind: Kind
    app: str
    number: int
    incarnation: str
    born: int  # the number of this incarnation's first record
    driver: str
    attempt: str
    time: float
    epoch: int = 0  # the number of the last rewrite: replicas from before it hold other state
    arrivals: int = UNKNOWN_ARRIVALS  # see `arrival`
    why: str = ""  # of a rewrite, in words
    request: str = ""  # the id of the request that this record carries out
    requests: dict[str, tuple[int, float]] = field(
        default_factory=dict
    )  # request → the record that carried it out, and the time until which this is remembered
    back: int | None = None  # the batch that a rollback went back to
    previous: str  # the checksum of the record before: a record of another history never fits
    partitions: int
    declared: int | str | None = None  # the program's `partitions=` that was last followed; see `wanted_partitions`
    positions: dict[str, Position] = field(default_factory=dict)
    watermarks: dict[str, StreamTime] = field(default_factory=dict)  # stream → its event time
    reached: dict[str, int] = field(default_factory=dict)  # step → the watermark that it has worked with
    due: dict[str, tuple[int | None, int | None]] = field(
        default_factory=dict
    )  # step → what is due next, by each clock
    deliveries: dict[str, int] = field(default_factory=dict)  # sink → all outputs up to here are there
    undo: dict[str, int] = field(default_factory=dict)  # sink → the batch to go back to; format 1 only
    void: dict[str, list[tuple[int, int]]] = field(
        default_factory=dict
    )  # sink → (first, last) numbers of records whose deliveries are still to be made void in the target
    newest_outputs: dict[str, int] = field(default_factory=dict)  # sink → the newest record with outputs for it
    targets: dict[str, str] = field(default_factory=dict)  # sink → fingerprint of its target
    steps: dict[str, StepInfo] = field(default_factory=dict)
    spark: dict[str, SparkBatch] = field(default_factory=dict)
    published: dict[str, dict[str, Published]] = field(
        default_factory=dict
    )  # step → sink or step that reads its changes → the state that it has been given
    manifest: Pointer | None = None  # the segments of all records up to this file's own, compacted
    floor: int = 0  # records below this one may be gone, and what only they name
    hosts: dict[str, list[int]] = field(
        default_factory=dict
    )  # host → partitions that it computed last, for the next driver; empty if there is only one host
    drained: list[str] = field(default_factory=list)  # hosts that are to get no partitions
    segments: Pointers = field(default_factory=dict)
    outputs: Pointers = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)  # stream → rows read by this batch
    skipped: dict[str, int] = field(default_factory=dict)  # step → rows let go by on_error
    late: dict[str, int] = field(default_factory=dict)  # step or stream → rows that came too late
    began: Began | None = None
    checksum: str = ""

    @property
    def delivery_attempt(self) -> str:
        """The attempt in the ids of this record's deliveries."""
        return self.attempt if self.format >= 2 else ""

    @property
    def void_ranges(self) -> dict[str, list[tuple[int, int]]]:
        """`void`, and what a record of format 1 says in its place: no sink named there has delivered since."""
        old = {sink: [(batch + 1, self.epoch - 1)] for sink, batch in self.undo.items()}
        return {sink: [*old.get(sink, []), *self.void.get(sink, [])] for sink in [*old, *self.void]}

    @property
    def arrival(self) -> int:
        """The place of this record's batch among all batches that its state has seen.

        State is ordered and named by it, never by `number`: a savepoint that is restored, or a step that is
        rebuilt, brings along state of batches whose numbers come again. A later batch always has a higher place.
        """
        return self.number + self.arrivals

    def followed_by(self, kind: Kind, *, driver: str, attempt: str, time: float, **own: Any) -> Record:
        """Return the next record: what is carried over from this one, and what is its own.

        Every record after the first is made here. A clear gives up state and positions, but `ALWAYS_CARRIED` names what
        concerns the ledger as a whole. Every kind of record repeats `void`, until the sinks have done it.
        """
        carried = {name: getattr(self, name) for name in (ALWAYS_CARRIED if kind == "clear" else CARRIED)}
        return Record(
            **{
                **carried,
                "format": FORMAT,
                "kind": kind,
                "number": self.number + 1,
                "driver": driver,
                "attempt": attempt,
                "time": time,
                "previous": self.checksum,
                "void": self.void_ranges,
                **own,
            }
        )


ALWAYS_CARRIED = ("app", "partitions", "floor", "published", "requests")  # and `void`, which takes the place of `undo`

CARRIED = (
    *ALWAYS_CARRIED,
    "arrivals",
    "incarnation",
    "born",
    "epoch",
    "declared",
    "positions",
    "watermarks",
    "reached",
    "due",
    "deliveries",
    "newest_outputs",
    "targets",
    "steps",
    "spark",
    "manifest",
    "hosts",
    "drained",
)
