"""What the commit protocol asks of whoever runs its tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from millpond.errors import Unavailable
from millpond.log.record import SparkBatch
from millpond.messages import BatchContext, ExchangePiece, PlannedSplit, ReadProgress, StageResults
from millpond.parcels import Parcel
from millpond.pipeline.graph import Program
from millpond.storage import Storage

W = TypeVar("W")
T = TypeVar("T")


class RuntimeGone(Unavailable):
    """What ran the tasks has ended: nothing can be run again in this process, and the driver ends."""


@dataclass(frozen=True)
class Offer:
    """A batch that a streaming DataFrame offers: its number, and the files that would offer it again."""

    stream: str
    batch: int
    files: dict[str, Path] = field(default_factory=dict)
    frame: Any = None


class Reading(Protocol):
    """The reading tasks of a batch, run on their own, perhaps still at work."""

    def progress(self) -> list[ReadProgress] | None:
        """How far they have come, once they are done; nothing if they could not be brought to an end."""
        ...

    def drop(self) -> None:
        """What they made is not needed."""
        ...


class Runtime(Protocol):
    """Runs tasks. It decides where, and nothing else."""

    @property
    def slots(self) -> int:
        """How many tasks run at the same time, about."""
        ...

    def check(self) -> None:
        """`RuntimeGone` if tasks cannot be run any more; asked while there is nothing to run."""
        ...

    def read(
        self, program: Program, context: BatchContext, tasks: list[list[PlannedSplit]], *, later: bool = False
    ) -> Reading | None:
        """Run the reading tasks alone; nothing if that is of no use here.

        `later` means beside what is called next, where that leaves room.
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

        A `reading` of just these tasks stands for them; `JobLost` if it came to no end.
        """
        ...

    def next_stage(
        self, program: Program, context: BatchContext, stage: int, carried: list[dict[int, list[ExchangePiece]]]
    ) -> StageResults:
        """Run a later keyed task of every partition over what was carried to it."""
        ...

    def deliver(self, program: Program, state_url: str, parcels: list[Parcel]) -> None:
        """Give parcels to a sink whose place is not in the driver; `JobLost` if they may not all be there."""
        ...

    def each(self, task: Callable[[Storage, W], T], jobs: list[W]) -> list[T]:
        """What a function makes of each of some works, and of the storage; `JobLost` if that could not be done."""
        ...

    def offers(self, wait: float) -> list[Offer]:
        """What streaming DataFrames offer just now, or within a time."""
        ...

    def offer_again(self, storage: Storage, stream: str, held: SparkBatch, whole: bool) -> Offer:
        """The batch that a streaming DataFrame offered when a record was written, once more.

        With `whole` it has all rows from the beginning of the input to the end of that batch.
        """
        ...

    def accept(self, offer: Offer) -> None:
        """The offered batch is committed: let the DataFrame go on."""
        ...

    def is_waiting(self, stream: str) -> bool:
        """Whether a stream, if it is a streaming DataFrame, has nothing to offer and has looked for it."""
        ...

    @property
    def exhausted(self) -> bool:
        """Whether no streaming DataFrame will offer anything more of what is there now."""
        ...
