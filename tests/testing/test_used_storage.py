"""A TestDriver on storage that another one has used goes on where that one ended, and reads every row it is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millpond as mp
from millpond.storage import open_storage


def an_app(**other: Any) -> mp.App:
    app = mp.App("used", partitions=2)
    for name in ("one", "two"):
        rows = app.stream(name, mp.sources.rows([])).key_by("k")
        rows.aggregate(f"count {name}", n=mp.count(), total=mp.sum("v")).to(f"out {name}", mp.sinks.memory())
    return app


def rows(*values: int) -> list[dict[str, Any]]:
    return [{"k": "a", "v": value} for value in values]


@pytest.mark.parametrize("url", ["memory", "disk"])
@pytest.mark.parametrize("count", [1, 3, 7])
def test_no_row_is_swallowed(tmp_path: Path, url: str, count: int) -> None:
    storage = open_storage("memory://" if url == "memory" else str(tmp_path))
    with mp.testing.TestDriver(an_app(), storage) as driver:
        driver.send("one", rows(1, 2, 3))
        driver.send("one", rows(4))
    with mp.testing.TestDriver(an_app(), storage) as driver:
        driver.send({"one": rows(*[10] * count), "two": rows(5)})
        assert driver.state("count one").get("a") == {"n": 4 + count, "total": 10 + 10 * count}
        assert driver.state("count two").get("a") == {"n": 1, "total": 5}
        assert [row["n"] for row in driver.output("out one")][-count:] == list(range(5, 5 + count))
        driver.crash(at="commit", when="before")
        with pytest.raises(mp.testing.Crashed):
            driver.send("one", rows(100))
        driver.restart(lose_replicas=True)
        assert driver.state("count one").get("a") == {"n": 5 + count, "total": 110 + 10 * count}
    with mp.testing.TestDriver(an_app(), storage) as driver:
        driver.send("two", rows(6))
        driver.send("one", rows(1000))
        assert driver.state("count one").get("a") == {"n": 6 + count, "total": 1110 + 10 * count}
        assert driver.state("count two").get("a") == {"n": 2, "total": 11}


def test_cleared_storage_is_read_from_the_first_row_that_this_driver_was_sent() -> None:
    app, storage = an_app(), open_storage("memory://")
    with mp.testing.TestDriver(app, storage) as driver:
        driver.send("one", rows(1, 2, 3))
    with mp.testing.TestDriver(app, storage) as driver:
        driver.send("one", rows(10, 20))
        app._storage = storage
        app.clear_state()
        driver.restart()
        assert driver.state("count one").get("a") == {"n": 2, "total": 30}


def test_a_rebuild_says_that_the_rows_of_an_earlier_driver_are_gone() -> None:
    storage = open_storage("memory://")
    with mp.testing.TestDriver(an_app(), storage) as driver:
        driver.send("one", rows(1, 2, 3))
    with mp.testing.TestDriver(an_app(), storage) as driver:
        driver.send("one", rows(10))
        with pytest.raises(mp.errors.InvalidUse, match="rows from 0 to 3 were sent to an earlier TestDriver"):
            driver.rebuild("count one")
