"""Cases 5 and 15 to 17 again, after each kind of trouble that state may meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millpond as mp
from millpond.clock import SystemClock
from millpond.log.ledger import Ledger
from millpond.storage import Storage, open_storage

Driver = mp.testing.TestDriver


def ledger(storage: Storage, app: str) -> Ledger:
    return Ledger(storage, app, SystemClock())


def summing(sink: str = "sums", *, other: bool = True) -> mp.App:
    app = mp.App("cases", partitions=2, compact_every=2, keep=50)
    rows = app.stream("rows", mp.sources.rows([])).key_by("k")
    sums = rows.stateful_map("sum", lambda k, row, n: ({"k": k, "sum": n + row["v"]}, n + row["v"]), initial=0)
    sums.to(sink, mp.sinks.memory())
    if other:
        rows.aggregate("count", n=mp.count()).to("counts", mp.sinks.memory())
    return app


def lose_replicas(driver: Driver, storage: Storage, app: mp.App) -> None:
    driver.restart(app, lose_replicas=True)


def damage_the_newest_manifest(driver: Driver, storage: Storage, app: mp.App) -> None:
    newest = ledger(storage, "cases").newest()
    assert newest is not None and newest.manifest is not None
    data = storage.get(newest.manifest.path)
    assert data is not None
    storage.put(newest.manifest.path, data[: len(data) // 2])
    driver.restart(app, lose_replicas=True)


def kill_a_compaction(driver: Driver, storage: Storage, app: mp.App) -> None:
    for when in ("before", "during", "after"):
        driver.crash("compact", when)
        with pytest.raises(mp.testing.Crashed):
            for _ in range(6):
                driver.send("rows", [{"k": "other", "v": 0}])
        driver.restart(app, lose_replicas=when == "during")


def nothing(driver: Driver, storage: Storage, app: mp.App) -> None:
    driver.restart(app)


TROUBLE = {f.__name__: f for f in (nothing, lose_replicas, damage_the_newest_manifest, kill_a_compaction)}
Trouble = Callable[[Driver, Storage, mp.App], None]


@pytest.fixture(params=TROUBLE)
def trouble(request: pytest.FixtureRequest) -> Trouble:
    return TROUBLE[request.param]


def of_interest(driver: Driver, sink: str) -> list[Any]:
    return [row for row in driver.output(sink) if row["k"] != "other"]


def state(driver: Driver) -> dict[str, int]:
    return {key: value for key, value in driver.state("sum").items() if key != "other"}


def test_case_5_resume_into_a_changed_app(trouble: Trouble) -> None:
    storage = open_storage("memory://")
    with Driver(summing(), storage) as driver:
        for _ in range(15):
            driver.send("rows", [{"k": "all", "v": 1}])
        assert len(of_interest(driver, "sums")) == 15
        trouble(driver, storage, summing())
        driver.restart(summing("elsewhere", other=False))
        assert state(driver) == {"all": 15}
        assert driver.output("elsewhere") == []
        driver.send("rows", [{"k": "all", "v": 1}])
        assert driver.output("elsewhere") == [{"k": "all", "sum": 16}]


def test_case_15_recovery_equals_no_crash(trouble: Trouble) -> None:
    storage = open_storage("memory://")
    with Driver(summing(), storage) as driver:
        for key in ("a", "b", "a", "a", "b", "a"):
            driver.send("rows", [{"k": key, "v": 10}])
        trouble(driver, storage, summing())
        assert state(driver) == {"a": 40, "b": 20}
        assert len(of_interest(driver, "sums")) == 6
        driver.send("rows", [{"k": "a", "v": 1}])
        assert state(driver) == {"a": 41, "b": 20}


def test_case_16_a_failed_commit_leaves_nothing(trouble: Trouble) -> None:
    storage = open_storage("memory://")
    with Driver(summing(), storage) as driver:
        for number in (1, 2, 3):
            driver.send("rows", [{"k": f"key{number}", "v": number}])
        committed = {"key1": 1, "key2": 2, "key3": 3}
        driver.crash("commit", "before")
        with pytest.raises(mp.testing.Crashed):
            driver.send("rows", [{"k": f"key{number}", "v": number} for number in (4, 5, 6)])
        assert state(driver) == committed
        driver.restart()
        trouble(driver, storage, summing())
        assert state(driver) == {**committed, "key4": 4, "key5": 5, "key6": 6}
        assert len(of_interest(driver, "sums")) == 6


def test_case_17_output_once(trouble: Trouble) -> None:
    storage = open_storage("memory://")
    with Driver(summing(), storage) as driver:
        for number in (1, 2):
            driver.send("rows", [{"k": "a", "v": number}])
        driver.crash("deliver", "during")
        with pytest.raises(mp.testing.Crashed):
            driver.send("rows", [{"k": "a", "v": 1}, {"k": "a", "v": 1}, {"k": "a", "v": 1}])
        driver.restart()
        trouble(driver, storage, summing())
        assert [row["sum"] for row in of_interest(driver, "sums")] == [1, 3, 4, 5, 6]


def test_a_damaged_segment_in_the_middle_is_refused_with_what_is_lost() -> None:
    storage = open_storage("memory://")
    with Driver(summing(), storage) as driver:
        for key in ("a", "b", "a", "a", "b", "a"):
            driver.send("rows", [{"k": key, "v": 10}])
        for item in list(storage.list("cases/steps/sum")):
            data = storage.get(item.path)
            assert data is not None
            storage.put(item.path, data[:-9] + b"damaged!!")
        with pytest.raises(mp.errors.Corrupt) as refused:
            driver.restart(lose_replicas=True)
            driver.send("rows", [{"k": "a", "v": 10}])
        assert "sum" in str(refused.value) and "copy" in str(refused.value)
