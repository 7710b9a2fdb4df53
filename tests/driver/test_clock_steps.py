"""The machine's clock may be set forward or back: nothing waits for it, and nothing is removed by it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import millpond as mp
from millpond.clock import ManualClock
from millpond.driver.commit import Driver
from millpond.driver.loop import Settings, run_driver
from millpond.driver.settings import Controls, DriverSettings
from millpond.log.ledger import Ledger
from millpond.maintenance.compact import compact_log
from millpond.maintenance.stopped_app import StoppedApp
from millpond.runtimes.local import LocalRuntime
from millpond.storage import open_storage

DAY = 86_400.0
TEN_YEARS = 3_650 * DAY


class Waits(threading.Event):
    """A stop event that notes how long it is waited for, lets time pass, and is set after a few waits."""

    def __init__(self, clock: ManualClock, most: int) -> None:
        super().__init__()
        self.clock, self.most, self.seconds = clock, most, []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout)
        self.clock.advance(min(timeout or 0.0, 10.0))
        if len(self.seconds) >= self.most:
            self.set()
        return self.is_set()


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_the_pause_between_two_batches_does_not_follow_the_time_of_day(tmp_path: Path, step: float) -> None:
    app, clock = mp.App("clocked", partitions=1), ManualClock()
    app.stream("rows", mp.sources.rows([1, 2, 3])).to("out", mp.sinks.memory())
    storage = open_storage("memory://")

    def hook(at: str, when: str) -> None:
        if (at, when) == ("plan", "before"):
            clock.step(step)  # somebody sets the clock; no time passes

    def make() -> Driver:
        runtime = LocalRuntime(storage, clock)
        return Driver.start(
            mp.lowlevel.program(app),
            runtime,
            storage,
            clock,
            DriverSettings(partitions=1, home=str(tmp_path), threaded=False),
            Controls(hook=hook),
        )

    stop = Waits(clock, most=3)
    run_driver(make, Settings(every=1.0), stop, clock)
    assert stop.seconds == [1.0, 1.0, 1.0]


def run_batches(app: mp.App, folder: Path, clock: ManualClock, times: list[float]) -> None:
    """One batch at each of these times of day, one after the other."""
    rows: list[Any] = []
    stream = app.stream("rows", mp.sources.rows(rows)).key_by(k=lambda n: 0)
    stream.aggregate("sum", n=mp.count()).to("out", mp.sinks.memory())
    storage = open_storage(str(folder / "state"))
    driver = Driver.start(
        mp.lowlevel.program(app),
        LocalRuntime(storage, clock),
        storage,
        clock,
        DriverSettings(
            partitions=1, home=str(folder / "local"), threaded=False, keep=app.keep, compact_every=app.compact_every
        ),
    )
    for time in times:
        clock.step(time - clock.now())
        rows.append(1)
        assert driver.batch(mp.lowlevel.Limit(10, 1 << 20))
    driver.release()


def floor_of(folder: Path, clock: ManualClock) -> int:
    return Ledger(open_storage(str(folder / "state")), "kept", clock).floor()


@pytest.mark.parametrize("wrong", [[TEN_YEARS] * 6, [TEN_YEARS, 0.0] * 3, [-TEN_YEARS] * 6, [TEN_YEARS]])
def test_a_clock_that_was_wrong_for_a_few_batches_removes_nothing(tmp_path: Path, wrong: list[float]) -> None:
    clock = ManualClock()
    start = clock.now()
    app = mp.App("kept", str(tmp_path / "state"), local_dir=str(tmp_path / "local"), keep="7d", compact_every=3)
    times = [start + n for n in range(40)]
    times += [start + 40 + n + by for n, by in enumerate(wrong)]
    times += [start + 50 + n for n in range(20)]
    run_batches(app, tmp_path, clock, times)
    assert floor_of(tmp_path, clock) == 0


def test_a_jump_ahead_removes_nothing_that_is_younger_than_the_duration(tmp_path: Path) -> None:
    clock = ManualClock()
    start = clock.now()
    app = mp.App("kept", str(tmp_path / "state"), local_dir=str(tmp_path / "local"), keep="7d", compact_every=3)
    times = [start + n * DAY / 6 for n in range(41)]
    run_batches(app, tmp_path, clock, times + [times[-1] + TEN_YEARS + n for n in range(9)])
    assert floor_of(tmp_path, clock) == 0


def test_what_is_older_than_the_duration_is_removed_at_the_usual_pace(tmp_path: Path) -> None:
    clock = ManualClock()
    start = clock.now()
    app = mp.App("kept", str(tmp_path / "state"), local_dir=str(tmp_path / "local"), keep="7d", compact_every=3)
    run_batches(app, tmp_path, clock, [start + n * DAY / 4 for n in range(100)])
    compact_log(StoppedApp(open_storage(str(tmp_path / "state")), "kept", clock), app.keep)
    floor = floor_of(tmp_path, clock)
    assert 100 - 28 - 60 <= floor <= 100 - 28  # four batches a day: 28 in 7 days, and a few more may stay


def test_a_long_pause_makes_nothing_old_by_itself_but_time_goes_on_after_it(tmp_path: Path) -> None:
    clock = ManualClock()
    start = clock.now()
    app = mp.App("kept", str(tmp_path / "state"), local_dir=str(tmp_path / "local"), keep="7d", compact_every=3)
    times = [start + n for n in range(20)] + [start + 90 * DAY + n * DAY / 2 for n in range(40)]
    run_batches(app, tmp_path, clock, times)
    compact_log(StoppedApp(open_storage(str(tmp_path / "state")), "kept", clock), app.keep)
    assert floor_of(tmp_path, clock) > 20
