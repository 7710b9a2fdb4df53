"""`idle_after`: what counts as quiet time. Time in which the app did not plan never does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_drivers import Lanes

import millpond as mp
from millpond.clock import ManualClock
from millpond.driver.commit import Driver
from millpond.driver.settings import Controls, DriverSettings
from millpond.runtimes.local import LocalRuntime
from millpond.storage import open_storage

LIMIT = mp.lowlevel.Limit(1000, 1 << 30)


class Process:
    """An app that runs over real sources, with a clock that its hook can move in the middle of a batch."""

    def __init__(self, app: mp.App, home: Path, *, every: float = 1.0, slow: str | None = None, ahead: bool = False):
        self.app, self.clock, self.slow = app, ManualClock(), slow
        self.storage = open_storage("memory://")
        runtime = LocalRuntime(self.storage, self.clock, ahead=ahead)
        self.driver = Driver.start(
            mp.lowlevel.program(app),
            runtime,
            self.storage,
            self.clock,
            DriverSettings(partitions=1, home=str(home), threaded=False, every=every),
            Controls(hook=self._hook),
        )

    def _hook(self, step: str, when: str) -> None:
        if f"{step} {when}" == self.slow:
            self.clock.advance(60)

    def run(self, limit: mp.lowlevel.Limit = LIMIT) -> None:
        while self.driver.batch(limit):
            pass


def app_over(source: Any, **how: Any) -> tuple[mp.App, list[Any]]:
    app, late = mp.App("quiet", partitions=1), []
    rows = app.stream("rows", source, timestamp="at", idle_after="10s", **how)
    rows.late.to("late", mp.sinks.function(lambda rows, delivery: late.extend(rows)))
    return app, late


def times(*at: int) -> list[dict[str, int]]:
    return [{"at": time} for time in at]


# "plan before" is also what a stopped process, a full delivery queue or a pause between two batches looks like.
@pytest.mark.parametrize("slow", ["plan before", "compute during", "compute after", "commit after", "deliver after"])
def test_rows_in_order_are_not_late_however_long_a_batch_takes(tmp_path: Path, slow: str) -> None:
    app, late = app_over(Lanes({"0": times(*range(100))}, width=10))
    Process(app, tmp_path, slow=slow).run()
    assert late == []


def test_rows_in_order_that_are_read_ahead_are_not_late(tmp_path: Path) -> None:
    """Without `stream.late`, which rules out reading ahead: the window tells."""
    app, late = mp.App("quiet", partitions=1), []
    source = Lanes({"0": times(*range(100))}, width=10)
    keyed = app.stream("rows", source, timestamp="at", idle_after="10s").key_by(k=lambda row: 0)
    windowed = keyed.window("w", mp.tumbling(5), grace=mp.NO_GRACE)
    windowed.aggregate(n=mp.count()).to("out", mp.sinks.memory())
    windowed.late.to("late", mp.sinks.function(lambda rows, delivery: late.extend(rows)))
    process = Process(app, tmp_path, slow="compute during", ahead=True)
    process.run(mp.lowlevel.Limit(20, 1 << 30))
    assert late == []


def test_a_retry_of_a_row_does_not_make_the_next_rows_late(tmp_path: Path) -> None:
    app, late, failures = mp.App("quiet", partitions=1), [], [1, 2, 3]

    def fragile(row: Any) -> Any:
        if row["at"] == 25 and failures:
            failures.pop()
            raise ValueError("not yet")
        return row

    policy = mp.retry(5, "20s")
    source = Lanes({"0": times(*range(100))}, width=10)
    rows = app.stream("rows", source, timestamp="at", idle_after="10s", on_error=policy).map(fragile)
    rows.late.to("late", mp.sinks.function(lambda rows, delivery: late.extend(rows)))
    Process(app, tmp_path).run()
    assert (failures, late) == ([], [])


def test_a_time_set_by_with_time_follows_the_same_rule(tmp_path: Path) -> None:
    app, late = mp.App("quiet", partitions=1), []
    source = Lanes({"0": times(*range(100))}, width=10)
    rows = app.stream("rows", source, timestamp="at", idle_after="10s").with_time(lambda row: row["at"] * 2)
    rows.late.to("late", mp.sinks.function(lambda rows, delivery: late.extend(rows)))
    process = Process(app, tmp_path)
    while process.driver.batch(LIMIT):
        process.clock.advance(20)
    assert late == []


def test_a_lane_is_quiet_only_between_plans_that_found_nothing_for_it(tmp_path: Path) -> None:
    """Lane b has nothing for three plans, one second apart; then the process stands still for an hour."""
    lanes = {"a": times(1), "b": times(1)}
    app, late = app_over(Lanes(lanes))
    process = Process(app, tmp_path)
    for second in range(3):
        process.run()
        lanes["a"] += times(10 + second)
        process.clock.advance(1)
    process.clock.advance(3600)
    lanes["a"] += times(20)
    process.run()
    lanes["b"] += times(2)
    process.run()
    assert late == []


def test_a_pause_between_two_empty_plans_adds_at_most_twice_the_pace(tmp_path: Path) -> None:
    app, late = app_over(lanes := Lanes({"0": times(100)}))
    process = Process(app, tmp_path, every=1.0)
    process.run()
    process.clock.advance(3600)
    process.run()  # nothing is there, before the pause and after it: 2 s of quiet
    lanes.lanes["0"].extend(times(101))
    process.run()
    assert late == []
    for _ in range(7):  # 2 s each: 14 s of quiet, of which the clock has 4 for the watermark to go on by
        process.run()
        process.clock.advance(2)
    lanes.lanes["0"].extend(times(102, 110))
    process.run()
    assert late == times(102)


def test_a_stream_that_is_looked_at_all_the_time_falls_quiet(tmp_path: Path) -> None:
    lanes = {"0": times(100)}
    app, late = app_over(Lanes(lanes))
    process = Process(app, tmp_path, every=1.0)
    for _ in range(20):
        process.run()
        process.clock.advance(1)
    lanes["0"] += times(105, 120)
    process.run()
    assert late == times(105)


def test_setting_the_clock_is_not_quiet_time(tmp_path: Path) -> None:
    lanes = {"0": times(100)}
    app, late = app_over(Lanes(lanes))
    process = Process(app, tmp_path, every=1e9)
    for seconds in (3600, -7200):
        process.run()
        process.clock.step(seconds)
        process.run()
    lanes["0"] += times(101)
    process.run()
    assert late == []


def test_a_driver_that_begins_knows_of_no_quiet_time(tmp_path: Path) -> None:
    app = mp.App("quiet", partitions=1)
    app.stream("rows", mp.sources.rows([]), timestamp="at", idle_after="10s").late.to("late", mp.sinks.memory())
    with mp.testing.TestDriver(app) as driver:
        driver.send("rows", times(100))
        driver.advance("9s")
        driver.clock.advance(3600)
        driver.restart()
        driver.send("rows", times(101))
        assert driver.output("late") == []


class Greedy(Lanes):
    """Plans the rows of its first lane first, as many as the limit allows, and says how many there are."""

    def plan(self, position: Any, limit: mp.lowlevel.Limit, now: float) -> list[mp.lowlevel.Split]:
        found, left = [], limit.rows
        for place, rows in self.lanes.items():
            start = position.get(place, 0)
            stop = min(len(rows), start + left)
            if stop > start:
                found.append(mp.lowlevel.Split(place, start, stop, partition=place, rows=stop - start))
                left -= stop - start
        return found


def test_a_lane_that_the_limit_leaves_no_room_for_is_not_quiet(tmp_path: Path) -> None:
    lanes = {"a": times(*range(1, 5)), "b": times(1)}
    app, late = app_over(Greedy(lanes))
    process = Process(app, tmp_path, every=100.0)
    process.run(mp.lowlevel.Limit(10, 1 << 30))
    lanes["a"] += times(*range(100, 150))
    lanes["b"] += times(2)
    while process.driver.batch(mp.lowlevel.Limit(10, 1 << 30)):
        process.clock.advance(60)
    assert late == []
