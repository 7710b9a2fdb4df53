"""Planning, as pure functions: which task reads what, and whether what came back is one whole batch."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from millpond.errors import Incompatible
from millpond.log.record import Record
from millpond.messages import PlannedSplit, StageResults
from millpond.pipeline.graph import Node, Program, Read
from millpond.sources.base import SnapshotSource, Split
from millpond.steps.registry import layout_of

log = logging.getLogger("millpond")

SMALLEST_TASK_BYTES = 256 * 1024  # bytes that are not worth a second task


def group_splits(planned: Sequence[PlannedSplit], slots: int) -> list[list[PlannedSplit]]:
    """Splits in groups that follow each other, of about the same weight, one for each task."""
    total = sum(max(1, item.split.weight) for item in planned)
    tasks = min(len(planned), max(1, slots), max(1, -(-total // SMALLEST_TASK_BYTES)))
    groups: list[list[PlannedSplit]] = []
    done = 0
    for item in planned:
        weight = max(1, item.split.weight)
        # The middle of a split decides which group it falls in, so that none is left empty-handed.
        if not groups or (done + weight / 2) * tasks >= total * len(groups):
            groups.append([])
        groups[-1].append(item)
        done += weight
    return groups


def allot_rows(wanted: Mapping[str, int], rows: int) -> dict[str, int]:
    """How many rows of a batch each stream may have: what it wants, or an equal part of what is left of the batch.

    >>> allot_rows({"a": 10, "b": 500, "c": 900}, 1000)
    {'a': 10, 'b': 495, 'c': 495}
    """
    found, left = {}, rows
    for count, name in enumerate(sorted(wanted, key=lambda name: wanted[name])):
        found[name] = min(wanted[name], max(1, left // (len(wanted) - count)))
        left -= found[name]
    return found


def most_rows(splits: Sequence[Split], rows: int) -> int:
    """How many rows some splits may hold, as far as their source knows; no more than `rows`, which it was given."""
    return min(rows, sum(rows if split.rows is None else split.rows for split in splits))


def row_shares(splits: Sequence[Split], rows: int) -> list[int]:
    """How many rows may be read of each split: what it holds, or else its part, by weight, of all."""
    known = [split.rows for split in splits if split.rows is not None]
    if len(known) == len(splits) and sum(known) <= rows:
        return known
    weights = [max(1, split.weight) for split in splits]
    ends = [rows * done // sum(weights) for done in accumulate(weights)]
    return [end - begin for begin, end in pairwise([0, *ends])]


def with_snapshots(program: Program, now: float) -> Program:
    """The program with sources that hold what they hold now, and no more, where they can.

    A source of the user's without `as_of` stays as it is. A streaming DataFrame is bounded by Spark.
    """

    def bounded(node: Node) -> Node:
        if isinstance(node.op, Read) and isinstance(node.op.source, SnapshotSource):
            return replace(node, op=replace(node.op, source=node.op.source.as_of(now)))
        return node

    return replace(program, nodes=tuple(map(bounded, program.nodes)))


def disagreement(stage: StageResults, partitions: int) -> str | None:
    """Why these results are not those of one whole batch; nothing if they are.

    A reading task may run twice and differ; then some partitions may have seen the rows of one
    attempt and some those of the other, and the batch must not count.
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


def check_steps(program: Program, last: Record) -> None:
    """Whether the program's steps can go on with the state that is kept under their names."""
    for name, step in program.steps.items():
        info = last.steps.get(name) or last.steps.get(step.state.renamed_from or "")
        if info is not None and layout_of(info.kind) != layout_of(step.kind):
            raise Incompatible(
                f"app {program.app!r}: step {name!r} is a {step.kind} in the program, and its state was kept by a "
                f"{info.kind}. Give the new step another name, or clear the app's state; nothing was changed."
            )
        if info is not None:
            step.check_detail(program.app, info.detail)
    renamed = {step.state.renamed_from for step in program.steps.values()}
    for name in sorted(set(last.steps) - set(program.steps) - renamed):
        log.warning("%s: step %r is no longer in the program; its state is kept", program.app, name)
