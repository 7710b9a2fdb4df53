"""Outputs that the tasks of the next batch deliver: the same deliveries in the same order, without own jobs."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_drivers import Lanes

import millpond as mp
from millpond.clock import ManualClock, SystemClock
from millpond.driver import delivery as delivery_module
from millpond.driver.commit import STEPS, Driver
from millpond.driver.delivery import DeliveryWorker
from millpond.driver.loop import Settings, run_driver
from millpond.driver.read_ahead import ReadAhead
from millpond.driver.settings import Controls, DriverSettings
from millpond.errors import Fenced, StepFailed, Unavailable
from millpond.log.jobs import JobLost
from millpond.maintenance.rollback import roll_back
from millpond.maintenance.stopped_app import StoppedApp
from millpond.runtimes.local import LocalRuntime
from millpond.storage import Storage, open_storage
from millpond.testing import Crashed

HALF = mp.lowlevel.Limit(rows=4, bytes=1 << 60)  # two rows fill a batch: there is more, as a rule


class Target:
    """A sink that is called in workers. It keeps the rows of each delivery, and raises the next of `errors`."""

    where = "workers"

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.calls: list[tuple[str, int, int]] = []  # sink, batch, partition
        self.held: dict[str, list[Any]] = {}
        self.errors: list[BaseException | None] = []  # of the next calls
        self.times: list[float] = []
        self.clock = clock

    def __deepcopy__(self, memo: Any) -> Target:
        return self

    def deliver(self, rows: list[Any], delivery: mp.lowlevel.Delivery) -> None:
        self.calls.append((delivery.sink, delivery.batch, delivery.partition))
        if self.clock is not None:
            self.times.append(self.clock.now())
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        assert self.held.setdefault(delivery.id, rows) == rows

    def numbers(self, sink: str = "after") -> list[int]:
        return sorted(row["n"] for name, rows in self.held.items() if f"/{sink}/" in name for row in rows)


class Jobs(LocalRuntime):
    """Counts the jobs that only deliver. `lost` of its first stages fail: after their tasks have run, or before."""

    lost = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.delivery_jobs = 0

    def deliver(self, program, state_url, parcels):
        self.delivery_jobs += 1
        super().deliver(program, state_url, parcels)

    def first_stage(self, program, context, tasks, offers, reading=None):
        is_lost = bool(context.parcels) and self.lost > 0
        if is_lost:
            self.lost -= 1
            if self.lost % 2 == 0:
                raise JobLost("an executor is gone")
        stage = super().first_stage(program, context, tasks, offers, reading)
        if is_lost:
            raise JobLost("an executor is gone")
        return stage


def app_over(numbers: list[int], **sinks: Any) -> mp.App:
    app = mp.App("attached", partitions=2)
    rows = app.stream("rows", Lanes({"0": numbers}, width=2)).map(lambda n: {"k": n % 3, "n": n})
    sums = rows.key_by("k").stateful_map(
        "sum", lambda k, row, s: ({"n": row["n"], "sum": s + row["n"]}, s + row["n"]), initial=0
    )
    for name, sink in sinks.items():
        sums.to(name, sink)
    return app


def driver_on(
    app: mp.App,
    storage: Storage,
    home: Path | str,
    hook: Any = None,
    runtime: type[Jobs] = Jobs,
    clock: ManualClock | None = None,
    threaded: bool = False,
) -> Driver:
    clock = clock or ManualClock()
    made = runtime(storage, clock, ahead=True)
    settings = DriverSettings(partitions=app.partitions, home=str(home), threaded=threaded)
    return Driver.start(mp.lowlevel.program(app), made, storage, clock, settings, Controls(hook=hook))


def delivery_jobs(driver: Driver) -> int:
    assert isinstance(driver.runtime, Jobs)
    return driver.runtime.delivery_jobs


def run_to_end(driver: Driver) -> None:
    while driver.batch(HALF):
        pass
    driver.release()


def in_order(calls: list[tuple[str, int, int]]) -> bool:
    by_sink: dict[str, list[int]] = {}
    for sink, batch, _ in calls:
        by_sink.setdefault(sink, []).append(batch)
    return all(batches == sorted(batches) for batches in by_sink.values())


def test_a_backlog_needs_delivery_jobs_only_where_no_batch_follows(tmp_path):
    target, numbers = Target(), list(range(20))
    driver = driver_on(app_over(numbers, after=target, other=target), open_storage("memory://"), tmp_path)
    run_to_end(driver)
    assert target.numbers("after") == target.numbers("other") == numbers
    assert in_order(target.calls)
    assert len(target.calls) == len(set(target.calls))
    assert delivery_jobs(driver) <= 3 * 2  # the first batch, the last ones, to two sinks
    assert driver.last.deliveries == {"after": driver.last.number - 1, "other": driver.last.number - 1}


def test_outputs_of_a_batch_are_delivered_before_the_next_one_is_committed_and_not_before_their_own_is(tmp_path):
    target = Target()
    events: list[Any] = []

    def hook(step: str, when: str) -> None:
        if (step, when) == ("commit", "during"):
            events.append((driver.last.number, {batch for _, batch, _ in target.calls}))

    driver = driver_on(app_over(list(range(20)), after=target), open_storage("memory://"), tmp_path, hook)
    run_to_end(driver)
    for number, delivered in events:
        assert number not in delivered
        assert delivered == {batch for batch, _ in events if batch < number}


def test_a_sink_on_the_driver_is_called_there(tmp_path):
    target, on_driver, numbers = Target(), Target(), list(range(20))
    on_driver.where = "driver"
    storage = open_storage("memory://")
    driver = driver_on(app_over(numbers, after=target, on_driver=on_driver), storage, tmp_path)
    run_to_end(driver)
    assert target.numbers() == on_driver.numbers("on_driver") == numbers
    assert delivery_jobs(driver) == len({batch for _, batch, _ in target.calls})


@pytest.mark.parametrize("when", ["before", "during", "after"])
@pytest.mark.parametrize("at", STEPS)
@pytest.mark.parametrize("times", [4, 7])
def test_a_crash_anywhere_loses_and_doubles_nothing(tmp_path, at, when, times):
    target, numbers, left = Target(), list(range(20)), [times]
    storage, app = open_storage("memory://"), app_over(numbers, after=target, other=target)

    def hook(step: str, moment: str) -> None:
        if (step, moment) == (at, when):
            left[0] -= 1
            if left[0] == 0:
                raise Crashed(step, moment)

    with suppress(Crashed):
        run_to_end(driver_on(app, storage, tmp_path, hook))
    run_to_end(driver_on(app, storage, tmp_path))
    assert target.numbers("after") == target.numbers("other") == numbers
    assert in_order(target.calls)


def test_a_sink_that_is_unavailable_is_asked_again_when_it_said_and_later_batches_wait(tmp_path):
    clock = ManualClock()
    target, numbers = Target(clock), list(range(20))
    driver = driver_on(app_over(numbers, after=target), open_storage("memory://"), tmp_path, clock=clock)
    for _ in range(4):
        driver.batch(HALF)
    before = len(target.calls)
    target.errors = [Unavailable("down", retry_after=40.0), Unavailable("down", retry_after=30.0)]
    run_to_end(driver)
    pauses = [b - a for a, b in zip(target.times[before:], target.times[before + 1 :], strict=False) if b > a]
    assert pauses[:2] == [40.0, 30.0]
    assert target.numbers() == numbers
    assert in_order(target.calls)


def test_a_sink_that_fails_ends_the_run_and_has_its_outputs_after_the_next_start(tmp_path):
    target, numbers = Target(), list(range(20))
    storage, app = open_storage("memory://"), app_over(numbers, after=target)
    driver = driver_on(app, storage, tmp_path)
    for _ in range(4):
        driver.batch(HALF)
    target.errors = [ValueError("refused")]
    with pytest.raises(StepFailed, match="refused"):
        run_to_end(driver)
    assert driver.last.deliveries["after"] < driver.last.number
    run_to_end(driver_on(app, storage, tmp_path))
    assert target.numbers() == numbers
    assert in_order(target.calls)


def test_parcels_of_a_lost_job_are_delivered_by_a_job_of_their_own(tmp_path):
    class Losing(Jobs):
        lost = 2

    target, numbers = Target(), list(range(20))
    driver = driver_on(app_over(numbers, after=target), open_storage("memory://"), tmp_path, runtime=Losing)
    run_to_end(driver)
    assert target.numbers() == numbers
    assert in_order(target.calls)


def test_a_driver_that_does_not_own_the_app_any_more_delivers_nothing(tmp_path):
    target, numbers = Target(), list(range(20))
    storage, app = open_storage("memory://"), app_over(numbers, after=target)
    asleep = driver_on(app, storage, tmp_path / "one")
    for _ in range(4):
        asleep.batch(HALF)
    assert asleep.delivery.begin_attached()  # it would deliver now
    other = driver_on(app, storage, tmp_path / "two")
    before = list(target.calls)
    with pytest.raises(Fenced):
        asleep.batch(HALF)
    assert target.calls == before
    run_to_end(other)
    assert target.numbers() == numbers


def test_a_rollback_while_one_sink_is_called_keeps_the_others_from_being_called(tmp_path):
    """The task looks at the ledger before each delivery, not only the driver before the tasks."""
    storage = open_storage("memory://")
    target, numbers = Target(), list(range(20))
    app = app_over(numbers, after=target, other=target)
    driver = driver_on(app, storage, tmp_path)
    for _ in range(4):
        driver.batch(HALF)
    attached = driver.last.number
    deliver = target.deliver

    def roll_back_and_deliver(rows: list[Any], delivery: mp.lowlevel.Delivery) -> None:
        if delivery.batch == attached:
            roll_back(StoppedApp(storage, "attached", ManualClock(), force=True), attached - 1)
        deliver(rows, delivery)

    target.deliver = roll_back_and_deliver  # type: ignore[method-assign]
    with pytest.raises(Fenced):
        driver.batch(HALF)
    assert [batch for _, batch, _ in target.calls].count(attached) == 1


def test_a_record_after_one_that_failed_in_the_thread_is_not_attached(tmp_path, monkeypatch):
    """The thread may fail between two looks of `attach` at what it has done."""
    target, numbers, may_fail = Target(), list(range(20)), threading.Event()
    deliver, find_parcels = target.deliver, DeliveryWorker._parcels

    def wait_and_fail(rows: list[Any], delivery: mp.lowlevel.Delivery) -> None:
        if not may_fail.is_set():
            may_fail.wait(10)
            raise ValueError("refused")
        deliver(rows, delivery)

    def let_the_thread_fail(self: DeliveryWorker, record: Any) -> Any:
        may_fail.set()
        self._queue.join()
        return find_parcels(self, record)

    target.deliver = wait_and_fail  # type: ignore[method-assign]
    monkeypatch.setattr(DeliveryWorker, "_parcels", let_the_thread_fail)
    storage, app = open_storage("memory://"), app_over(numbers, after=target)
    driver = driver_on(app, storage, tmp_path, threaded=True)
    try:
        with pytest.raises(StepFailed, match="refused"):
            run_to_end(driver)
    finally:
        driver.close()
    monkeypatch.undo()
    assert driver.delivery.delivered["after"] == 0  # the claim
    run_to_end(driver_on(app, storage, tmp_path))
    assert target.numbers() == numbers
    assert in_order(target.calls)


@pytest.mark.parametrize("slow", ["delivery", "announcement"])
def test_a_slow_sink_does_not_delay_batches(tmp_path, monkeypatch, slow):
    name = {"delivery": "LONGEST_ATTACHED", "announcement": "LONGEST_ANNOUNCEMENT"}[slow]
    monkeypatch.setattr(delivery_module, name, -1.0)
    monkeypatch.setattr(delivery_module, "SENT_AFTER_SLOW", 4)
    target, numbers = Target(), list(range(40))
    if slow == "delivery":
        deliver = target.deliver

        def wait_and_deliver(rows: list[Any], delivery: mp.lowlevel.Delivery) -> None:
            threading.Event().wait(0.05)
            deliver(rows, delivery)

        target.deliver = wait_and_deliver  # type: ignore[method-assign]
    driver = driver_on(app_over(numbers, after=target), open_storage("memory://"), tmp_path)
    run_to_end(driver)
    assert target.numbers() == numbers
    assert delivery_jobs(driver) >= 12  # of twenty batches


def test_a_driver_that_waits_for_its_next_batch_has_delivered_the_last_one(tmp_path, monkeypatch):
    """Batches that are full by their bytes are read ahead, but do not follow each other at once."""
    monkeypatch.setattr(ReadAhead, "is_behind", property(lambda self: True, lambda self, value: None))
    target, waits = Target(), list[tuple[int, int]]()

    class Stop(threading.Event):
        """Notes the newest record and the newest one that is delivered, whenever the driver waits."""

        def wait(self, timeout: float | None = None) -> bool:
            waits.append((driver.last.number, max(batch for _, batch, _ in target.calls)))
            if len({last for last, _ in waits}) == 6:
                self.set()
            return super().wait(0.01)

    driver = driver_on(app_over(list(range(40)), after=target), open_storage("memory://"), tmp_path)
    run_driver(lambda: driver, Settings(every=0.1, max_rows=100), Stop(), SystemClock())
    assert all(last == delivered for last, delivered in waits)
    assert len(waits) >= 6


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_history_of_crashes_and_failing_sinks_delivers_each_output_once(data):
    numbers = data.draw(st.lists(st.integers(0, 99), unique=True, max_size=24))
    target = Target()
    storage, app = open_storage("memory://"), app_over(numbers, after=target, other=target)
    points = [(step, when) for step in STEPS for when in ("before", "during", "after")]
    failures = st.lists(st.sampled_from([None, None, None, Unavailable("down"), ValueError("refused")]), max_size=12)
    with TemporaryDirectory() as home:
        for crash in [*data.draw(st.lists(st.tuples(st.sampled_from(points), st.integers(1, 6)), max_size=3)), None]:
            target.errors = [] if crash is None else data.draw(failures)
            seen: Counter[Any] = Counter()

            def hook(step: str, when: str, crash: Any = crash, seen: Counter[Any] = seen) -> None:
                seen[step, when] += 1
                if crash is not None and (step, when) == crash[0] and seen[step, when] == crash[1]:
                    raise Crashed(step, when)

            try:
                run_to_end(driver_on(app, storage, home, hook))
            except (Crashed, StepFailed):
                continue
    assert target.numbers("after") == target.numbers("other") == sorted(numbers)
    assert in_order(target.calls)
