"""An app that does not run, as maintenance actions change it: each claims the app, and commits once or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from millpond.clock import Clock, new_id
from millpond.errors import Corrupt, Fenced, InvalidUse
from millpond.log.checked import Pointer
from millpond.log.heartbeat import check_stopped
from millpond.log.jobs import ProgressCallback, When
from millpond.log.ledger import Ledger
from millpond.log.reach import oldest_within_reach, within_reach
from millpond.log.record import Kind, Record
from millpond.log.rewrite import Rewriter
from millpond.storage import Storage

T = TypeVar("T")
P = ParamSpec("P")
At = Callable[[When | Literal["claimed", "committed"]], None]


@dataclass
class StoppedApp:
    """An app that does not run, and the records that one action adds to its ledger.

    An action can be killed at any moment and called again: nothing has changed until its one commit. `at` is called at
    its crash points.
    """

    storage: Storage
    name: str
    clock: Clock
    at: At = field(default=lambda when: None)
    progress: ProgressCallback = field(default=lambda done, total: None)
    force: bool = False  # go on even if a heartbeat says that the app runs: its driver is fenced

    def __post_init__(self) -> None:
        self.id = new_id()
        self.ledger = Ledger(self.storage, self.name, self.clock)
        self.last: Record | None = None  # the newest record that was read or written

    def find_newest(self, what: str) -> Record | None:
        """Return the newest record; None if there is none, `InvalidUse` if the app seems to run."""
        check_stopped(self.storage, self.name, self.clock, what, force=self.force)
        self.last = self.ledger.newest()
        return self.last

    def newest(self, what: str) -> Record:
        """Return the newest record; `InvalidUse` if the app seems to run, or if there is no such app."""
        last = self.find_newest(what)
        if last is None:
            raise InvalidUse(f"{what}: {self.storage.url} holds no app {self.name!r}: check state_dir and the name")
        return last

    def claim(self, what: str) -> Record:
        """Claim the app, so that another driver that still runs is fenced."""
        return self.write("claim", self.newest(what))

    def write(self, kind: Kind, last: Record, **own: Any) -> Record:
        """Write the record that follows `last`; `Fenced` if another has written it first."""
        record = last.followed_by(kind, driver=self.id, attempt=new_id(), time=self.clock.now(), **own)
        self.last = self.ledger.append(record, last)
        return self.last

    def find_batch(self, batch: int, last: Record) -> Record:
        """Return the record of a batch whose state can still be read, or raise `InvalidUse`."""
        if type(batch) is not int:
            raise InvalidUse(f"app {self.name!r}: expected the number of a batch, got {batch!r}; nothing was changed.")
        record = within_reach(self.ledger, batch, last)
        if record is None:
            raise InvalidUse(
                f"app {self.name!r}: batch {batch} is not within reach: expected one from "
                f"{oldest_within_reach(self.ledger, last)} to {last.number}. App(keep=) says how many are kept; "
                "nothing was changed."
            )
        return record

    @property
    def rewriter(self) -> Rewriter:
        """A rewriter that works in this process, one partition after the other."""

        def each(task: Any, jobs: list[Any]) -> list[Any]:
            return [task(self.storage, job) for job in self.with_progress(jobs)]

        return Rewriter(self.storage, self.ledger, each, self.id, self.at)

    def with_progress(self, jobs: list[T]) -> Iterator[T]:
        """Yield the jobs, and call `progress` with the number of those that are done before each and at the end."""
        for done, job in enumerate(jobs):
            self.progress(done, len(jobs))
            yield job
        self.progress(len(jobs), len(jobs))


def detect_fencing(action: Callable[Concatenate[StoppedApp, P], T]) -> Callable[Concatenate[StoppedApp, P], T]:
    """Let an action raise `Fenced` instead of `Corrupt` if there is a newer record.

    The driver that has written that record may have removed the file that is missing.
    """

    @wraps(action)
    def call(app: StoppedApp, /, *args: P.args, **how: P.kwargs) -> T:
        try:
            return action(app, *args, **how)
        except Corrupt as error:
            if app.last is None or app.ledger.is_newest(app.last):
                raise
            raise Fenced(
                f"app {app.name!r} in {app.storage.url}: another driver has gone on with it meanwhile. Call this "
                "again; nothing is lost."
            ) from error

    return call


def describe_amount(jobs: list[Any], step: str | None = None) -> str:
    """Return how much of the log some jobs read, in words: of one step or of all."""
    files = [
        file
        for job in jobs
        for name, (_, runs, fresh) in job.steps.items()
        if step in (None, name)
        for file in [*fresh, *(part.file for run in runs for part in run)]
    ]
    changes = sum(file.rows for file in files)  # a cell that was written twice counts twice, until it is compacted
    return f"{changes} stored changes in {sum(file.bytes for file in files)} bytes"


def position_files(record: Record) -> list[Pointer]:
    """Return the files of a record without state or outputs: long positions, and Spark's checkpoint files."""
    based = [held.base for held in record.positions.values() if held.base is not None]
    return [*based, *(file for batch in record.spark.values() for file in batch.files.values())]
