"""`partitions="auto"` follows the cores of the session, slowly."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

import millpond as mp
from millpond.clock import ManualClock
from millpond.driver.auto_partitions import REST_SECONDS, SETTLE_SECONDS, CoreWatch
from millpond.driver.commit import Driver
from millpond.driver.settings import DriverSettings
from millpond.runtimes.local import LocalRuntime
from millpond.storage import open_storage


def rescales(cores: list[int], partitions: int = 2, every: float = 5.0) -> list[tuple[float, int]]:
    """When a driver that sees these cores would rescale, and to how many partitions."""
    watch, found = CoreWatch(), []
    for number, seen in enumerate(cores):
        watch, wanted = watch.observe(seen, partitions, number * every)
        if wanted is not None:
            partitions = wanted
            found.append((number * every, wanted))
    return found


def test_a_lasting_change_is_followed_after_a_while() -> None:
    assert rescales([2] * 10 + [8] * 50) == [(50.0 + SETTLE_SECONDS, 8)]
    assert rescales([8] * 10 + [4] * 50, 8) == [(50.0 + SETTLE_SECONDS, 4)]


@pytest.mark.parametrize("cores", [[2] * 99, [2, 8] * 50, [2] * 9 + [8] * 9 + [2] * 50, [1, 4] * 50])
def test_no_change_a_short_one_or_a_flapping_one_is_not_followed(cores: list[int]) -> None:
    assert rescales(cores) == []


def test_a_small_change_is_not_followed() -> None:
    assert rescales([9, 11, 8, 7] * 50, 8) == []


def test_cores_that_vary_count_with_the_nearest_number() -> None:
    assert [wanted for _, wanted in rescales([10, 6, 12] * 10)] == [6]
    assert [wanted for _, wanted in rescales([2, 5, 3] * 10, 12)] == [5]


def test_two_rescales_are_never_close_to_each_other() -> None:
    for seed in range(50):
        chance = random.Random(seed)
        cores = [n for _ in range(40) for n in [chance.randrange(1, 40)] * chance.randrange(1, 60)]
        times = [time for time, _ in rescales(cores)]
        assert all(later - earlier >= REST_SECONDS for earlier, later in pairwise(times))
        assert not times or times[0] >= SETTLE_SECONDS, "a driver that has just started does not rescale at once"


def start(app: mp.App, storage: Any, clock: ManualClock, cores: int) -> tuple[Driver, LocalRuntime]:
    runtime = LocalRuntime(storage, clock)
    runtime.slots = cores
    settings = DriverSettings(partitions=app.partitions, threaded=False, home=app.local_dir)
    return Driver.start(mp.lowlevel.program(app), runtime, storage, clock, settings), runtime


def run_for(driver: Driver, clock: ManualClock, seconds: float) -> None:
    for _ in range(round(seconds)):
        clock.advance(1.0)
        driver.batch(mp.lowlevel.Limit(1 << 40, 1 << 60))


def test_a_running_app_follows_its_cores_and_says_so(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    app = mp.App("auto", "memory://", "auto", local_dir=str(tmp_path))
    rows = app.stream("rows", mp.sources.rows([{"k": f"k{i}"} for i in range(50)]))
    rows.key_by("k").aggregate("count", n=mp.count()).to("out", mp.sinks.memory())
    storage, clock = open_storage("memory://"), ManualClock()
    driver, runtime = start(app, storage, clock, 3)
    run_for(driver, clock, 100)
    assert driver.last.partitions == 3, "a new app has one partition for each core"
    runtime.slots = 6
    run_for(driver, clock, SETTLE_SECONDS - 10)
    assert driver.last.partitions == 3
    run_for(driver, clock, 20)
    assert driver.last.partitions == 6
    assert driver.last.why == 'rescale to 6 partitions, as partitions="auto" says: the session has 6 cores'
    assert "the session has 6 cores" in caplog.text
    driver.release()
    driver.close()
    driver, runtime = start(app, storage, clock, 2)  # executors are still to come
    run_for(driver, clock, 30)
    assert driver.last.partitions == 6
    runtime.slots = 6
    run_for(driver, clock, 200)
    assert driver.last.partitions == 6
    driver.close()


def test_an_operator_cannot_choose_a_number_beside_auto() -> None:
    app = mp.App("auto", "memory://", "auto")
    app.stream("rows", mp.sources.rows([])).to("out", mp.sinks.memory())
    match = 'the program says partitions="auto"'
    with mp.testing.TestDriver(app) as driver, pytest.raises(mp.errors.InvalidUse, match=match):
        driver.rescale(5)


@pytest.mark.parametrize("wrong", [0, 10_001, "all", 2.0, True])
def test_other_values_are_refused(wrong: Any) -> None:
    with pytest.raises(mp.errors.InvalidUse, match='expected a whole number from 1 to 10000, or "auto", got'):
        mp.App("a", partitions=wrong)
