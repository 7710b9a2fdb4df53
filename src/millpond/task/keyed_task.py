"""The keyed task: it catches up the replica of its partition, runs the steps of a stage, and writes what has changed.

It does not depend on what runs it: a loop in a test, or Spark on a cluster. A task may run twice, anywhere, at the same
time; no two attempts write files of the same name.
"""

from __future__ import annotations

import socket
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any
from zlib import crc32

from millpond.clock import elapsed, new_id
from millpond.log.paths import Attempt
from millpond.log.recovery import RecoveryFile
from millpond.log.segment import Change, SegmentOrigin, SingleCellChanges, write_state
from millpond.messages import (
    BatchContext,
    ExchangePiece,
    Incomplete,
    KeyedResult,
    ReadHeader,
    TaskOutput,
)
from millpond.pipeline.graph import Program
from millpond.replica import View
from millpond.replica.catch_up import (
    MOST_REPLICA_ATTEMPTS,
    remember_changes,
    repeated_damage,
)
from millpond.replica.cell_format import Damaged
from millpond.replica.folders import replica_place
from millpond.replica.follow import READY_RECORDS
from millpond.replica.local_stores import PartitionStores
from millpond.storage import Storage
from millpond.task.batch_delivery import deliver_parcels
from millpond.task.changelog import read_given_state
from millpond.task.router import Router
from millpond.task.tables import DamagedTable, TaskTables
from millpond.task.tools import TASK_FAILURES, Tools, failure_of
from millpond.timing import MAX_TICKS


@dataclass(frozen=True)
class KeyedTask:
    """One stage of one batch, for one partition. Without tools it opens the storage that the context names."""

    program: Program
    context: BatchContext
    stage: int
    partition: int
    tools: Tools | None = None

    def run(self, items: list[Any], carried: dict[int, list[ExchangePiece]], *, rebuild: bool = False) -> KeyedResult:
        """Run the stage over the rows in `items`, from reading tasks, and in `carried`, from earlier stages.

        Errors of the program and of the state are in the result. With `rebuild` the replica is built from the log.
        Parcels of the batch before are delivered first.
        """
        began = elapsed()
        headers = [item for item in items if isinstance(item, ReadHeader)]
        blobs = sorted(item for item in items if not isinstance(item, ReadHeader))
        result = KeyedResult(self.partition, nonces={h.task: h.nonce for h in headers}, host=socket.gethostname())
        if self.partition == 0:
            result.headers = sorted(headers, key=lambda header: header.task)
        try:
            _check_attempts(headers, blobs)
            if all(header.output is None or header.output.failure is None for header in headers):
                self._run(headers, blobs, carried, result, rebuild)
        except Incomplete as error:
            result.incomplete = str(error)
        except TASK_FAILURES as error:
            result.output = TaskOutput(failure=failure_of(error, self.context.batch))
        finally:
            result.seconds = elapsed() - began
        return result

    def _run(
        self,
        headers: list[ReadHeader],
        blobs: list[Any],
        carried: dict[int, list[ExchangePiece]],
        result: KeyedResult,
        rebuild: bool,
    ) -> None:
        """Run the stage. If a replica turns out to be damaged, it is rebuilt, and the whole stage is run again.

        `Unavailable` if a replica is damaged in each of `MOST_REPLICA_ATTEMPTS` attempts.
        """
        program, context = self.program, self.context
        tools = self.tools or Tools.of(context)
        if context.parcels:
            deliver_parcels(program, context, tools.storage, result)
        arrived: dict[int, list[bytes]] = {}
        for _, _, _, exchange, blob in blobs:
            arrived.setdefault(exchange, []).append(blob)
        for exchange, pieces in carried.items():
            arrived.setdefault(exchange, []).extend(_fetch(tools.storage, piece) for piece in pieces)
        report = RecoveryFile(tools.storage, context.log.app, context.driver, context.batch, self.partition)
        stores = PartitionStores(context.home, self.partition, program.local_stores, program.steps, True, report)
        if context.copies is not None and self._is_misplaced(stores, context.copies, result):
            return
        tables = TaskTables(tools.storage, program, context, self.partition)
        whole, damaged_tables = program.whole_tables.get(self.stage, []), set[str]()
        for _ in range(MOST_REPLICA_ATTEMPTS):
            try:
                with (
                    tables.open_whole(whole, rebuild=damaged_tables) if whole else nullcontext(),
                    stores.catch_up(tools.storage, context.log, rebuild=rebuild) as view,
                ):
                    return self._run_steps(view, tables, headers, arrived, tools, result)
            except Damaged as damage:
                trouble = repeated_damage(stores.folder(context.log), damage)
                rebuild, damaged_tables = True, set()
            except DamagedTable as error:
                rebuild, damaged_tables, trouble = False, {error.table}, repeated_damage(error.folder, error.damage)
        raise trouble

    def _is_misplaced(self, stores: PartitionStores, copies: dict[int, frozenset[str]], result: KeyedResult) -> bool:
        """Note where the task runs; return whether another host has a ready copy of the state and this one has not.

        Then the driver runs the batch again over there, which is faster than to build the state from the log here.
        """
        result.place, result.found = replica_place(self.context.home), stores.position(self.context.log)
        is_ready = result.found is not None and self.context.log.number - result.found <= READY_RECORDS
        result.misplaced = not is_ready and bool(copies.get(self.partition, frozenset()) - {result.place})
        return result.misplaced

    def _run_steps(
        self,
        view: View,
        tables: TaskTables,
        headers: list[ReadHeader],
        arrived: dict[int, list[bytes]],
        tools: Tools,
        result: KeyedResult,
    ) -> None:
        """Run the steps of the stage over the state in `view`, and write their changes and outputs."""
        context, storage, base = self.context, tools.storage, self.context.log.number
        if view.position != base:
            raise Incomplete(f"replica at record {view.position}, batch {context.batch} builds on {base}")
        router = Router(self.program, context, self.stage, tools.clock, headers, self.partition)
        read_given = partial(read_given_state, storage, self.partition, context.log.partitions)
        router.run(view, partial(tables.rows, view), read_given, arrived)
        changed = {step: changes for step, changes in router.changes.items() if changes}
        due = _next_due(router, view, changed)  # the view is not read after this: nothing below is of a failed attempt
        segments, attempt = {}, Attempt(context.batch, context.driver, new_id())
        for step, changes in changed.items():
            origin = SegmentOrigin(context.log.app, step, self.partition, context.batch)
            path = context.log.paths.state(step, self.partition, attempt)
            segments[step] = [write_state(storage, path, changes, origin)]
            remember_changes(path, changes, origin)
        result.output = router.outbox.write_files(storage, self.partition, attempt, self.stage)
        result.segments, result.due, result.ends = segments, due, router.times.ends
        for node, running in router.running.items():
            if running.closed_until is not None:
                result.closed[router.step_names[node]] = running.closed_until


