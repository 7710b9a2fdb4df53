"""Planning, as pure functions: which task reads what, and whether the results are those of one whole batch."""

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

SMALLEST_TASK_BYTES = 256 * 1024  # less is not worth a second task


def group_splits(planned: Sequence[PlannedSplit], slots: int) -> list[list[PlannedSplit]]:
    """Group consecutive splits for the tasks, by about the same weight."""
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
    return groups


def allot_rows(wanted: Mapping[str, int], rows: int) -> dict[str, int]:
    """Return how many rows of a batch each stream may have: what it wants, or an equal part of what is left.

    >>> allot_rows({"a": 10, "b": 500, "c": 900}, 1000)
    {'a': 10, 'b': 495, 'c': 495}
    """
    found, left = {}, rows
    for count, name in enumerate(sorted(wanted, key=lambda name: wanted[name])):
        found[name] = min(wanted[name], max(1, left // (len(wanted) - count)))
        left -= found[name]
    return found


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


def check_steps(program: Program, last: Record) -> None:
    """Raise `Incompatible` if a step cannot continue with the state that is stored under its name."""
    for name, step in program.steps.items():
        info = last.steps.get(name) or last.steps.get(step.state.renamed_from or "")
        if info is not None and layout_of(info.kind) != layout_of(step.kind):
            raise Incompatible(
                f"app {program.app!r}: step {name!r} is of kind {step.kind} in the program, and its state is of kind "
                f"{info.kind}. Give the new step another name, or clear the app's state; nothing was changed."
            )
        if info is not None:
            step.check_detail(program.app, info.detail)
    renamed = {step.state.renamed_from for step in program.steps.values()}
    for name in sorted(set(last.steps) - set(program.steps) - renamed):
        log.warning("%s: step %r is no longer in the program; its state is kept", program.app, name)
