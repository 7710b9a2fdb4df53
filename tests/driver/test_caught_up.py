"""`until="caught-up"` ends where the input ended when the run began, however fast more of it arrives."""

from __future__ import annotations

import gzip
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_drivers import Lanes

import millpond as mp
from millpond.clock import ManualClock
from millpond.driver.commit import Driver
from millpond.driver.loop import Settings, run_driver
from millpond.driver.planning import with_snapshots
from millpond.driver.settings import Controls, DriverSettings
from millpond.runtimes.local import LocalRuntime
from millpond.storage import Storage, open_storage


def catch_up(source: Any, more: Callable[[int], object], storage: Storage, home: Path) -> list[Any]:
    """The rows of one run, in which more arrives before every plan."""
    app, clock, found, plans = mp.App("chased", partitions=1), ManualClock(), [], []
    app.stream("rows", source).to("out", mp.sinks.function(lambda rows, delivery: found.extend(rows)))
    program = with_snapshots(mp.lowlevel.program(app), clock.now())

    def hook(step: str, when: str) -> None:
        if (step, when) == ("plan", "before"):
            plans.append(step)
            assert len(plans) < 50, "the run goes after what arrives"
            clock.advance(1)
            more(len(plans))

    def make() -> Driver:
        runtime = LocalRuntime(storage, clock)
        return Driver.start(
            program,
            runtime,
            storage,
            clock,
            DriverSettings(partitions=1, home=str(home), threaded=False),
            Controls(hook=hook),
        )

    run_driver(make, Settings("caught-up", max_rows=7), threading.Event(), clock)
    return found


def lines(first: int, count: int) -> bytes:
    return b"".join(b'{"n": %d}\n' % n for n in range(first, first + count))


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def numbers(rows: list[Any]) -> list[int]:
    return [int(row["n"]) for row in rows]


def test_rows_that_are_appended_to_a_list_are_for_the_next_run(tmp_path: Path) -> None:
    rows, storage = [{"n": n} for n in range(20)], open_storage("memory://")
    found = catch_up(mp.sources.rows(rows), lambda plan: rows.append({"n": len(rows)}), storage, tmp_path)
    assert numbers(found) == list(range(20))
    there = len(rows)
    found = catch_up(mp.sources.rows(rows), lambda plan: None, storage, tmp_path)
    assert numbers(found) == list(range(20, there))


def test_a_steady_rate_is_read_to_where_it_was(tmp_path: Path) -> None:
    source = mp.sources.rate(50, start=ManualClock().now() - 2)
    found = catch_up(source, lambda plan: None, open_storage("memory://"), tmp_path)
    assert [row["value"] for row in found] == list(range(100))


def test_a_rate_that_has_not_begun_has_nothing_to_read(tmp_path: Path) -> None:
    assert catch_up(mp.sources.rate(50), lambda plan: None, open_storage("memory://"), tmp_path) == []


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.csv"])
def test_what_is_appended_to_a_file_is_for_the_next_run(tmp_path: Path, name: str) -> None:
    path, storage = tmp_path / "in" / name, open_storage("memory://")
    path.parent.mkdir()

    def add(first: int, count: int) -> None:
        if name.endswith("csv"):
            append(path, b"".join(b"%d\n" % n for n in range(first, first + count)))
        else:
            append(path, gzip.compress(lines(first, count)) if name.endswith("gz") else lines(first, count))

    if name.endswith("csv"):
        append(path, b"n\n")
    add(0, 20)
    if name == "a.jsonl":
        append(path, b'{"n": ')  # a line that is half written waits, as ever
    plans = []

    def more(plan: int) -> None:
        plans.append(plan)
        if name == "a.jsonl" and plan == 1:
            append(path, b"20}\n")
        else:
            add(19 + plan, 1)
        (path.parent / f"b-{plan}{name[1:]}").write_bytes(path.read_bytes())

    assert numbers(catch_up(mp.sources.files(path.parent), more, storage, tmp_path / "local")) == list(range(20))
    later = numbers(catch_up(mp.sources.files(path.parent / name), lambda plan: None, storage, tmp_path / "local"))
    assert later == list(range(20, 20 + len(plans)))


def test_a_parquet_file_that_is_added_is_for_the_next_run(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()

    def add(plan: int) -> None:
        pq.write_table(pa.table({"n": [plan * 10 + n for n in range(10)]}), folder / f"{plan:03d}.parquet")

    add(0)
    storage = open_storage("memory://")
    assert numbers(catch_up(mp.sources.files(folder), add, storage, tmp_path)) == list(range(10))
    assert numbers(catch_up(mp.sources.files(folder), lambda plan: None, storage, tmp_path))[0] == 10


class Growing(Lanes):
    """A source of the user's own, which can tell where it ends."""

    def as_of(self, now: float) -> Lanes:
        return Growing({name: list(rows) for name, rows in self.lanes.items()}, self.width)


def test_a_source_of_ones_own_with_as_of_ends_too(tmp_path: Path) -> None:
    lanes: Mapping[str, list[Any]] = {"a": [{"n": n} for n in range(5)], "b": []}
    found = catch_up(Growing(lanes), lambda plan: lanes["b"].append({"n": plan}), open_storage("memory://"), tmp_path)
    assert numbers(found) == list(range(5))


def test_a_source_of_ones_own_without_as_of_is_read_until_a_plan_is_empty(tmp_path: Path) -> None:
    rows = [{"n": n} for n in range(5)]

    def more(plan: int) -> None:
        if plan < 10:
            rows.append({"n": len(rows)})

    found = catch_up(Lanes({"0": rows}), more, open_storage("memory://"), tmp_path)
    assert numbers(found) == list(range(14))


@pytest.mark.parametrize(
    ("count", "text"), [(20, "20 rows in 3 batches"), (1, "1 row in 1 batch"), (0, "0 rows in 0 batches")]
)
def test_the_end_of_a_run_is_logged_with_what_it_has_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, count: int, text: str
) -> None:
    caplog.set_level(logging.INFO, "millpond.run")
    rows = [{"n": n} for n in range(count)]
    catch_up(mp.sources.rows(rows), lambda plan: None, open_storage("memory://"), tmp_path)
    assert [line.rpartition(", ")[0] for line in caplog.messages] == [f"app 'chased' has caught up: {text}"]
