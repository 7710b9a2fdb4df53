"""Reading ahead: while one batch meets its state, the rows of the next are read already.

What the next batch reads follows from how far this one has read, which its reading tasks tell before its keyed
tasks have begun. So the next plan is no guess: it is used if the ledger then stands where it was made for, and thrown
away if not. Nothing of what was read ahead counts before its batch is committed, like everything else.

A driver reads ahead only while it is behind: a stream that keeps up has nothing to read ahead, and pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from millpond.driver.batch import BatchPlan, Positions
from millpond.driver.planning import group_splits
from millpond.messages import BatchContext, ReadHeader, ReadProgress
from millpond.pipeline.graph import Program, Read
from millpond.runtimes.base import Reading, Runtime
from millpond.sources.base import Source
from millpond.steps.verbs.late_split import LateSplit


@dataclass
class ReadAhead:
    """At most one batch is read ahead of the one that is at work."""

    program: Program
    runtime: Runtime
    _plan: BatchPlan | None = None  # with its reading
    _for: tuple[int, Positions] | None = None  # the batch, and where every stream stands as it begins
    _behind: bool = False

    def __post_init__(self) -> None:
        ours = all(isinstance(n.op, Read) and isinstance(n.op.source, Source) for n in self.program.reads.values())
        judges = any(
            isinstance(node.op, LateSplit) for node in self.program.nodes
        )  # of rows, by a watermark not yet known
        self._possible = ours and not judges

    def note(self, behind: bool) -> None:
        """Whether the last batch had as much to read as it could take."""
        self._behind = behind

    def take(self, batch: int, positions: Positions) -> BatchPlan | None:
        """The plan of a batch that begins where these positions are, if it was read ahead."""
        plan = self._plan
        if self._for != (batch, positions):
            self.drop()
            return None
        self._plan = self._for = None
        return plan

    def read(self, plan: BatchPlan, context: BatchContext) -> Reading | None:
        """The rows of a batch that is about to begin, read on their own, so that the one after it can be planned."""
        if plan.reading is not None or not self._behind or not self._is_possible(plan, context):
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
        """Read the batch after the one that is about to meet its state."""
        self.drop()
        if not self._is_possible(plan, context):
            return
        progress = reading.progress()
        if progress is None:
            return
        after = advance_positions(positions, progress)
        following = next_plan(after)
        if not following.planned:
            return
        log = replace(context.log, number=context.log.number + 1)
        context = replace(context, log=log, batch=context.batch + 1, arrival=context.arrival + 1, is_read_ahead=True)
        tasks = group_splits(following.planned, self.runtime.slots)
        following.reading = self.runtime.read(self.program, context, tasks, later=True)
        if following.reading is not None:
            self._plan, self._for = following, (context.batch, after)

    def drop(self) -> None:
        """Give up what was read."""
        if self._plan is not None and self._plan.reading is not None:
            self._plan.reading.drop()
        self._plan = self._for = None

    def _is_possible(self, plan: BatchPlan, context: BatchContext) -> bool:
        """Whether the tasks that read the next batch know already what they need to know."""
        if not self._possible or plan.only is not None or not plan.planned or plan.event_time.final:
            return False
        times = context.event_time.times
        return all(name in times and times[name].unit is not None for name, _ in self.program.clocks.values())


def progress_of(headers: Iterable[ReadHeader]) -> list[ReadProgress] | None:
    """How far reading tasks have come, by what they say; nothing if one failed."""
    told = list(headers)
    if any(header.output is not None and header.output.failure is not None for header in told):
        return None
    return [moved for header in told for moved in header.progress]


def advance_positions(positions: Positions, progress: list[ReadProgress]) -> Positions:
    """Where every stream stands once some reading is done."""
    after = {stream: dict(places) for stream, places in positions.items()}
    for item in progress:
        if item.place or item.position is not None:
            after.setdefault(item.stream, {})[item.place] = item.position
    return after
