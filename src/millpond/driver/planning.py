"""Planning: what a batch reads of each source, and which task reads what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

from millpond.log.record import Record
from millpond.messages import BatchContext, EventTime, PlannedSplit
from millpond.pipeline.graph import Node, Program, Read
from millpond.runtimes.base import Offer, Reading, Runtime
from millpond.shares import allot_rows
from millpond.sources.base import LearningSource, Limit, SnapshotSource, Source, Split

SMALLEST_TASK_BYTES = 256 * 1024  # less is not worth a second task

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
    coming: dict[str, set[str]] = field(default_factory=dict)  # stream → the source partitions that it reads from
    unsure: frozenset[str] = frozenset()  # streams that may have rows which are not in the plan
    context: BatchContext | None = None  # that the tasks of the last attempt were given


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
    parts = wanted if sum(wanted.values()) <= limit.rows else allot_rows(wanted, limit.rows)
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
    coming: dict[str, set[str]] = {}
    for item in planned:
        coming.setdefault(item.stream, set()).add(item.split.partition)
    for offer in offers:
        coming.setdefault(offer.stream, set()).add(NO_PARTITION)
    return BatchPlan(now, planned, offers, known, only=only, coming=coming, unsure=unsure)


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


def report_row_sizes(program: Program, rows: Mapping[str, int], read_bytes: Mapping[str, int]) -> None:
    """Report to the sources how many rows and bytes a batch has read of them, so that they plan better."""
    for stream, count in rows.items():
        source = source_of(program, stream)
        if isinstance(source, LearningSource) and count and read_bytes.get(stream):
            source.learned(count, read_bytes[stream])


def group_splits(planned: Sequence[PlannedSplit], slots: int) -> list[list[PlannedSplit]]:
    """Group consecutive splits for the tasks, by about the same weight. Splits of one task are joined if they may."""
    total = sum(max(1, item.split.weight) for item in planned)
    tasks = min(len(planned), max(1, slots), max(1, -(-total // SMALLEST_TASK_BYTES)))
    groups: list[list[PlannedSplit]] = []
    done = 0
    for item in planned:
        weight = max(1, item.split.weight)
        # The middle of a split decides its group, so that no group is left empty.
        if not groups or (done + weight / 2) * tasks >= total * len(groups):
            groups.append([])
        groups[-1].append(item)
        done += weight
    return [_join_splits(group) for group in groups]


def _join_splits(planned: Sequence[PlannedSplit]) -> list[PlannedSplit]:
    """Return the splits of a task, in fewer pieces: what is read at once is decoded, keyed and packed at once."""
    found: list[PlannedSplit] = []
    for item in planned:
        if found and _may_join(found[-1], item):
            before, split = found[-1], item.split
            rows = None if before.split.rows is None or split.rows is None else before.split.rows + split.rows
            share = None if before.share is None or item.share is None else before.share + item.share
            joined = replace(before.split, stop=split.stop, weight=before.split.weight + split.weight, rows=rows)
            found[-1] = replace(before, split=joined, share=share, is_last=item.is_last)
        else:
            found.append(item)
    return found


def _may_join(before: PlannedSplit, item: PlannedSplit) -> bool:
    one, other = before.split, item.split
    is_next = (one.place, one.partition, one.stop) == (other.place, other.partition, other.start)
    return other.may_join and is_next and before.stream == item.stream and one.detail == other.detail


def most_rows(splits: Sequence[Split], rows: int) -> int:
    """Return how many rows some splits may hold, as far as their source knows; at most `rows`, its limit."""
    return min(rows, sum(rows if split.rows is None else split.rows for split in splits))


def row_shares(splits: Sequence[Split], rows: int) -> list[int]:
    """Return how many rows may be read of each split: all of its own, or else its part of `rows` by weight."""
    known = [split.rows for split in splits if split.rows is not None]
    if len(known) == len(splits) and sum(known) <= rows:
        return known
    weights = [max(1, split.weight) for split in splits]
    ends = [rows * done // sum(weights) for done in accumulate(weights)]
    return [end - begin for begin, end in pairwise([0, *ends])]


def with_snapshots(program: Program, now: float) -> Program:
    """Return the program with snapshots of its sources, which have only what has arrived by now.

    A source without `as_of` is left as it is. A streaming DataFrame is bounded by Spark.
    """

    def take_snapshot(node: Node) -> Node:
        if isinstance(node.op, Read) and isinstance(node.op.source, SnapshotSource):
            return replace(node, op=replace(node.op, source=node.op.source.as_of(now)))
        return node

    return replace(program, nodes=tuple(map(take_snapshot, program.nodes)))
