"""The plan of a batch, and the combined results of its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from millpond.clock import new_id
from millpond.driver.planning import allot_rows, most_rows, row_shares
from millpond.errors import MillpondError
from millpond.log import pointer
from millpond.log.pointer import Pointer
from millpond.log.record import Position, Record, SparkBatch, StreamTime
from millpond.messages import BatchContext, EventTime, ExchangePiece, KeyedResult, PlannedSplit, TaskOutput
from millpond.pipeline.graph import Program, Read, StatefulStep
from millpond.runtimes.base import Offer, Reading, Runtime
from millpond.sources.base import LearningSource, Limit, Source, Split
from millpond.storage import Storage

LARGEST_INLINE_POSITION = 500  # entries; a longer position is written to a file

NO_PARTITION = ""  # the one partition of a streaming DataFrame

Positions = dict[str, dict[str, Any]]


@dataclass
class BatchPlan:
    """What one batch reads, and the one `now` that all of its tasks see."""

    now: float
    planned: list[PlannedSplit]
    offers: list[Offer]  # by streaming DataFrames
    known: list[Offer] = field(default_factory=list)  # offers that the ledger holds already
    event_time: EventTime = field(default_factory=EventTime)
    only: frozenset[str] | None = None  # the streams that are read; None means all
    reading: Reading | None = None  # the rows of all that is planned, if they were read ahead
    asked: float = 0.0  # when the sources were asked, on the monotonic clock
    unsure: frozenset[str] = frozenset()  # streams that may have rows which are not in the plan
    context: BatchContext | None = None  # that the tasks of the last attempt were given

    @property
    def coming(self) -> dict[str, set[str]]:
        """Return the streams and source partitions that the batch reads."""
        found: dict[str, set[str]] = {}
        for item in self.planned:
            found.setdefault(item.stream, set()).add(item.split.partition)
        for offer in self.offers:
            found.setdefault(offer.stream, set()).add(NO_PARTITION)
        return found


@dataclass(frozen=True)
class BatchRequest:
    """What the sources are asked for: rows after some positions, at most as many as the limit says."""

    positions: Positions
    limit: Limit
    most_rows: int  # that the batch may have in the end, if `limit` plans for fewer
    now: float
    only: frozenset[str] | None = None  # the streams to ask; None means all
    again: BatchPlan | None = None  # the plan that this one replaces: its offers are taken over


def plan_streams(program: Program, runtime: Runtime, last: Record, request: BatchRequest) -> BatchPlan:
    """Ask every source for splits, and every streaming DataFrame for its offer. No row is read here."""
    positions, limit, now, only = request.positions, request.limit, request.now, request.only
    own = {name: node.op for name, node in program.reads.items() if isinstance(node.op, Read)}
    own = {name: op for name, op in own.items() if only is None or name in only}
    ours = {name: op.source for name, op in own.items() if isinstance(op.source, Source)}
    splits = {name: source.plan(positions.get(name, {}), limit, now) for name, source in ours.items()}
    wanted = {name: most_rows(found, limit.rows) for name, found in splits.items() if found}
    parts = allot_rows(wanted, limit.rows)
    planned: list[PlannedSplit] = []
    full: set[str] = set()  # streams that may have more rows than the batch
    for name, part in parts.items():
        if part < wanted[name]:
            splits[name] = ours[name].plan(positions.get(name, {}), Limit(part, limit.bytes), now)
    for name, found in splits.items():
        if found:
            planned += _with_shares(name, found, parts[name] * request.most_rows // limit.rows, len(planned))
            if sum(split.rows or 0 for split in found) >= parts[name]:
                full.add(name)
    if (again := request.again) is not None:
        return BatchPlan(now, planned, again.offers, event_time=again.event_time, only=only, asked=again.asked)
    offers: list[Offer] = []
    known: list[Offer] = []
    if len(ours) < len(own):
        for offer in runtime.offers(0.0 if planned else 0.2):
            if offer.stream not in own:
                continue
            held = last.spark.get(offer.stream)
            (known if held is not None and held.batch >= offer.batch else offers).append(offer)
    # A streaming DataFrame that has not looked for rows since its last batch may have some.
    frames = {name for name, op in own.items() if name not in ours and op.idle_after is not None}
    unsure = frozenset(name for name in frames if not runtime.is_waiting(name)) | full
    return BatchPlan(now, planned, offers, known, only=only, unsure=unsure)


def _with_shares(stream: str, splits: Sequence[Split], rows: int, first: int) -> list[PlannedSplit]:
    """Return the splits of a stream, each with its share of the rows."""
    last = {split.partition: i for i, split in enumerate(splits)}
    return [
        PlannedSplit(first + i, stream, split, share, last[split.partition] == i)
        for i, (split, share) in enumerate(zip(splits, row_shares(splits, rows), strict=True))
    ]


def source_of(program: Program, stream: str) -> Source | None:
    """Return the source of a stream; None if the program has no such stream, or Spark reads it."""
    op = program.reads[stream].op if stream in program.reads else None
    source = op.source if isinstance(op, Read) else None
    return source if isinstance(source, Source) else None


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

    @property
    def empty(self) -> bool:
        """Whether the batch read nothing at all, for example because there was only half a line."""
        return not (self.positions or self.rows or self.segments or self.outputs)

    def fills(self, limit: Limit) -> bool:
        """Return whether the batch read about as much as its limit allows: then there is usually more."""
        return sum(self.rows.values()) * 2 >= limit.rows or sum(self.read_bytes.values()) * 2 >= limit.bytes

    def add(self, results: list[KeyedResult]) -> None:
        """Add the results of one stage, in the order of their partitions."""
        for result in sorted(results, key=lambda result: result.partition):
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

    def raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

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
        """Return what the stages so far have changed in tables, for lookups in later stages."""
        looked_into = {node.op.table for node in program.nodes if isinstance(node.op, StatefulStep)} - {None}
        names = {
            op.step.name for i in looked_into if i is not None and isinstance(op := program.nodes[i].op, StatefulStep)
        }
        return {step: parts for step, parts in self.segments.items() if step in names}

    def report_row_sizes(self, program: Program) -> None:
        """Report to the sources how long their rows were, so that they plan better."""
        for stream, rows in self.rows.items():
            source = source_of(program, stream)
            if isinstance(source, LearningSource) and rows and self.read_bytes.get(stream):
                source.learned(rows, self.read_bytes[stream])


def _earliest_due(
    one: tuple[int | None, int | None], other: tuple[int | None, int | None]
) -> tuple[int | None, int | None]:
    event, wall = (min((t for t in pair if t is not None), default=None) for pair in zip(one, other, strict=True))
    return event, wall


def combine_results(base: Record, positions: Positions, results: list[KeyedResult]) -> Computed:
    """Combine the results of the first stage. Positions that did not move are left out: half a line makes no commit."""
    computed = Computed(base)
    computed.add(results)
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
            base = msgspec.json.decode(pointer.read_file(storage, position.base))
        found[stream] = {**base, **position.entries}
    return found


def positions_for_record(
    storage: Storage, context: BatchContext, last: Record, positions: Positions, computed: Computed
) -> dict[str, Position]:
    """Return the positions that a batch moved, as its record holds them. One that is too long is written to a file."""
    found: dict[str, Position] = {}
    for stream, moved in computed.positions.items():
        held = last.positions.get(stream, Position())
        entries = {**held.entries, **moved}
        if len(entries) <= LARGEST_INLINE_POSITION:
            found[stream] = Position(entries, held.base)
            continue
        whole = {**positions.get(stream, {}), **moved}
        path = context.paths.position(stream, context.attempt(new_id()))
        found[stream] = Position({}, pointer.write_file(storage, path, msgspec.json.encode(whole), len(whole)))
    return found


def spark_batches(storage: Storage, context: BatchContext, offers: list[Offer], last: Record) -> dict[str, SparkBatch]:
    """Store Spark's small checkpoint files with the commit: an empty machine starts from them."""
    found = {}
    for offer in offers:
        attempt = context.attempt(new_id())
        held = last.spark[offer.stream].files if offer.stream in last.spark else {}
        files = {}
        for name, file in offer.files.items():
            path = context.paths.spark(offer.stream, attempt, name)
            files[name] = held.get(name) or pointer.write_file(storage, path, file.read_bytes(), 0)
        found[offer.stream] = SparkBatch(offer.batch, files)
    return found
