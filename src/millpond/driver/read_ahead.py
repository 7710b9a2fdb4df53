"""Reading ahead: while the keyed tasks of one batch run, the rows of the next are read already.

The reading tasks of a batch report how far they have read before its keyed tasks begin, and the next plan starts there.
It is used if the ledger then has exactly these positions, and dropped otherwise. What was read ahead counts, as
everything else, only when its batch is committed.

A driver reads ahead only while it is behind: a stream that keeps up has nothing to read ahead, and pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from millpond.driver.planning import BatchPlan, Positions, group_splits
from millpond.errors import Unavailable
from millpond.messages import BatchContext, ReadHeader, ReadProgress
from millpond.pipeline.graph import Program, Read
from millpond.runtimes.base import Reading, Runtime
from millpond.sources.base import Source
from millpond.steps.verbs.late_split import LateSplit


@dataclass
class ReadAhead:
    """Reads at most one batch ahead of the one that is computed."""

    program: Program
    runtime: Runtime
    plan: BatchPlan | None = None  # of the batch that is read ahead, with its reading
    _for: tuple[int, Positions] | None = None  # the batch, and the positions that it begins at
    is_behind: bool = False  # the last batch read as much as it could

    def __post_init__(self) -> None:
        ours = all(isinstance(n.op, Read) and isinstance(n.op.source, Source) for n in self.program.reads.values())
        judges = any(
            isinstance(node.op, LateSplit) for node in self.program.nodes
        )  # which need a watermark that is not known yet
        self._possible = ours and not judges

    def take(self, batch: int, positions: Positions) -> BatchPlan | None:
        """Return the plan of a batch that begins at these positions, if it was read ahead; None otherwise."""
        plan = self.plan
        if self._for != (batch, positions):
            self.drop()
            return None
        self.plan = self._for = None
        return plan

    def read(self, plan: BatchPlan, context: BatchContext) -> Reading | None:
        """Start the reading tasks of a batch in a job of their own, so that the next batch can be planned early."""
        if plan.reading is not None or not self.is_behind or not self._is_possible(plan, context):
            return plan.reading
        return self.runtime.read(self.program, context, group_splits(plan.planned, self.runtime.slots))

    def begin(
        self,
        plan: BatchPlan,
        context: BatchContext,
        reading: Reading,
        positions: Positions,
        next_plan: Callable[[Positions], BatchPlan],
    ) -> None:
        """Plan and start to read the batch after the one that is about to be computed."""
        self.drop()
        if not self._is_possible(plan, context):
            return
        progress = reading.progress()
        if progress is None:
            return
        after = advance_positions(positions, progress)
        try:
            following = next_plan(after)
        except Unavailable:  # the next batch waits for its source, this one need not
            return
        if not following.planned:
            return
        log = replace(context.log, number=context.log.number + 1)
        context = replace(context, log=log, batch=context.batch + 1, is_read_ahead=True)
        tasks = group_splits(following.planned, self.runtime.slots)
        following.reading = self.runtime.read(self.program, context, tasks, later=True)
        if following.reading is not None:
            self.plan, self._for = following, (context.batch, after)

    def drop(self) -> None:
        """Give up what was read ahead."""
        if self.plan is not None and self.plan.reading is not None:
            self.plan.reading.drop()
        self.plan = self._for = None

    def _is_possible(self, plan: BatchPlan, context: BatchContext) -> bool:
        """Return whether the reading tasks of the next batch have all that they need already."""
        if not self._possible or plan.only is not None or not plan.planned or plan.event_time.final:
            return False
        times = context.event_time.times
        return all(name in times and times[name].unit is not None for name, _ in self.program.clocks.values())


def progress_of(headers: Iterable[ReadHeader]) -> list[ReadProgress] | None:
    """Return how far reading tasks have read, from their headers; None if one failed."""
    found = list(headers)
    if any(header.output is not None and header.output.failure is not None for header in found):
        return None
    return [moved for header in found for moved in header.progress]


def advance_positions(positions: Positions, progress: list[ReadProgress]) -> Positions:
    """Return the positions after some reading is done."""
    after = {stream: dict(places) for stream, places in positions.items()}
    for item in progress:
        if item.place or item.position is not None:
            after.setdefault(item.stream, {})[item.place] = item.position
    return after
