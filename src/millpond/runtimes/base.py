"""The contract of runtimes: what the driver needs of Spark, or of the local runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from millpond.errors import Unavailable
from millpond.log.record import SparkBatch
from millpond.messages import BatchContext, ExchangePiece, Parcel, PlannedSplit, ReadProgress, StageResults
from millpond.pipeline.graph import Program
from millpond.storage import Storage

W = TypeVar("W")
T = TypeVar("T")


class RuntimeGone(Unavailable):
    """What ran the tasks has ended: nothing can be run again in this process, and the driver ends."""


@dataclass(frozen=True)
class Offer:
    """A batch that a streaming DataFrame offers: its number, and the files by which Spark offers it again."""

    stream: str
    batch: int
    files: dict[str, Path] = field(default_factory=dict)
    frame: Any = None


class Reading(Protocol):
    """The reading tasks of a batch, run in a job of their own that may not have ended."""

    def progress(self) -> list[ReadProgress] | None:
        """Wait for the tasks, and return how far they have read; None if they failed."""
        ...

    def drop(self) -> None:
        """Give up what they have read."""
        ...


class Runtime(Protocol):
    """Runs tasks. It decides where they run, and nothing else."""

    @property
    def slots(self) -> int:
        """About how many tasks run at the same time."""
        ...

    def check(self) -> None:
        """Raise `RuntimeGone` if tasks cannot be run any more. Called while there is nothing to run."""
        ...

    def read(
        self, program: Program, context: BatchContext, tasks: list[list[PlannedSplit]], *, later: bool = False
    ) -> Reading | None:
        """Start the reading tasks alone; None if this runtime does not read ahead.

        `later` lets the tasks of the next call go first.
        """
        ...

    def first_stage(
        self,
        program: Program,
        context: BatchContext,
        tasks: list[list[PlannedSplit]],
        offers: list[Offer],
        reading: Reading | None = None,
    ) -> StageResults:
        """Run the reading tasks, those of each offer, and the first keyed task of every partition.

        A `reading` of these tasks is used in their place; `JobLost` if it has failed.
        """
        ...

    def next_stage(
        self, program: Program, context: BatchContext, stage: int, carried: list[dict[int, list[ExchangePiece]]]
    ) -> StageResults:
        """Run the keyed task of a later stage in every partition, over the pieces that were carried to it."""
        ...

    def deliver(self, program: Program, state_url: str, parcels: list[Parcel]) -> None:
        """Deliver parcels to a sink that is not called on the driver; `JobLost` if some may not have arrived."""
        ...

    def each(self, task: Callable[[Storage, W], T], jobs: list[W]) -> list[T]:
        """Call `task(storage, job)` for each job, and return the results; `JobLost` if that failed."""
        ...

    @property
    def has_hosts(self) -> bool:
        """Whether tasks can be sent to chosen hosts. If not, nothing below that concerns hosts is called."""
        ...

    def hosts(self) -> list[str]:
        """Return the hosts that can run tasks now, in order. Called before every batch, and from another thread."""
        ...

    def place(self, hosts: Sequence[str]) -> None:
        """Let the keyed tasks of each partition run on its host from now on; anywhere if there are no hosts.

        It is a preference: if a host is gone or has no free slot for long, a task runs elsewhere. The same hosts again
        mean that partitions do not run there: they are laid once more.
        """
        ...

    def each_on(self, task: Callable[[Storage, W], T], jobs: list[tuple[str, W]]) -> list[T]:
        """Call `task(storage, job)` for each job, on its host if possible; `JobLost` if that failed.

        Called from a thread, while a batch runs.
        """
        ...

    def offers(self, wait: float) -> list[Offer]:
        """Return what streaming DataFrames offer now, or within `wait` seconds."""
        ...

    def offer_again(self, storage: Storage, stream: str, held: SparkBatch, whole: bool) -> Offer:
        """Let a streaming DataFrame offer the batch of a record again.

        With `whole` the offer has all rows from the beginning of the input to the end of that batch.
        """
        ...

    def accept(self, offer: Offer) -> None:
        """Let the DataFrame go on: the offered batch is committed."""
        ...

    def is_waiting(self, stream: str) -> bool:
        """Return whether a streaming DataFrame has looked for rows and found none; True for other streams."""
        ...

    @property
    def exhausted(self) -> bool:
        """Whether no streaming DataFrame will offer any more of the present input."""
        ...
