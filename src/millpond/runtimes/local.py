"""The local runtime, for tests: the same tasks, one after the other, in this process."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millpond.clock import Clock
from millpond.driver.read_ahead import progress_of
from millpond.errors import InvalidUse
from millpond.log.record import SparkBatch
from millpond.messages import (
    BatchContext,
    ExchangePiece,
    KeyedResult,
    Parcel,
    PlannedSplit,
    ReadHeader,
    ReadProgress,
    StageResults,
)
from millpond.parcels import hand_over
from millpond.pipeline.graph import Program
from millpond.replica.folders import simulate_host
from millpond.replica.lmdb_store import close_below
from millpond.runtimes.base import Offer, Reading, T, W
from millpond.steps.forks import refuse_forks
from millpond.storage import Storage
from millpond.task.keyed_task import KeyedTask
from millpond.task.read_task import read_task
from millpond.task.tools import Tools

KeyedInput = tuple[list[Any], dict[int, list[ExchangePiece]]]  # for one partition: from reading tasks, and carried


@dataclass
class LocalReading:
    """What reading tasks made, in memory."""

    items: list[list[Any]]  # for each partition
    tasks: int

    def progress(self) -> list[ReadProgress] | None:
        return progress_of(item for item in self.items[0] if isinstance(item, ReadHeader))

    def drop(self) -> None:
        self.items = []


@dataclass
class LocalHosts:
    """Simulated hosts, each with a folder of replicas of its own. Tests let them die and come back.

    A task whose host is gone runs on another one, as on Spark. `detours` sends the next task of a partition to a host
    that was not asked for, as Spark does if the right one is busy; `strays` sends all of them there, until partitions
    are placed again.
    """

    root: Path
    alive: list[str]
    detours: dict[int, str] = field(default_factory=dict)
    strays: dict[int, str] = field(default_factory=dict)

    def home(self, host: str) -> str:
        """Return the folder of a host's replicas."""
        return str(self.root / host)

    def kill(self, host: str, *, lose_disk: bool = False) -> None:
        """Let a host die; its replicas are there when it comes back, unless its disk is lost."""
        self.alive.remove(host)
        close_below(self.home(host))
        if lose_disk:
            shutil.rmtree(self.home(host), ignore_errors=True)

    def add(self, host: str) -> None:
        """Let a host join, or come back."""
        self.alive.append(host)

    def choose(self, partition: int, wanted: Sequence[str]) -> str:
        """Return the host that runs the next task of a partition."""
        asked = wanted[partition] if partition < len(wanted) else ""
        host = self.detours.pop(partition, None) or self.strays.get(partition) or asked
        return host if host in self.alive else self.alive[partition % len(self.alive)]


class LocalRuntime:
    """Runs every task where it is called. `between` is called after each keyed task, for tests to step in.

    With `ahead`, the rows of a batch are read while the one before is computed, as on Spark. `shipped` is the program
    that the tasks run, as it is loaded in a worker; without it they run the driver's own. `hosts` are simulated; then
    the driver must not choose the folder of the replicas.
    """

    slots = 1

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        between: Callable[[int], None] | None = None,
        ahead: bool = False,
        shipped: Program | None = None,
        hosts: LocalHosts | None = None,
    ) -> None:
        refuse_forks()  # the functions of the program run in this process
        self._hosts, self._placed = hosts, list[str]()
        self._storage, self._tools, self._ahead = storage, Tools(storage, clock), ahead
        self._shipped = shipped
        self._between = between or (lambda partition: None)

    def check(self) -> None:
        return None

    def read(
        self, program: Program, context: BatchContext, tasks: list[list[PlannedSplit]], *, later: bool = False
    ) -> LocalReading | None:
        return self._read(program, context, tasks) if self._ahead else None

    def _read(self, program: Program, context: BatchContext, tasks: list[list[PlannedSplit]]) -> LocalReading:
        reading = LocalReading([[] for _ in range(context.log.partitions)], len(tasks))
        for task, planned in enumerate(tasks):
            for partition, item in read_task(self._shipped or program, context, task, planned, self._tools):
                reading.items[partition].append(item)
        return reading

    def first_stage(
        self,
        program: Program,
        context: BatchContext,
        tasks: list[list[PlannedSplit]],
        offers: list[Offer],
        reading: Reading | None = None,
    ) -> StageResults:
        assert reading is None or isinstance(reading, LocalReading)
        read = self._read(program, context, tasks) if reading is None else reading
        inputs: list[KeyedInput] = [(items, {}) for items in read.items]
        return StageResults(self._run_keyed(program, context, 1, inputs), read.tasks)

    def next_stage(
        self, program: Program, context: BatchContext, stage: int, carried: list[dict[int, list[ExchangePiece]]]
    ) -> StageResults:
        return StageResults(self._run_keyed(program, context, stage, [([], part) for part in carried]), 0)

    def _run_keyed(
        self, program: Program, context: BatchContext, stage: int, inputs: list[KeyedInput]
    ) -> list[KeyedResult]:
        """Run the keyed tasks of a stage, one partition after the other."""
        results = []
        for partition, (items, carried) in enumerate(inputs):
            task = KeyedTask(self._shipped or program, context, stage, partition, self._tools)
            host = None if self._hosts is None else self._hosts.choose(partition, self._placed)
            with self._on(host):
                results.append(task.run(items, carried))
            self._between(partition)
        return results

    def deliver(self, program: Program, state_url: str, parcels: list[Parcel]) -> None:
        for parcel in parcels:
            hand_over(self._storage, program.codec, program.sinks[parcel.sink], parcel)

    def each(self, task: Callable[[Storage, W], T], jobs: list[W]) -> list[T]:
        return [task(self._storage, job) for job in jobs]

    @property
    def has_hosts(self) -> bool:
        return self._hosts is not None

    def hosts(self) -> list[str]:
        return [] if self._hosts is None else sorted(self._hosts.alive)

    def place(self, hosts: Sequence[str]) -> None:
        self._placed = list(hosts)
        if self._hosts is not None:
            self._hosts.strays.clear()

    def each_on(self, task: Callable[[Storage, W], T], jobs: list[tuple[str, W]]) -> list[T]:
        found = []
        for number, (host, job) in enumerate(jobs):
            hosts = self.hosts() or [host]
            with self._on(host if host in hosts else hosts[number % len(hosts)]):
                found.append(task(self._storage, job))
        return found

    def _on(self, host: str | None) -> AbstractContextManager[None]:
        """Return a context in which tasks run on a simulated host."""
        return nullcontext() if self._hosts is None or host is None else simulate_host(self._hosts.home(host))

    def offers(self, wait: float) -> list[Offer]:
        return []

    def offer_again(self, storage: Storage, stream: str, held: SparkBatch, whole: bool) -> Offer:
        raise InvalidUse(f"stream {stream!r}: a streaming DataFrame is read on Spark alone")

    def accept(self, offer: Offer) -> None:
        return None

    def is_waiting(self, stream: str) -> bool:
        return True

    @property
    def exhausted(self) -> bool:
        return True
