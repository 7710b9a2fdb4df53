"""What a driver is started with: plain values, and the callbacks through which its caller follows and stops it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from millpond.log.compaction import COMPACT_EVERY
from millpond.log.jobs import ProgressCallback, When
from millpond.log.record import Record
from millpond.log.retention import Keep
from millpond.storage import Storage

if TYPE_CHECKING:
    from millpond.driver.owner import Owner

StepName = Literal["plan", "compute", "commit", "deliver", "acknowledge", "tidy", "compact", "rewrite", "request"]
Hook = Callable[[StepName, When], None]
DeclaredPartitions = int | Literal["auto"] | None  # as a program says it


@dataclass(frozen=True)
class DriverSettings:
    """How a driver works."""

    # None means those that the state has, or one for each slot of the runtime; "auto" follows the slots.
    partitions: DeclaredPartitions = None
    home: str | None = None  # the folder for replicas; None lets each host choose
    standbys: int = 0  # copies of each partition on other hosts
    keep: Keep = field(default_factory=Keep)
    compact_every: int = COMPACT_EVERY  # records
    every: float = math.inf  # seconds between batches: a source that is silent for two of them is quiet
    threaded: bool = True  # deliver and compact in threads of their own; tests do it where it is called
    bounded: bool = True  # whether the clock bounds the times of rows
    accept: Sequence[str] = ()  # sinks whose targets may hold what the ledger does not contain
    take_back: Sequence[str] = ()  # sinks whose targets are to give that up


class ClaimRules(Protocol):
    """Decides whether a driver that starts may claim its app, and follows it once it has."""

    def may_claim(self, storage: Storage, app: str, newest: Record | None) -> bool:
        """Return whether a claim may follow the newest record. Called before each attempt to write the claim."""
        ...

    def claimed(self, owner: Owner) -> None:
        """Take note of a claim. Called right after it is written, before targets and state are looked at."""
        ...


@dataclass(frozen=True)
class Controls:
    """What the caller of a driver hands in to follow and to stop it.

    `hook(step, when)` is called at every crash point of the commit protocol, on the thread that does the step: tests
    crash there. `progress(done, total)` is called while state is rewritten before the first batch. Once `stop` is set,
    no sink that is unavailable is waited for. Without `claims`, the driver claims the app from any owner.
    """

    hook: Hook | None = None
    stop: threading.Event | None = None
    progress: ProgressCallback | None = None
    claims: ClaimRules | None = None
