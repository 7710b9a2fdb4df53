"""The commit protocol: one batch in six steps, each a named crash point.

    1. plan         read on from where the newest record says; finish the deliveries that are open
    2. compute      every partition catches up, runs its steps, writes segments, returns pointers
    3. commit       record N: state, outputs and positions become true together, or none of them
    4. deliver      each sink takes the outputs of N from the segments, under an id that is N's for ever
    5. acknowledge  the next record says what was delivered; the sources are told
    6. tidy         what only this batch needed is removed

Nothing counts before step 3, and nothing can take it back after. A driver that dies is followed by
one that claims the next number, delivers what is open, and plans on from the newest record.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Literal

from millpond.clock import Clock, new_id
from millpond.errors import Fenced, Incompatible, Unavailable
from millpond.flow import Limit
from millpond.log.ledger import Ledger, check_writable
from millpond.log.record import FORMAT, Record, StepInfo
from millpond.pipeline.graph import Program
from millpond.run.batch import Computed, Plan, kept_positions, merged, plan_streams, positions_of, spark_batches
from millpond.run.context import Context
from millpond.run.delivery import Courier
from millpond.run.plan import check_steps, disagreement, grouped
from millpond.run.runtime import JobLost, Runtime
from millpond.run.tasks import TooMuch
from millpond.storage import Storage

StepName = Literal["plan", "compute", "commit", "deliver", "acknowledge", "tidy"]
When = Literal["before", "during", "after"]
Hook = Callable[[StepName, When], None]
STEPS: tuple[StepName, ...] = ("plan", "compute", "commit", "deliver", "acknowledge", "tidy")
MOST_ATTEMPTS = 8  # at one batch, before the driver gives up


class Driver:
    """Owns an app from its claim to its release, and runs its batches."""

    def __init__(
        self,
        program: Program,
        runtime: Runtime,
        storage: Storage,
        clock: Clock,
        *,
        partitions: int | None,
        home: str | None,
        hook: Hook | None = None,
        threaded: bool = True,
        stop: threading.Event | None = None,
    ) -> None:
        self.program, self.runtime, self.storage, self.clock = program, runtime, storage, clock
        self.id, self.home = new_id(), home
        self.ledger = Ledger(storage, program.app, clock)
        self._hook: Hook = hook or (lambda step, when: None)
        check_writable(storage, program.app)
        self.last = self._claim(partitions)
        self.positions = positions_of(storage, self.last)
        self._recent: list[Record] = []
        self.courier = Courier(
            program,
            runtime,
            storage,
            clock,
            dict(self.last.deliveries),
            lambda parcel: self._hook("deliver", "during"),
            threaded=threaded,
            stop=stop,
        )
        try:
            self._finish_open_deliveries()
        except BaseException:
            self.close()
            raise

    # --- the six steps ---

    def batch(self, limit: Limit) -> bool:
        """Run one batch; whether there was anything to do."""
        plan = self._plan(limit)
        if plan is None:
            return False
        computed = self._compute(plan, limit)
        if computed.empty:
            return False
        record = self._commit(plan, computed)
        self._deliver(record)
        self._acknowledge(plan)
        self._tidy(plan)
        return True

    def _plan(self, limit: Limit) -> Plan | None:
        self._hook("plan", "before")
        plan = plan_streams(self.program, self.positions, limit, self.clock.now(), self.runtime, self.last)
        self._hook("plan", "during")
        for offer in plan.known:  # committed before the last driver died: only Spark does not know it yet
            self.runtime.accept(offer)
        self._hook("plan", "after")
        return plan if plan.planned or plan.offers else None

    def _compute(self, plan: Plan, limit: Limit) -> Computed:
        self._hook("compute", "before")
        for attempt in range(1, MOST_ATTEMPTS + 1):
            try:
                computed = self._attempt(plan)
                if computed is not None:
                    self._hook("compute", "after")
                    return computed
            except JobLost as error:
                if attempt == MOST_ATTEMPTS:
                    raise Unavailable(f"app {self.program.app!r}: a batch failed {attempt} times: {error}") from error
            except TooMuch as error:
                limit = Limit(max(1, limit.rows // 8), max(1, limit.bytes // 8))
                again = plan_streams(self.program, self.positions, limit, plan.now, self.runtime, self.last, plan)
                if attempt == MOST_ATTEMPTS or again.planned == plan.planned:
                    raise Unavailable(str(error)) from error
                plan.planned = again.planned
            self._still_ours()
            self.clock.sleep(min(0.1 * 2**attempt, 10.0))
        raise Unavailable(f"app {self.program.app!r}: no attempt of {MOST_ATTEMPTS} at a batch came out whole")

    def _attempt(self, plan: Plan) -> Computed | None:
        tasks = grouped(plan.planned, self.runtime.slots)
        context = self._context(plan)
        found = self.runtime.first_stage(self.program, context, tasks, plan.offers)
        if disagreement(found, context.partitions):
            return None
        self._hook("compute", "during")
        computed = merged(self.last, self.positions, found.results)
        for stage in range(2, self.program.last_stage + 1):
            computed.raise_failure()
            carried = computed.carried_to(self.program, stage, context.partitions)
            found = self.runtime.next_stage(self.program, context, stage, carried)
            if disagreement(found, context.partitions):
                return None
            computed.add(found.results)
        computed.raise_failure()
        return computed

    def _commit(self, plan: Plan, computed: Computed) -> Record:
        self._hook("commit", "before")
        spark = {**self.last.spark, **spark_batches(self.storage, self._context(plan), plan.offers, self.last)}
        entries = kept_positions(self.storage, self._context(plan), self.last, self.positions, computed)
        record = self._follow(
            "commit",
            time=plan.now,
            positions={**self.last.positions, **entries},
            spark=spark,
            segments=computed.segments,
            outputs=computed.outputs,
            rows=computed.rows,
            skipped=computed.skipped,
        )
        self._append(record)
        self._hook("commit", "during")
        for stream, moved in computed.positions.items():
            self.positions.setdefault(stream, {}).update(moved)
        computed.teach(self.program)
        self._hook("commit", "after")
        return self.last

    def _deliver(self, record: Record) -> None:
        self._hook("deliver", "before")
        self.courier.send(record)
        self._hook("deliver", "after")

    def _acknowledge(self, plan: Plan) -> None:
        self._hook("acknowledge", "before")
        for offer in plan.offers:
            self.runtime.accept(offer)
            self._hook("acknowledge", "during")
        self._hook("acknowledge", "after")

    def _tidy(self, plan: Plan) -> None:
        self._hook("tidy", "before")
        if self.program.last_stage > 1:
            folder = self.ledger.paths.exchanges(self.last.number, self.id)
            for item in self.storage.list(folder):
                self.storage.delete([item.path])
                self._hook("tidy", "during")
        self._hook("tidy", "after")

    # --- owning the app ---

    def _claim(self, partitions: int | None) -> Record:
        while True:
            last = self.ledger.newest()
            if last is None:
                record = self._first(partitions or self.runtime.slots)
            else:
                if partitions is not None and partitions != last.partitions:
                    raise Incompatible(
                        f"app {self.program.app!r} in {self.storage.url}: its state lies in {last.partitions} "
                        f"partitions, and the program says partitions={partitions}. Leave partitions out, or say "
                        f"{last.partitions}."
                    )
                check_steps(self.program, last)
                record = last.followed_by(
                    "claim",
                    driver=self.id,
                    attempt=new_id(),
                    time=self.clock.now(),
                    deliveries=self._deliveries(last),
                )
            try:
                return self.ledger.append(record, last)
            except Fenced:
                continue  # another claim came first; the newest one owns the app, so ours follows it

    def _first(self, partitions: int) -> Record:
        return Record(
            format=FORMAT,
            kind="claim",
            app=self.program.app,
            number=0,
            incarnation=new_id(),
            born=0,
            driver=self.id,
            attempt=new_id(),
            time=self.clock.now(),
            previous="",
            partitions=partitions,
            deliveries=dict.fromkeys(self.program.sinks, 0),
        )

    def _deliveries(self, last: Record) -> dict[str, int]:
        """Where each sink stands; one that is new begins here, one that is gone must have nothing open."""
        for sink, upto in last.deliveries.items():
            if sink not in self.program.sinks:
                records = self.ledger.between(upto, last.number)
                open_batches = [r.number for r in records if sink in r.outputs]
                if open_batches:
                    raise Incompatible(
                        f"app {self.program.app!r}: sink {sink!r} is gone from the program, and outputs of batches "
                        f"{open_batches[0]} to {open_batches[-1]} were not delivered to it. Put the sink back and "
                        f"run once more, or drop them on purpose with app.drop_outputs({sink!r})."
                    )
        return {sink: last.deliveries.get(sink, last.number) for sink in self.program.sinks}

    def _finish_open_deliveries(self) -> None:
        oldest = min(self.courier.delivered.values(), default=self.last.number)
        for record in self.ledger.between(max(oldest, self.last.born), self.last.number):
            self.courier.send(record)
        self.courier.wait()

    def release(self) -> None:
        """Say what was delivered, and that nobody owns the app now. Called after the last batch, perhaps twice."""
        try:
            self.courier.wait()
        finally:
            if self.last.kind != "release":
                self._append(self._follow("release", time=self.clock.now()))

    def close(self) -> None:
        """Stop delivering; nothing of this driver goes on. May be called twice."""
        self.courier.close()

    def _follow(self, kind: Any, *, time: float, **own: Any) -> Record:
        delivered = self.courier.delivered
        steps = {name: StepInfo(step.kind, 1, step.detail) for name, step in self.program.steps.items()}
        return self.last.followed_by(
            kind,
            driver=self.id,
            attempt=new_id(),
            time=time,
            deliveries={sink: delivered[sink] for sink in self.program.sinks},
            steps={**self.last.steps, **steps},
            **own,
        )

    def _append(self, record: Record) -> None:
        self.last = self.ledger.append(record, self.last)
        self._recent = [*self._recent, self.last][-4:]

    def _still_ours(self) -> None:
        newest = self.ledger.newest(near=self.last.number)
        if newest is None or newest.checksum != self.last.checksum:
            raise Fenced(
                f"app {self.program.app!r} in {self.storage.url}: another driver owns it now. This one has stopped; "
                "nothing is lost."
            )

    def _context(self, plan: Plan) -> Context:
        recent = {record.number: _by_partition(record) for record in self._recent if record.number <= self.last.number}
        return Context(
            app=self.program.app,
            incarnation=self.last.incarnation,
            partitions=self.last.partitions,
            batch=self.last.number + 1,
            base=self.last.number,
            born=self.last.born,
            driver=self.id,
            now=plan.now,
            state_url=self.storage.url,
            home=self.home,
            recent=recent,
        )


def _by_partition(record: Record) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for step, partitions in record.segments.items():
        for partition, pointers in partitions.items():
            found.setdefault(partition, {})[step] = pointers
    return found


__all__ = ["STEPS", "Driver", "Hook", "StepName", "When"]