def _check_attempts(headers: list[ReadHeader], blobs: list[Any]) -> None:
    """Raise `Incomplete` unless all blobs are there, of one attempt of each reading task."""
    expected = {(h.task, h.nonce, number) for h in headers for number in range(h.blobs)}
    found = {(task, nonce, number) for task, nonce, number, _, _ in blobs}
    if expected != found or len({h.task for h in headers}) != len(headers):
        raise Incomplete("blobs of different attempts of a reading task")


def _fetch(storage: Storage, piece: ExchangePiece) -> bytes:
    blob = storage.get_range(piece.path, piece.start, piece.length)
    if blob is None or crc32(blob) != piece.checksum:
        raise Incomplete(f"{piece.path} is {'gone' if blob is None else 'damaged'}")
    return blob


def _next_due(
    router: Router, view: View, changed: dict[str, Sequence[Change]]
) -> dict[str, tuple[int | None, int | None]]:
    """Return when something is due next in each step's state, by event time and by the clock."""
    found = {}
    for node in router.running:
        step = router.step_names[node]
        changes = changed.get(step, [])
        may_have_times = [] if isinstance(changes, SingleCellChanges) else changes
        event = [change.due for change in may_have_times if change.due is not None and change.value is not None]
        wall = [change.wall for change in may_have_times if change.wall is not None and change.value is not None]
        if not event and not wall and step not in view.timed_steps:
            continue
        now = round(router.context.now * 1_000_000)
        # The step itself has handled what was due by now.
        for times, by_clock, after in ((event, False, router.times.steps[node].expiry_watermark), (wall, True, now)):
            soonest = min(times, default=MAX_TICKS)
            for entry in view.due(step, soonest, wall=by_clock, after=after):
                place = bisect_left(changes, (entry.key, entry.cell))
                if place == len(changes) or changes[place][:2] != (entry.key, entry.cell):
                    time = entry.wall if by_clock else entry.due
                    assert time is not None
                    times.append(time)
                    break
        if event or wall:
            found[step] = (min(event, default=None), min(wall, default=None))
    return found
