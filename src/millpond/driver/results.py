"""The results of the tasks of a batch: combined, and as the record of the batch holds them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import msgspec

from millpond.clock import new_id
from millpond.driver.planning import BatchPlan, Positions
from millpond.errors import MillpondError
from millpond.log import checked
from millpond.log.checked import Pointer
from millpond.log.paths import Attempt
from millpond.log.record import Position, Record, SparkBatch, StreamTime
from millpond.messages import BatchContext, ExchangePiece, StageResults, TaskOutput
from millpond.pipeline.graph import Program, StatefulStep
from millpond.runtimes.base import Offer
from millpond.storage import Storage
from millpond.watermarks import event_time_fields

LARGEST_INLINE_POSITION = 500  # entries; a longer position is written to a file


@dataclass
class Computed:
    """The combined results of the tasks of a batch."""

    base: Record
    positions: Positions = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    read_bytes: dict[str, int] = field(default_factory=dict)
    segments: dict[str, dict[int, list[Pointer]]] = field(default_factory=dict)
    outputs: dict[str, dict[int, list[Pointer]]] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)
    due: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)
    closed: dict[str, int] = field(default_factory=dict)
    times: dict[str, StreamTime] = field(default_factory=dict)
    carried: dict[int, dict[int, list[ExchangePiece]]] = field(default_factory=dict)
    failure: MillpondError | None = None

    def add(self, stage: StageResults) -> bool:
        """Add the results of one stage; return False if they are not those of one whole batch.

        Raises the error that ended a task.
        """
        if disagreement(stage, self.base.partitions) is not None:
            return False
        for result in sorted(stage.results, key=lambda result: result.partition):
            for header in result.headers:
                if header.output is not None:
                    self._add_output(header.output, header.task % self.base.partitions)
                for moved in header.progress:
                    if moved.place or moved.position is not None:
                        self.positions.setdefault(moved.stream, {})[moved.place] = moved.position
                    self.rows[moved.stream] = self.rows.get(moved.stream, 0) + moved.rows
                    self.read_bytes[moved.stream] = self.read_bytes.get(moved.stream, 0) + moved.bytes
            for step, pointers in result.segments.items():
                self.segments.setdefault(step, {})[result.partition] = pointers
            for step, times in result.due.items():
                self.due[step] = _earliest_due(times, self.due.get(step, (None, None)))
            for step, at in result.closed.items():
                self.closed[step] = max(at, self.closed.get(step, at))
            self.times = result.ends or self.times
            self._add_output(result.output, result.partition)
        if self.failure is not None:
            raise self.failure
        return True

    def _add_output(self, output: TaskOutput, partition: int) -> None:
        for sink, pointers in output.outputs.items():
            self.outputs.setdefault(sink, {}).setdefault(partition, []).extend(pointers)
        for step, count in output.skipped.items():
            self.skipped[step] = self.skipped.get(step, 0) + count
        for step, count in output.late.items():
            self.late[step] = self.late.get(step, 0) + count
        for exchange, partitions in output.carried.items():
            for target, pieces in partitions.items():
                self.carried.setdefault(exchange, {}).setdefault(target, []).extend(pieces)
        self.failure = self.failure or output.failure

    def carried_to(self, program: Program, stage: int, partitions: int) -> list[dict[int, list[ExchangePiece]]]:
        """Return, per partition, the pieces for the exchanges of a stage."""
        return [
            {
                exchange: targets[partition]
                for exchange, targets in sorted(self.carried.items())
                if program.stages[exchange] == stage and partition in targets
            }
            for partition in range(partitions)
        ]

    def tables_made(self, program: Program) -> dict[str, dict[int, list[Pointer]]]:
        """Return what the stages so far have changed in tables, for the steps of later stages that read them."""
        nodes = [i for node in program.nodes if isinstance(node.op, StatefulStep) for i in node.op.tables]
        names = {op.step.name for i in nodes if isinstance(op := program.nodes[i].op, StatefulStep)}
        return {step: parts for step, parts in self.segments.items() if step in names}


def _earliest_due(
    one: tuple[int | None, int | None], other: tuple[int | None, int | None]
) -> tuple[int | None, int | None]:
    event, wall = (min((t for t in pair if t is not None), default=None) for pair in zip(one, other, strict=True))
    return event, wall


def disagreement(stage: StageResults, partitions: int) -> str | None:
    """Return why these results are not those of one whole batch; None if they are.

    A reading task may run twice and differ. Then some partitions may have seen the rows of one attempt and some those
    of the other, and the batch must not count.
    """
    results = stage.results
    incomplete = [result.incomplete for result in results if result.incomplete]
    if incomplete:
        return incomplete[0]
    if sorted(result.partition for result in results) != list(range(partitions)):
        return f"{len(results)} of {partitions} partitions answered"
    seen = {tuple(sorted(result.nonces.items())) for result in results}
    if len(seen) != 1:
        return "partitions saw different attempts of a reading task"
    if len(seen.pop()) != stage.tasks:
        return "a reading task is missing"
    return None


def combine_results(base: Record, positions: Positions, stage: StageResults) -> Computed | None:
    """Combine the results of the first stage, as `Computed.add` does; None if they are not those of one whole batch.

    Positions that did not move are left out: half a line makes no commit.
    """
    computed = Computed(base)
    if not computed.add(stage):
        return None
    for stream, moved in list(computed.positions.items()):
        held = positions.get(stream, {})
        computed.positions[stream] = {place: at for place, at in moved.items() if held.get(place) != at}
        if not computed.positions[stream]:
            del computed.positions[stream]
            if not computed.rows.get(stream):
                computed.rows.pop(stream, None)
    return computed


def positions_of(storage: Storage, record: Record) -> Positions:
    """Return the full position of every stream at a record."""
    found: Positions = {}
    for stream, position in record.positions.items():
        base = {}
        if position.base is not None:
            base = msgspec.json.decode(checked.read_file(storage, position.base))
        found[stream] = {**base, **position.entries}
    return found


def record_fields(
    storage: Storage, program: Program, plan: BatchPlan, positions: Positions, computed: Computed
) -> dict[str, Any]:
    """Return what the record of a batch says of it; `positions` are those that the batch began with."""
    context, last = plan.context, computed.base
    assert context is not None
    return {
        "time": plan.now,
        "positions": {**last.positions, **_moved_positions(storage, context, positions, computed)},
        "spark": {**last.spark, **_spark_batches(storage, context, plan.offers, last)},
        "segments": computed.segments,
        "outputs": computed.outputs,
        "newest_outputs": {**last.newest_outputs, **dict.fromkeys(computed.outputs, last.number + 1)},
        "rows": computed.rows,
        "skipped": computed.skipped,
        "late": computed.late,
        "due": computed.due,
        **event_time_fields(program, context.event_time, last, computed.times, computed.closed),
    }


def _moved_positions(
    storage: Storage, context: BatchContext, positions: Positions, computed: Computed
) -> dict[str, Position]:
    """Return the positions that a batch moved, as its record holds them. One that is too long is written to a file."""
    found: dict[str, Position] = {}
    for stream, moved in computed.positions.items():
        held = computed.base.positions.get(stream, Position())
        entries = {**held.entries, **moved}
        if len(entries) <= LARGEST_INLINE_POSITION:
            found[stream] = Position(entries, held.base)
            continue
        whole = {**positions.get(stream, {}), **moved}
        path = context.log.paths.position(stream, Attempt(context.batch, context.driver, new_id()))
        found[stream] = Position({}, checked.write_file(storage, path, msgspec.json.encode(whole), len(whole)))
    return found


def _spark_batches(storage: Storage, context: BatchContext, offers: list[Offer], last: Record) -> dict[str, SparkBatch]:
    """Store Spark's small checkpoint files with the commit: an empty machine starts from them.

    Files that the last record holds already are not written again. The others are written at the same time, because
    the commit waits for all of them.
    """
    found = {}
    for offer in offers:
        attempt = Attempt(context.batch, context.driver, new_id())
        held = last.spark[offer.stream].files if offer.stream in last.spark else {}
        files = {name: held[name] for name in offer.files if name in held}
        new = {context.log.paths.spark(offer.stream, attempt, name): name for name in offer.files if name not in held}
        if new:
            with ThreadPoolExecutor(len(new), thread_name_prefix="millpond-commit") as pool:
                data = [offer.files[name].read_bytes() for name in new.values()]
                written = pool.map(checked.write_file, repeat(storage), new, data, repeat(0))
                files.update(zip(new.values(), written, strict=True))
        found[offer.stream] = SparkBatch(offer.batch, files)
    return found
