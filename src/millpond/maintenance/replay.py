"""Replay: run the batches of an app again, with the same rows, the same clock and the same event time.

What a batch read, and when, decides which of its rows are late and when its timers fire. As long as records are kept,
the ledger has all of this: positions before and after, the time of the batch, what it began with. Of batches whose
records are gone it has only how far they have read together.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from millpond.driver.commit import Driver
from millpond.driver.planning import BatchPlan, Positions, source_of
from millpond.driver.results import Computed, positions_of
from millpond.errors import InvalidUse
from millpond.log.ledger import Ledger
from millpond.log.record import Began, Record, StreamTime
from millpond.messages import EventTime, PlannedSplit
from millpond.pipeline.phases import phases
from millpond.sources.base import BoundedSource, Limit

NO_LIMIT = Limit(1 << 60, 1 << 60)


def find_history(ledger: Ledger, newest: Record) -> tuple[Record | None, list[int]]:
    """Return a base and the numbers of the commits after it that have led to a record, oldest first.

    The base is the oldest record that the ledger has, if earlier batches have read rows: of those only their positions
    are known. A base of None means that all commits are known. Batches that a rollback has set aside are left out.
    """
    first = max(newest.born, ledger.floor())
    record = newest
    numbers: list[int] = []
    while record.number > newest.born:
        number = record.number - 1 if record.back is None else record.back
        before = ledger.read(number) if number >= first else None
        if before is None or _was_restored(record, before):
            return (record if record.positions or record.spark else None), numbers[::-1]
        if record.kind == "commit":
            numbers.append(record.number)
        record = before
    return None, numbers[::-1]


def _was_restored(record: Record, before: Record) -> bool:
    """Return whether a record has taken over the positions of a savepoint."""
    is_other = (record.positions, record.spark) != (before.positions, before.spark)
    return record.kind == "rewrite" and record.back is None and is_other


class Replay(Driver):
    """A driver that runs the batches of another app again, on its own ledger in the same storage."""

    def run_again(self, record: Record, before: Record) -> None:
        """Run the batch of a commit again with its own bounds; `before` is the record before it."""
        self.positions, end = positions_of(self.storage, before), positions_of(self.storage, record)
        plan = self._plan_between(end, NO_LIMIT, record)
        for stream in self.program.reads:
            held, was = record.spark.get(stream), before.spark.get(stream)
            if held is not None and (was is None or was.batch != held.batch):
                follows = held.batch == (0 if was is None else was.batch + 1)
                plan.offers.append(self.runtime.offer_again(self.storage, stream, held, whole=not follows))
        plan.event_time = self._event_time_of(record.time, record.began or Began(), before.watermarks)
        own = self.last
        self.owner.last = msgspec.structs.replace(
            own, arrivals=record.arrival - own.number - 1
        )  # so that the batch gets the same arrival number
        computed = self._compute(plan)
        self._check(record, end, computed)
        self._finish(plan, computed)

    def catch_up(self, base: Record, limit: Limit) -> None:
        """Read all that was read up to a record, in batches of the given size. Tables are read first."""
        end, frames = positions_of(self.storage, base), dict(base.spark)
        for stream in end:
            if not isinstance(source_of(self.program, stream), BoundedSource | None):
                raise InvalidUse(
                    f"stream {stream!r}: the records of its first batches are no longer kept, and its source has no "
                    "method plan_to(position, end, limit, now), so that it cannot be read to where the app has read "
                    "it. Add the method."
                )
        for only in [*phases(self.program), frozenset(self.program.reads)]:
            while True:
                plan = self._plan_between({name: end[name] for name in end if name in only}, limit, base)
                for stream in only & frames.keys():
                    held = frames.pop(stream)
                    plan.offers.append(self.runtime.offer_again(self.storage, stream, held, whole=True))
                if not plan.planned and not plan.offers:
                    break
                plan.event_time = self._event_time_of(base.time, Began(), {})
                self._finish(plan, self._compute(plan))

    def _plan_between(self, end: Positions, limit: Limit, record: Record) -> BatchPlan:
        planned: list[PlannedSplit] = []
        for stream in self.program.reads:
            source, at, to = source_of(self.program, stream), self.positions.get(stream, {}), end.get(stream, {})
            if source is None or at == to or not to:
                continue
            if isinstance(source, BoundedSource):
                splits = source.plan_to(at, to, limit, record.time)
            else:
                splits = source.plan(at, Limit(max(1, record.rows.get(stream, 0)), limit.bytes), record.time)
            planned += [PlannedSplit(len(planned) + i, stream, split) for i, split in enumerate(splits)]
        return BatchPlan(record.time, planned, [])

    def _event_time_of(self, now: float, began: Began, ledger: Mapping[str, StreamTime]) -> EventTime:
        """Return the event time as a batch begins.

        The times in the ledger are used where the same rows have led to the same newest times. A program that takes
        its times from another field has its own watermarks.
        """
        times = dict(self.last.watermarks)
        for recorded in (ledger, began.times):
            for name, time in recorded.items():
                own = times.get(name)
                if own is not None and (own.unit, own.newest) == (time.unit, time.newest):
                    times[name] = time
        idle = {name: frozenset(partitions) for name, partitions in began.idle.items()}
        bound = round(now * 1_000_000) if self.settings.bounded else None
        return EventTime(times, idle, frozenset(began.asleep), final=began.final, bound=bound)

    def _check(self, record: Record, end: Positions, computed: Computed) -> None:
        """Raise `InvalidUse` if a batch has not read what it read the first time."""
        for stream in self.program.reads:
            source, to = source_of(self.program, stream), end.get(stream, {})
            came = {**self.positions.get(stream, {}), **computed.positions.get(stream, {})}
            is_there = (
                source.plan_to(came, to, NO_LIMIT, record.time) == []
                if isinstance(source, BoundedSource)
                else came == to
            )
            if source is not None and to and not is_there:
                raise InvalidUse(
                    f"stream {stream!r}: batch {record.number} of the app read it to {to!r}, and the rebuild came to "
                    f"{came!r}. A source that has a method plan_to(position, end, limit, now) is read to where the app "
                    "has read it."
                )
            read, expected = computed.rows.get(stream, 0), record.rows.get(stream, 0)
            if read != expected:
                raise InvalidUse(
                    f"stream {stream!r}: the input no longer reaches back far enough, or has changed: batch "
                    f"{record.number} of the app read {expected} rows of it, and now there are {read}. Put the input "
                    "back as it was; or, if the program is to read other rows, clear its state and run it again."
                )

    def _finish(self, plan: BatchPlan, computed: Computed) -> None:
        record = self._commit(plan, computed)
        self._deliver(record)
        self._acknowledge(plan)
        self._tidy()

    def _plan_less(self, plan: BatchPlan) -> bool:
        return False  # a batch is run again with its own bounds, or not at all
