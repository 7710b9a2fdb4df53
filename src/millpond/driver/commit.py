"""The commit protocol: one batch in six steps, each a named crash point.

    1. plan         ask the sources what follows the positions of the newest record
    2. compute      every partition catches up, runs its steps, writes segments, returns pointers
    3. commit       record N: state, outputs and positions count together, or none of them
    4. deliver      each sink takes the outputs of N from the segments, under an id that belongs to N for ever
    5. acknowledge  streaming DataFrames may go on; the next record says what was delivered
    6. tidy         what only this batch needed is removed

Nothing counts before step 3, and everything counts after it. The driver that follows one that has died claims the next
number, delivers what is open, and goes on from the newest record.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Self, TypeVar

from millpond.backoff import Backoff
from millpond.clock import Clock
from millpond.driver.auto_partitions import LOOK_SECONDS, CoreWatch
from millpond.driver.delivery import DeliveryWorker
from millpond.driver.drain import begin_drain
from millpond.driver.live_rescale import LiveRescale, RescalePlan
from millpond.driver.owner import Owner
from millpond.driver.patience import Patience, StoppedWaiting
from millpond.driver.placement import Placement
from millpond.driver.planning import (
    BatchPlan,
    BatchRequest,
    Positions,
    group_splits,
    plan_streams,
    report_row_sizes,
    source_of,
)
from millpond.driver.read_ahead import ReadAhead
from millpond.driver.recovery_watch import RecoveryWatch
from millpond.driver.requests import NothingToDo, Refused, RequestDesk, RequestedWork
from millpond.driver.results import Computed, combine_results, positions_of, record_fields
from millpond.driver.rewrite_progress import Each, with_progress
from millpond.driver.schema_change import check_readable, check_streams, plan_adaptation
from millpond.driver.settings import Controls, DriverSettings, Hook, StepName
from millpond.driver.table_bootstrap import TableBootstrap
from millpond.errors import InvalidUse, Unavailable
from millpond.log.compaction import CompactionSettings, Compactor
from millpond.log.compaction_job import merge_partition
from millpond.log.jobs import JobLost, ProgressCallback
from millpond.log.ledger import Ledger
from millpond.log.record import Record
from millpond.log.requests import Request
from millpond.log.rewrite import Rewriter
from millpond.messages import EventTime, Misplaced, StageResults, TooManyRows, TooMuch, TooSoon
from millpond.pipeline.graph import Program
from millpond.pipeline.phases import phases
from millpond.runtimes.base import Runtime
from millpond.sources.base import AcknowledgedSource, CheckedSource, LearningSource, Limit, WaitingSource
from millpond.storage import Storage
from millpond.watermarks import Quiet, SourceAnswers, is_due

T = TypeVar("T")

log = logging.getLogger("millpond")

STEPS: tuple[StepName, ...] = ("plan", "compute", "commit", "deliver", "acknowledge", "tidy")
ACTIONS: tuple[StepName, ...] = ("compact", "rewrite", "request")  # of a driver, beside its batches
MOST_BATCH_ATTEMPTS = 8  # before the driver gives up
MOST_PARTITIONS = 10_000
BATCH_RETRIES = Backoff(first=0.2, longest=10.0)


class Driver:
    """Runs an app's batches, from the claim with which it begins to its release.

    `Driver.start` makes one that owns its app; `close` stops its threads.
    """

    def __init__(
        self, program: Program, runtime: Runtime, owner: Owner, settings: DriverSettings, controls: Controls
    ) -> None:
        storage, clock = owner.storage, owner.clock
        self.program, self.runtime, self.storage, self.clock = program, runtime, storage, clock
        self.owner, self.settings = owner, settings
        self._at: Hook = controls.hook or (lambda step, when: None)
        self.positions: Positions = {}
        self._most = self._limit = Limit(1 << 60, 1 << 60)  # what a batch may read, and what the last one was allowed
        self._unlimited: set[str] = set()  # streams whose sources plan more rows than they are asked for
        self._quiet = Quiet(2 * settings.every)
        self._bootstrap = TableBootstrap(program, clock.monotonic()) if phases(program) else None
        self._ahead = ReadAhead(program, runtime)
        self._cores = CoreWatch() if settings.partitions == "auto" else None
        self._look_at_cores = 0.0
        self._acknowledged: dict[str, AcknowledgedSource] = {}
        self._checked: dict[str, CheckedSource] = {}
        for stream in program.reads:
            source: object = source_of(program, stream)
            if isinstance(source, AcknowledgedSource):
                self._acknowledged[stream] = source
            if isinstance(source, CheckedSource):
                self._checked[stream] = source
        self.recovery = RecoveryWatch(storage, program.app, owner.id, clock)
        self.placement = Placement(runtime, owner, settings, program)
        self._patience = Patience(program.app, controls.stop or threading.Event(), owner.check)
        self.compactor = Compactor(
            owner.id,
            owner.ledger,
            lambda jobs: runtime.each(merge_partition, jobs),
            CompactionSettings(settings.keep, settings.compact_every, settings.threaded),
            lambda when: self._at("compact", when),
        )
        self.delivery = DeliveryWorker(
            program,
            runtime,
            owner,
            lambda: self._at("deliver", "during"),
            threaded=settings.threaded,
            stop=controls.stop or threading.Event(),
        )
        self.requests = RequestDesk(
            owner,
            {"rescale": self._begin_rescale, "drain": partial(begin_drain, self.placement)},
            lambda when: self._at("request", when),
            threaded=settings.threaded,
        )

    @classmethod
    def start(
        cls,
        program: Program,
        runtime: Runtime,
        storage: Storage,
        clock: Clock,
        settings: DriverSettings | None = None,
        controls: Controls | None = None,
    ) -> Self:
        """Claim the app and return a driver that is ready for its first batch.

        State that the program needs in another shape is rewritten, and the outputs that the driver before has left
        undelivered are delivered. If any of this fails, the threads are stopped and the error is raised.
        """
        settings, controls = settings or DriverSettings(), controls or Controls()
        owner = Owner.claim(program, Ledger(storage, program.app, clock), settings, runtime.slots, controls.claims)
        driver = cls(program, runtime, owner, settings, controls)
        try:
            with owner.detect_fencing():
                driver._rewrite_state(controls.progress)
                owner.find_backlogs()
                driver.positions = positions_of(storage, driver.last)
                check_streams(program, driver.positions)
                driver.placement.begin()
                driver._deliver_open()
                driver.compactor.begin(driver.last)
                driver._acknowledge_sources(driver.positions)
                driver.requests.start()
        except BaseException:
            driver.close()
            raise
        return driver

    def _deliver_open(self) -> None:
        """Start to deliver: first what a target has lost, then what no driver has delivered yet."""
        self.delivery.start()
        for sink, record in self.owner.targets.lost:
            self.delivery.deliver_to(sink, record)
        self.owner.targets.register_restored()
        for record in self.owner.open_deliveries():
            self.delivery.send(record)
        self.delivery.wait()

    def _rewrite_state(self, progress: ProgressCallback | None) -> None:
        """Move, rename or migrate the state, if the program has changed so that it needs that."""
        what = plan_adaptation(self.program, self.last, self.settings.partitions)
        why = f"{self.program.app}: {what.why}"
        rewriter = self._rewriter(with_progress(self.runtime.each, self.runtime.slots, why, progress))
        try:
            check_readable(self.program, self.last, what.names, replace(rewriter, each=self.runtime.each))
            if what:
                log.warning("%s", why)
                self.owner.rewrite(what, rewriter)
        except JobLost as error:
            doing = what.why or "reading the state"
            raise Unavailable(f"app {self.program.app!r}: {doing} failed: {error}") from error

    def _rewriter(self, each: Each) -> Rewriter:
        return Rewriter(self.storage, self.owner.ledger, each, self.owner.id, lambda when: self._at("rewrite", when))

    # --- requests ---

    def _begin_rescale(self, request: Request) -> RequestedWork:
        """Begin to move the state of the running app to the number of partitions that a request asks for."""
        partitions = request.arguments.get("partitions")
        if type(partitions) is not int or not 1 <= partitions <= MOST_PARTITIONS:
            raise Refused(f"expected a whole number of partitions from 1 to {MOST_PARTITIONS}, got {partitions!r}")
        if self.settings.partitions == "auto":
            raise Refused(
                'the program says partitions="auto", so the number follows the cores of the session. Write a number '
                "there, and start the app again"
            )
        if partitions == self.last.partitions:
            return NothingToDo(f"it has {partitions} partitions already")
        why = f"rescale to {partitions} partitions"
        return self._rescale(RescalePlan(partitions, why, lambda: self.owner.naming(request)))

    def _follow_cores(self, watch: CoreWatch) -> None:
        """Rescale if the session has had more or fewer cores for a while; looks every few seconds."""
        now = self.clock.monotonic()
        if now < self._look_at_cores or self.requests.is_busy:
            return
        self._look_at_cores = now + LOOK_SECONDS
        cores = self.runtime.slots
        self._cores, wanted = watch.observe(cores, self.last.partitions, now)
        if wanted is not None:
            wanted = min(wanted, MOST_PARTITIONS)
            why = f'rescale to {wanted} partitions, as partitions="auto" says: the session has {cores} cores'
            self.requests.begin(self._rescale(RescalePlan(wanted, why)))

    def _rescale(self, plan: RescalePlan) -> LiveRescale:
        runtime, app = self.runtime, self.program.app
        log.warning("%s: %s, while batches go on", app, plan.why)
        return LiveRescale(
            self.owner,
            self.compactor,
            self._rewriter(with_progress(runtime.each, runtime.slots // 2, f"{app}: {plan.why}", None)),
            self._rewriter(runtime.each),
            plan,
            self._settle,
        )

    def _settle(self) -> dict[str, int]:
        """Give up what is made for the present number of partitions, and return what has been delivered."""
        self._ahead.drop()  # its rows are divided among the partitions already
        self.delivery.send_attached()  # it has parcels for partitions that may be gone with the next batch
        return dict(self.delivery.delivered)

    # --- batches ---

    @property
    def last(self) -> Record:
        """The newest record, written by this driver."""
        return self.owner.last

    def batch(self, limit: Limit, *, final: bool = False) -> bool:
        """Run one batch, and return whether there was anything to do.

        `final` states that the input has ended: open windows close and timers fire.
        """
        with self.owner.detect_fencing():
            try:
                if not self.owner.backlogs:  # state that the first batch publishes, and that must not move before
                    if self._cores is not None:
                        self._follow_cores(self._cores)
                    if self.requests.current is not None or self.requests.found.is_set() or self.requests.waiting:
                        self.requests.advance()
                return self._batch(limit, final)
            except StoppedWaiting:
                return False

    def _batch(self, limit: Limit, final: bool) -> bool:
        self._most, self._limit = limit, self._next_limit(limit)
        plan = self._plan(self._limit, final)
        if plan is None:
            self.delivery.send_attached()
            return False
        computed = self._compute(plan)
        self._note_read(sum(computed.rows.values()), sum(computed.read_bytes.values()))
        is_empty = not (computed.positions or computed.rows or computed.segments or computed.outputs)
        # If it is empty, there was only half a line. An offer is accepted even without rows, and what the readers of
        # changes have been given is recorded even if it was nothing.
        if is_empty and not plan.offers and not self.owner.backlogs:
            return self._is_phase_over(plan) and self._batch(limit, final)
        record = self._commit(plan, computed)
        self._deliver(record)
        self._acknowledge(plan)
        self._tidy()
        return True

    def _note_read(self, rows: int, read_bytes: int) -> None:
        """Take note of how much a batch read. If it is about as much as its limit allows, there is usually more."""
        if self._bootstrap is not None:
            self._bootstrap.note_read(rows, self._limit)
        self._ahead.is_behind = rows * 2 >= self._limit.rows or read_bytes * 2 >= self._limit.bytes

    def is_waiting(self) -> bool:
        """Return whether the input of a source ends in a row that a writer seems to be about to complete."""
        for name in self.program.reads:
            source = source_of(self.program, name)
            if isinstance(source, WaitingSource) and source.is_waiting(self.positions.get(name, {}), self.clock.now()):
                return True
        return False

    def _next_limit(self, most: Limit) -> Limit:
        """Return the limit of the next batch: after one that was too large, it grows back by a factor of two."""
        return Limit(min(most.rows, self._limit.rows * 2), min(most.bytes, self._limit.bytes * 2))

    def _plan(self, limit: Limit, final: bool) -> BatchPlan | None:
        self._at("plan", "before")
        plan = self._plan_once(limit)
        while not plan.planned and not plan.offers and self._is_phase_over(plan):
            plan = self._plan_once(limit)
        plan.event_time = self._event_time(plan, final)
        self._at("plan", "during")
        for offer in plan.known:  # committed by the last driver before it died: only Spark does not know it yet
            self.runtime.accept(offer)
        self._at("plan", "after")
        if plan.planned or plan.offers or self.owner.backlogs:
            return plan
        if is_due(self.program, plan.event_time, self.last.due, plan.now):
            return plan
        return None

    def _is_phase_over(self, plan: BatchPlan) -> bool:
        """Return whether the streams of tables are read to their end, so that other streams are read now."""
        return self._bootstrap is not None and self._bootstrap.finish_phase(plan.only, self.runtime, plan.asked)

    def _plan_once(self, limit: Limit) -> BatchPlan:
        now = self.clock.now()
        only = None if self._bootstrap is None else self._bootstrap.streams(self.clock.monotonic())
        if self._ahead.plan is not None:
            read = self._ahead.take(self.last.number + 1, self.positions)
            if read is not None:
                return replace(read, now=now)
        return self._ask_patiently(BatchRequest(self.positions, limit, self._most.rows, now, only))

    def _event_time(self, plan: BatchPlan, final: bool) -> EventTime:
        """Return the event time that the batch begins with: that of the record, or of the clock for quiet streams."""
        answers = SourceAnswers(plan.coming, plan.asked, plan.only, plan.unsure)
        event_time = self._quiet.event_time(self.program, self.last.watermarks, answers, final=final)
        bound = round(plan.now * 1_000_000) if self.settings.bounded else None
        return replace(event_time, reached=self.last.reached, bound=bound)

    def _compute(self, plan: BatchPlan) -> Computed:
        self._at("compute", "before")
        attempt = 0
        while attempt < MOST_BATCH_ATTEMPTS:
            attempt += 1
            try:
                self.recovery.batch = (self.last.number + 1, self.clock.monotonic())
                computed = self._attempt(plan)
                if computed is not None:
                    self.recovery.batch = None
                    if self._patience.attempts:
                        self._patience.end()
                    self._at("compute", "after")
                    return computed
            except JobLost as error:
                if attempt == MOST_BATCH_ATTEMPTS:
                    raise Unavailable(f"app {self.program.app!r}: a batch failed {attempt} times: {error}") from error
            except TooSoon:
                continue
            except Misplaced:
                attempt -= 1
                continue
            except Unavailable as error:
                self._patience.wait(error)
                attempt = 0
                continue
            except TooManyRows as error:
                self._plan_fewer_rows(plan, error, attempt)
                continue
            except TooMuch as error:
                if not self._plan_less(plan):
                    raise InvalidUse(str(error)) from error
            self.owner.check()
            self.clock.sleep(BATCH_RETRIES.pause(attempt))
        raise Unavailable(f"app {self.program.app!r}: none of {MOST_BATCH_ATTEMPTS} attempts at a batch was complete")

    def _plan_less(self, plan: BatchPlan) -> bool:
        """Plan the batch again with a smaller limit, and return whether that gave another plan."""
        while self._limit != Limit(1, 1):
            self._limit = Limit(max(1, self._limit.rows // 8), max(1, self._limit.bytes // 8))
            if self._plan_again(plan):
                return True
        return False

    def _plan_again(self, plan: BatchPlan) -> bool:
        """Ask the sources for the batch again, and return whether their plan is another one now."""
        before = [item.split for item in plan.planned]
        request = BatchRequest(self.positions, self._limit, self._most.rows, plan.now, plan.only, plan)
        again = self._ask_patiently(request)
        plan.planned = again.planned
        return [item.split for item in again.planned] != before

    def _plan_fewer_rows(self, plan: BatchPlan, error: TooManyRows, attempt: int) -> None:
        """Plan a batch again because a task met more rows than its share.

        At first the source learns how long the rows were, so that it plans better; then it is asked for less. From then
        on, a source that still plans as much as before is read without a limit on rows.
        """
        source = source_of(self.program, error.stream)
        if attempt == 1 and isinstance(source, LearningSource) and error.bytes:
            source.learned(error.rows, error.bytes)
            if self._plan_again(plan):
                return
        if self._plan_less(plan):
            return
        log.warning(
            "%s: stream %r has more rows in a batch than max_rows=%d: its source ignores limit.rows",
            self.program.app,
            error.stream,
            self._most.rows,
        )
        self._limit = self._most
        self._unlimited.add(error.stream)
        self._plan_again(plan)

    def _ask_patiently(self, request: BatchRequest) -> BatchPlan:
        """Ask the sources what to read next, and wait for one that is unavailable."""
        return self._persist(partial(self._ask_sources, request))

    def _persist(self, ask: Callable[[], T]) -> T:
        """Return what a function returns, and call it again for as long as a source is unavailable."""
        while True:
            try:
                found = ask()
            except Unavailable as error:
                self._patience.wait(error)
            else:
                if self._patience.attempts:
                    self._patience.end()
                return found

    def _ask_sources(self, request: BatchRequest) -> BatchPlan:
        """Ask the sources what to read next after some positions."""
        asked = self.clock.monotonic()
        plan = plan_streams(self.program, self.runtime, self.last, request)
        plan.planned = [replace(item, share=None) if item.stream in self._unlimited else item for item in plan.planned]
        return replace(plan, asked=asked)

    def _attempt(self, plan: BatchPlan) -> Computed | None:
        """Run the tasks of a batch once; None if their results are not those of one whole batch."""
        context = self.owner.context(plan.now, self.settings.home, plan.event_time)
        if self.placement.is_on:
            context = replace(context, copies=self.placement.settle())
        plan.context = context
        reading = self._ahead.read(plan, context) if self._ahead.is_behind else plan.reading
        plan.reading = None
        if reading is not None:
            self._ahead.begin(plan, context, reading, self.positions, self._plan_next)
        tasks = group_splits(plan.planned, self.runtime.slots)
        parcels = () if self.delivery.attached is None else self.delivery.begin_attached()
        try:
            stage = self.runtime.first_stage(
                self.program, replace(context, parcels=parcels) if parcels else context, tasks, plan.offers, reading
            )
        except JobLost:
            self.delivery.send_attached()
            raise
        if parcels:
            self.delivery.finish_attached(parcels, stage.results)
        if self.placement.is_on:
            self._check_places(stage)
        computed = combine_results(self.last, self.positions, stage)
        if computed is None:
            return None
        self._at("compute", "during")
        context = replace(context, event_time=replace(context.event_time, ends=computed.times))
        for number in range(2, self.program.last_stage + 1):
            carried = computed.carried_to(self.program, number, context.log.partitions)
            context = replace(context, table_changes=computed.tables_made(self.program))
            stage = self.runtime.next_stage(self.program, context, number, carried)
            if self.placement.is_on:
                self._check_places(stage)
            if not computed.add(stage):
                return None
        self._check_read(computed.positions)
        return computed

    def _check_places(self, stage: StageResults) -> None:
        """Raise `Misplaced` if a task ran on a host without a copy of its state while another host has one."""
        if self.placement.note_results(stage.results):
            raise Misplaced

    def _check_read(self, positions: Positions) -> None:
        """Ask the sources whether what a batch has read is what was planned. The batch waits for an answer."""
        for stream, source in self._checked.items():
            if stream in positions:
                self._persist(partial(source.check_read, positions[stream]))

    def _plan_next(self, positions: Positions) -> BatchPlan:
        limit = self._next_limit(self._most)
        return self._ask_sources(BatchRequest(positions, limit, self._most.rows, self.clock.now()))

    def _commit(self, plan: BatchPlan, computed: Computed) -> Record:
        self._at("commit", "before")
        record = self.owner.write(
            "commit",
            self.delivery.delivered,
            **record_fields(self.storage, self.program, plan, self.positions, computed),
            manifest=self.compactor.ready or self.last.manifest,
            floor=max(self.compactor.floor, self.last.floor),
            **(self.placement.record_fields() if self.placement.is_on else {"hosts": {}, "drained": []}),
        )
        self._at("commit", "during")
        for stream, places in computed.positions.items():
            self.positions.setdefault(stream, {}).update(places)
        report_row_sizes(self.program, computed.rows, computed.read_bytes)
        self._at("commit", "after")
        return record

    def _deliver(self, record: Record) -> None:
        self._at("deliver", "before")
        if self._ahead.plan is None or not self.delivery.attach(record):  # a batch that is read ahead follows at once
            self.delivery.send(record)  # it may continue while the next batch is computed: N is committed
        self._at("deliver", "after")

    def _acknowledge(self, plan: BatchPlan) -> None:
        self._at("acknowledge", "before")
        for offer in plan.offers:
            self.runtime.accept(offer)
            self._at("acknowledge", "during")
        self._acknowledge_sources({item.stream for item in plan.planned})
        self._at("acknowledge", "after")

    def _acknowledge_sources(self, streams: Iterable[str]) -> None:
        """Tell the sources of some streams, for others that ask them, how far the app has read."""
        for stream in streams:
            source = self._acknowledged.get(stream)
            if source is not None:
                with self._logged_failure(stream):
                    source.acknowledge(self.program.app, self.positions.get(stream, {}))

    @contextmanager
    def _logged_failure(self, stream: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            log.warning("%s: stream %r: its position was not acknowledged: %s", self.program.app, stream, error)

    def _tidy(self) -> None:
        self._at("tidy", "before")
        if self.program.last_stage > 1:
            for item in self.storage.list(self.owner.ledger.paths.exchanges(self.last.number, self.owner.id)):
                self.storage.delete([item.path])
                self._at("tidy", "during")
        self.compactor.note_commit(self.last)
        if self.placement.is_on:
            self.placement.note_commit()
        self._at("tidy", "after")

    def release(self) -> None:
        """Write what was delivered, and that no driver owns the app. Called after the last batch, perhaps twice."""
        try:
            self.delivery.wait()
        finally:
            if self.last.kind != "release":
                self.compactor.wait()
                manifest = self.compactor.ready or self.last.manifest
                floor = max(self.compactor.floor, self.last.floor)
                drained = self.placement.record_fields()["drained"] if self.placement.is_on else []
                self.owner.write("release", self.delivery.delivered, manifest=manifest, floor=floor, drained=drained)
                for stream, source in self._acknowledged.items():
                    with self._logged_failure(stream):
                        source.finish_acknowledging()

    def close(self) -> None:
        """Stop the threads and wait for them. May be called twice."""
        self.placement.close()
        self._ahead.drop()
        self.requests.close()
        self.delivery.close()
        self.compactor.wait()
