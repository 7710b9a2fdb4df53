"""A replica that is damaged again and again is rebuilt each time, up to a limit, and no attempt shows in the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from damaged_replicas import Damage

import millpond as mp
from millpond.clock import ManualClock
from millpond.replica.catch_up import MOST_REPLICA_ATTEMPTS
from millpond.state_view import StateView
from millpond.storage import MemoryStorage
from millpond.testing import TestDriver

LIMIT = MOST_REPLICA_ATTEMPTS
REFUSED = rf"local replica .*: it is damaged again after {LIMIT - 1} rebuilds: checksum of .* choose another local_dir"


def counting(damage: Damage) -> mp.App:
    """Counts the rows of each key. The function damages the replica of the attempt that it runs in, then reads it."""

    def count(row: Any, state: mp.State) -> Any:
        if row.get("bad"):
            raise ValueError("bad")
        if state.key == "a":
            damage()
        n = state.get("n", {"n": 0})["n"] + 1
        state.set("n", {"marker": f"MARKER-{state.key}", "n": n})
        return {"k": state.key, "n": n}

    app = mp.App("d", state_dir="memory://", partitions=1)
    rows = app.stream("rows", mp.sources.rows([]), on_error="dead-letter").key_by("k")
    rows.apply("n", count).to("out", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    return app


def begin(driver: TestDriver) -> None:
    """Two batches: with the second, the replica applies the first."""
    driver.send("rows", [{"k": "a"}, {"k": "b"}])
    driver.send("rows", [{"k": "b"}])


MORE = [{"k": "b"}, {"k": "b", "bad": True}, {"k": "a"}]  # each attempt has outputs and a dead letter before the damage


@pytest.mark.parametrize("times", [1, 2, LIMIT - 1])
def test_a_task_rebuilds_its_replica_as_often_as_it_is_damaged(times: int) -> None:
    damage = Damage(b"MARKER-a")
    with TestDriver(counting(damage)) as driver:
        begin(driver)
        damage.begin(Path(driver._home), times)
        driver.send("rows", MORE)
        assert damage.left == 0
        assert driver.output("out")[3:] == [{"k": "b", "n": 3}, {"k": "a", "n": 2}]
        assert [letter["row"] for letter in driver.output("dead")] == [MORE[1]]
        assert [driver.state("n").get(key)["n"]["n"] for key in "ab"] == [2, 3]


def test_a_task_gives_up_on_a_replica_that_is_damaged_too_often_and_nothing_is_lost() -> None:
    damage = Damage(b"MARKER-a")
    with TestDriver(counting(damage)) as driver:
        begin(driver)
        damage.begin(Path(driver._home), LIMIT)
        with pytest.raises(mp.errors.Unavailable, match=REFUSED):
            driver.send("rows", MORE)
        assert damage.left == 0
        driver.restart()
        assert driver.output("out")[3:] == [{"k": "b", "n": 3}, {"k": "a", "n": 2}]
        assert len(driver.output("dead")) == 1


TEA, CUP = [{"first": "tea", "sku": "tea"}], [{"first": "tea", "sku": "cup"}]  # a row that was read is not read again


@pytest.mark.parametrize("times", [1, 2, LIMIT - 1, LIMIT])
def test_a_task_rebuilds_the_replica_of_a_whole_table_as_often_as_it_is_damaged(times: int) -> None:
    damage = Damage(b"MARKER")

    def damages(row: Any) -> Any:
        damage()
        return row

    app = mp.App("t", state_dir="memory://", partitions=1)
    table = app.table("prices", app.stream("updates", mp.sources.rows([])).key_by("sku"), everywhere=True)
    orders = app.stream("orders", mp.sources.rows([])).lookup("known", table, on="first", merge=lambda row, price: row)
    priced = orders.map(damages).lookup("priced", table, on="sku", merge=lambda row, price: price["price"])
    priced.to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("updates", [{"sku": "tea", "price": 3}, {"sku": "cup", "price": 4, "note": "MARKER"}])
        driver.send("orders", TEA)
        (folder,) = Path(driver._home).rglob("table-prices-*")
        damage.begin(folder, times)
        if times < LIMIT:
            driver.send("orders", CUP)
        else:
            with pytest.raises(mp.errors.Unavailable, match=REFUSED.replace(".*:", ".*table-prices.*:", 1)):
                driver.send("orders", CUP)
            driver.restart()
        assert damage.left == 0
        assert driver.output("out") == [3, 4]


class DamagingClock(ManualClock):
    """A reader of state asks for the time when it has opened a replica, and before it reads it."""

    def __init__(self, damage: Damage) -> None:
        super().__init__()
        self._damage = damage

    def now(self) -> float:
        self._damage()
        return super().now()


@pytest.mark.parametrize("times", [1, 2, LIMIT - 1, LIMIT])
def test_a_reader_of_state_rebuilds_the_replica_as_often_as_it_is_damaged(times: int, tmp_path: Path) -> None:
    damage, storage = Damage(b"MARKER-a"), MemoryStorage()
    with TestDriver(counting(damage), storage) as driver:
        begin(driver)
    view = StateView(storage, "d", "n", DamagingClock(damage), home=str(tmp_path))
    assert view.get("a")["n"]["n"] == 1
    damage.begin(tmp_path, times)
    if times < LIMIT:
        assert view.get("a")["n"]["n"] == 1
    else:
        with pytest.raises(mp.errors.Unavailable, match=REFUSED):
            view.get("a")
    assert damage.left == 0
    assert view.get("a")["n"]["n"] == 1
