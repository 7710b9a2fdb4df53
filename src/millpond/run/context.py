"""What the driver and its tasks tell each other: small, plain values that travel with a job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from millpond.errors import MillpondError
from millpond.flow import Split
from millpond.log.paths import Attempt, Paths
from millpond.log.pointer import Pointer

Segments = dict[str, list[Pointer]]  # step or sink → files


@dataclass(frozen=True)
class Context:
    """One batch, as every one of its tasks must see it."""

    app: str
    incarnation: str
    partitions: int
    batch: int  # the number that its record will have
    base: int  # the record that it builds on: every replica must stand exactly there
    born: int
    driver: str
    now: float
    state_url: str
    home: str | None  # where replicas live; each host decides for itself if nothing is said
    recent: dict[int, dict[int, Segments]] = field(default_factory=dict)  # record → partition → segments
    checksums: dict[int, str] = field(default_factory=dict)  # of those records

    @property
    def paths(self) -> Paths:
        return Paths(self.app)

    def attempt(self, nonce: str) -> Attempt:
        return Attempt(self.batch, self.driver, nonce)


@dataclass(frozen=True)
class Planned:
    """A split with its stream and its place in the plan of the batch."""

    place: int
    stream: str
    split: Split


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
    failure: MillpondError | None = None


@dataclass
class Header:
    """What a reading task says to every partition: who it is, in which attempt, and how far it came."""

    task: int
    nonce: str
    blobs: int  # how many of its blobs the reader of this header must have
    made: Made | None = None  # only one partition is told, and hands it on
    progress: list[Progress] = field(default_factory=list)


@dataclass
class Result:
    """What a keyed task returns to the driver: pointers, and proof of what it saw."""

    partition: int
    segments: Segments = field(default_factory=dict)
    made: Made = field(default_factory=Made)
    nonces: dict[int, str] = field(default_factory=dict)
    headers: list[Header] = field(default_factory=list)
    incomplete: str = ""  # why the batch must be run again, if it must
    host: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Stage:
    """The results of one keyed stage, and how many reading tasks fed it."""

    results: list[Result]
    tasks: int


class Incomplete(Exception):
    """A keyed task did not get all rows of one attempt of a reading task: the batch is run again."""
