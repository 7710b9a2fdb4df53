"""Tables that are everywhere: how a host loads them, and what a process remembers of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from damaged_replicas import flip

import millpond as mp
from millpond.log.checked import Pointer
from millpond.log.point import LogPoint, RecordLink
from millpond.task.tables import files_since
from millpond.testing import TestDriver


def shop(**how: Any) -> mp.App:
    """Prices with event times, which orders look up."""
    app = mp.App("shop", partitions=3, compact_every=2)
    updates = app.stream("updates", mp.sources.rows([]), timestamp="at").key_by("sku")
    prices = app.table("prices", updates, everywhere=True, deleted=lambda row: row["price"] is None, **how)
    orders = app.stream("orders", mp.sources.rows([]))
    orders.lookup("priced", prices, on="sku", merge=lambda row, found: found and found["price"]).to(
        "out", mp.sinks.memory()
    )
    return app


def price(n: int, price: int | None, at: int) -> dict[str, Any]:
    return {"sku": f"s{n}", "price": price, "at": at}


@pytest.mark.parametrize("ttl", [None, 1000])
def test_a_host_that_lost_its_copy_loads_rows_from_the_compacted_log(ttl: int | None) -> None:
    with TestDriver(shop(ttl=ttl)) as driver:
        for at in range(9):
            driver.send("updates", [price(n, None if n % 4 == at % 4 else at * 100 + n, at) for n in range(40)])
        driver.send("orders", [])
        driver.restart(lose_replicas=True)
        driver.send("orders", [{"sku": f"s{n}"} for n in range(42)])
        assert driver.output("out") == [None if n % 4 == 0 or n > 39 else 800 + n for n in range(42)]


def test_rows_that_a_process_has_read_are_remembered_until_they_change() -> None:
    with TestDriver(shop()) as driver:
        driver.send("updates", [price(1, 10, 0), price(2, 20, 0), {**price(3, 30, 0), "note": "MARKER"}])
        both = [{"sku": "s1"}, {"sku": "s2"}, {"sku": "s9"}]
        driver.send("orders", both)
        [folder] = Path(driver._home).rglob("table-prices-*")
        before = sorted(path.name for path in folder.iterdir())
        driver.send({"orders": both, "updates": [price(2, 21, 1)]})
        driver.send("orders", both)
        driver.send({"orders": both, "updates": [price(9, 90, 2), price(1, None, 2)]})
        driver.send("orders", both)
        assert driver.output("out") == [10, 20, None, 10, 21, None, 10, 21, None, None, 21, 90, None, 21, 90]
        flip(folder, b"MARKER")
        driver.send("orders", both)
        assert sorted(path.name for path in folder.iterdir()) == before, "no row of the damaged store was read"
        driver.send("orders", [{"sku": "s3"}])
        assert driver.output("out")[-4:] == [None, 21, 90, 30]
        assert sorted(path.name for path in folder.iterdir()) != before, "the damage was met, and the store rebuilt"


def test_a_batch_that_fails_leaves_nothing_in_memory_that_was_not_committed() -> None:
    app = mp.App("shop", partitions=1)
    updates = app.stream("updates", mp.sources.rows([])).key_by("sku")
    prices = app.table("prices", updates, everywhere=True)
    fails = [True]

    def merge(row: Any, found: Any) -> Any:
        if row.get("bad") and fails:
            raise ValueError("bad")
        return found["price"]

    app.stream("orders", mp.sources.rows([])).lookup("priced", prices, on="sku", merge=merge).to(
        "out", mp.sinks.memory()
    )
    with TestDriver(app) as driver:
        driver.send("updates", [{"sku": "tea", "price": 1}])
        driver.send("orders", [{"sku": "tea"}])
        with pytest.raises(mp.errors.StepFailed):
            driver.send({"updates": [{"sku": "tea", "price": 2}], "orders": [{"sku": "tea", "bad": True}]})
        fails.clear()
        driver.restart()
        driver.send("orders", [{"sku": "tea"}])
        assert driver.output("out") == [1, 2, 2]


def point(*links: tuple[int, str, str]) -> LogPoint:
    """A point of a log that knows these records, each with a segment of the table."""
    number = links[-1][0]
    recent = {n: {0: {"prices": [Pointer(f"f{n}", 1, 1, "")]}} for n, _, _ in links}
    return LogPoint(
        "a", "i", 1, number, 0, recent=recent, links={n: RecordLink(n, own, before) for n, own, before in links}
    )


def test_what_changed_since_a_record_is_known_only_for_an_unbroken_chain_of_records() -> None:
    log = point((3, "c", "b"), (4, "d", "c"), (5, "e", "d"))
    assert [file.path for file in files_since(log, "prices", 3, "c") or []] == ["f4", "f5"]
    assert files_since(log, "prices", 5, "e") == []
    assert files_since(log, "other", 3, "c") == []
    assert files_since(log, "prices", 2, "b") is None, "a record is missing"
    assert files_since(log, "prices", 3, "x") is None, "it is of another copy of the ledger"
    assert files_since(log, "prices", 6, "f") is None, "it is of the future"
    assert files_since(point((3, "c", "b"), (4, "d", "x")), "prices", 3, "c") is None, "records of two histories"
