"""Planning, as pure functions: which task reads what, and whether what came back is one whole batch."""

from __future__ import annotations

from collections.abc import Sequence

from millpond.run.context import Planned, Stage

SMALL = 256 * 1024  # bytes that are not worth a second task


def grouped(planned: Sequence[Planned], slots: int) -> list[list[Planned]]:
    """Splits in groups that follow each other, of about the same weight, one for each task."""
    total = sum(max(1, item.split.weight) for item in planned)
    tasks = min(len(planned), max(1, slots), max(1, -(-total // SMALL)))
    groups: list[list[Planned]] = []
    done = 0
    for item in planned:
        weight = max(1, item.split.weight)
        # The middle of a split decides which group it falls in, so that none is left empty-handed.
        if not groups or (done + weight / 2) * tasks >= total * len(groups):
            groups.append([])
        groups[-1].append(item)
        done += weight
    return groups


def disagreement(stage: Stage, partitions: int) -> str | None:
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
