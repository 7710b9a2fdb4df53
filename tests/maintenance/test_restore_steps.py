"""Single steps of a savepoint are added to an app that has other state: in one commit, or not at all."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import millpond as mp
from millpond.clock import SystemClock
from millpond.errors import Corrupt, Incompatible, InvalidUse
from millpond.log.ledger import Ledger
from millpond.log.record import Record
from millpond.maintenance.restore import restore_steps
from millpond.maintenance.stopped_app import StoppedApp
from millpond.storage import open_storage
from millpond.testing import TestDriver

ROWS = [{"k": f"k{i % 7}", "v": i, "at": i} for i in range(60)]


def full(name: str = "full", state: str = "saved-app", partitions: int = 2) -> mp.App:
    """The app that is saved: a total, windows, a join that keeps rows, and timers."""
    app = mp.App(name, state, partitions)
    keyed = app.stream("rows", mp.sources.rows([]), timestamp="at").key_by("k")
    add_total(keyed)
    add_windows(keyed)
    add_log(keyed)
    return app


def small(name: str = "small", state: str = "state", partitions: int = 3, *adds: Callable[[Any], None]) -> mp.App:
    """The app that gets the steps: it counts, and has what `adds` add."""
    app = mp.App(name, state, partitions)
    keyed = app.stream("rows", mp.sources.rows([]), timestamp="at").key_by("k")
    keyed.aggregate("count", n=mp.count()).to("counts", mp.sinks.memory())
    for add in adds:
        add(keyed)
    return app


def add_total(keyed: Any) -> None:
    keyed.stateful_map("total", lambda k, row, n: ({"k": k, "n": n + row["v"]}, n + row["v"]), initial=0).to(
        "totals", mp.sinks.memory()
    )


def add_windows(keyed: Any) -> None:
    windowed = keyed.window("tens", mp.tumbling(10), grace=5)
    windowed.aggregate(n=mp.count(), all=mp.collect("v")).to("windows", mp.sinks.memory())


def add_log(keyed: Any) -> None:
    keyed.apply("log", lambda row, state: state.list("seen").append(row["v"]))


def feed(app: mp.App, rows: list[Any], size: int = 10) -> dict[str, list[Any]]:
    with TestDriver(app, storage=app.state_dir) as driver:
        for i in range(0, len(rows), size):
            driver.send("rows", rows[i : i + size])
        return {sink: driver.output(sink) for sink in mp.lowlevel.program(app).sinks}


def newest(app: mp.App) -> Record:
    found = Ledger(open_storage(app.state_dir), app.name, SystemClock()).newest()
    assert found is not None
    return found


def state_of(app: mp.App, step: str) -> dict[Any, Any]:
    return dict(mp.open(app.state_dir, app.name).state(step).items())


def summed(rows: list[Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in rows:
        found[row["k"]] = found.get(row["k"], 0) + row["v"]
    return found


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path


@pytest.fixture
def saved(place: Path) -> mp.App:
    app = full()
    feed(app, ROWS[:35])
    app.savepoint("friday")
    return app


@pytest.mark.parametrize("partitions", [1, 2, 5])
def test_steps_are_added_and_the_rest_stays_as_it_was(saved: mp.App, partitions: int) -> None:
    app = small("small", "state", partitions)
    feed(app, ROWS[:35])
    before, counts = newest(app), state_of(app, "count")
    said = app.restore("friday", steps=["total", "tens", "log"])
    assert said.startswith(f"steps total, tens, log of batch {newest(saved).number} of full: ")
    after = newest(app)
    assert state_of(app, "count") == counts
    for step in ("total", "tens", "log"):
        assert state_of(app, step) == state_of(saved, step) != {}
    assert (after.positions, after.watermarks) == (before.positions, before.watermarks)
    assert app.verify().ok
    grown = small("small", "state", partitions, add_total, add_windows, add_log)
    found = feed(grown, ROWS[35:])
    assert dict(grown.state("total").items()) == summed(ROWS)
    assert dict(grown.state("count").items()) == {k: {"n": sum(r["k"] == k for r in ROWS)} for k in summed(ROWS)}
    closed = [row for row in found["windows"] if row["final"]]
    for row in closed:
        expected = [r["v"] for r in ROWS if r["k"] == row["k"] and row["window_start"] <= r["at"] < row["window_end"]]
        assert row["all"] == expected  # rows of the savepoint come before those of the app
    assert {row["window_start"] for row in closed} == {20, 30, 40}
    log = {key: value["seen"] for key, value in grown.state("log").items()}
    assert log == {k: [r["v"] for r in ROWS if r["k"] == k] for k in summed(ROWS)}
    assert grown.verify().ok and grown.verify().orphans == []


def test_places_of_batches_do_not_come_again(saved: mp.App) -> None:
    """The app has seen fewer batches than the savepoint: what it adds still comes after what it got."""
    app = small()
    feed(app, ROWS[:1])
    app.restore("friday", steps=["tens"])
    assert newest(app).arrival > newest(saved).arrival
    grown = small("small", "state", 3, add_windows)
    found = feed(grown, [{"k": "k0", "v": 100 + i, "at": 35} for i in range(3)] + [{"k": "k0", "v": 0, "at": 90}], 1)
    [last] = [row for row in found["windows"] if row["k"] == "k0" and row["window_start"] == 30]
    assert last["all"] == [100, 101, 102]
    [first] = [row for row in found["windows"] if row["k"] == "k0" and row["window_start"] == 20]
    assert first["all"] == [21, 28]


def test_what_the_step_had_closed_stays_closed(saved: mp.App) -> None:
    app = small()
    feed(app, [{"k": "k0", "v": 1, "at": 3}])  # its own watermark is far behind that of the savepoint
    app.restore("friday", steps=["tens"])
    found = feed(small("small", "state", 3, add_windows), [{"k": "k0", "v": 5, "at": 4}])
    assert found["windows"] == []


def test_a_rollback_goes_back_before_and_after_it(saved: mp.App) -> None:
    app = small()
    feed(app, ROWS[:10])
    before = newest(app).number
    app.restore("friday", steps=["total"])
    then, added = state_of(saved, "total"), newest(app).number
    grown = small("small", "state", 3, add_total)
    feed(grown, ROWS[35:45])
    assert dict(grown.state("total").at(added).items()) == then
    grown.rollback(added)
    assert state_of(app, "total") == then
    app.rollback(before)
    assert "total" not in newest(app).steps
    app.restore("friday", steps=["total"])
    assert state_of(app, "total") == then and app.verify().ok


def test_history_and_changes_name_the_record_that_added_it(saved: mp.App) -> None:
    app = small()
    feed(app, ROWS[:10])
    app.restore("friday", steps=["total"])
    number = newest(app).number - 1  # a release follows
    grown = small("small", "state", 3, add_total)
    feed(grown, [{"k": "k1", "v": 1000, "at": 50}])
    was = state_of(saved, "total")["k1"]
    history = [(entry.batch, entry.value) for entry in grown.state("total").history("k1")]
    assert history == [(number, was), (newest(grown).number, was + 1000)]
    changes = [(change.batch, change.value) for change in grown.changes("total") if change.key == "k1"]
    assert changes == history[1:]  # as iterating shows the changes of batches and rollbacks


def test_a_stream_of_changes_publishes_what_was_added(saved: mp.App) -> None:
    app = small()
    feed(app, ROWS[:10])
    app.restore("friday", steps=["total"])
    grown = small("small", "state", 3, add_total)
    grown.changes("total").to("changes", mp.sinks.memory())
    found = feed(grown, [{"k": "k1", "v": 1000, "at": 50}])
    published = {row["key"]: row["value"] for row in found["changes"]}
    assert published == {**state_of(saved, "total"), "k1": state_of(saved, "total")["k1"] + 1000}


@pytest.mark.parametrize("when", ["before", "during", "claimed", "committed"])
def test_it_can_be_killed_at_any_step(saved: mp.App, when: str) -> None:
    app = small()
    feed(app, ROWS[:10])
    counts = state_of(app, "count")
    pid = os.fork()
    if pid == 0:
        try:
            die = lambda at: os.kill(os.getpid(), signal.SIGKILL) if at == when else None  # noqa: E731
            stopped = StoppedApp(open_storage("state"), "small", SystemClock(), die)
            restore_steps(stopped, open_storage("friday"), ["total", "tens"])
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status)
    if when == "committed":
        with pytest.raises(InvalidUse, match="has state of step 'total', 'tens' already"):
            app.restore("friday", steps=["total", "tens"])
    else:
        assert "total" not in newest(app).steps
        app.restore("friday", steps=["total", "tens"])
    assert state_of(app, "total") == state_of(saved, "total") and state_of(app, "count") == counts
    feed(app, ROWS[10:12])
    app.compact(keep=1)
    assert app.verify().ok and app.verify().orphans == []


def test_a_dry_run_changes_nothing(saved: mp.App) -> None:
    app = small()
    feed(app, ROWS[:10])
    before = newest(app)
    assert "of full" in app.restore("friday", steps=["total"], dry_run=True)
    assert newest(app) == before


def test_a_damaged_savepoint_changes_nothing(saved: mp.App, place: Path) -> None:
    app = small()
    feed(app, ROWS[:10])
    before = newest(app)
    for file in (place / "friday").rglob("*"):
        if file.is_file() and "total" in str(file):
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 4
            file.write_bytes(bytes(data))
    with pytest.raises(Corrupt):
        app.restore("friday", steps=["total"])
    assert newest(app) == before


def of_other_kind(keyed: Any) -> None:
    keyed.apply("total", lambda row, state: None)


@pytest.mark.parametrize(
    ("steps", "kind", "message"),
    [
        (["count"], InvalidUse, r"the savepoint of batch \d+ of full has no step 'count'; it has: log, tens, total"),
        ([], InvalidUse, r"restore\(steps=\): expected a list of the names of steps, got \[\]"),
        ("total", InvalidUse, r"expected a list of the names of steps, got 'total'"),
        (["total"], Incompatible, r"'total' is of kind apply in the program, and .* is of kind stateful_map"),
    ],
)
def test_steps_that_cannot_be_added_are_refused(saved: mp.App, steps: Any, kind: Any, message: str) -> None:
    app = small()
    feed(app, ROWS[:10])
    before = newest(app)
    with pytest.raises(kind, match=message):
        small("small", "state", 3, of_other_kind).restore("friday", steps=steps)
    assert newest(app) == before


def test_a_step_that_is_there_is_not_replaced(saved: mp.App) -> None:
    app = small("small", "state", 3, add_total)
    feed(app, ROWS[:10])
    with pytest.raises(InvalidUse, match=r"has state of step 'total' already\. Drop it first, with mp\.admin"):
        app.restore("friday", steps=["tens", "total"])
    assert state_of(app, "total") == summed(ROWS[:10])


def test_an_app_that_never_ran_gets_no_single_steps(saved: mp.App) -> None:
    with pytest.raises(InvalidUse, match="holds no app 'small'"):
        small().restore("friday", steps=["total"])


def test_event_times_of_another_kind_are_refused(saved: mp.App) -> None:
    app = small()
    feed(app, [{"k": "a", "v": 1, "at": datetime(2030, 1, 1, tzinfo=UTC)}])
    with pytest.raises(
        Incompatible, match="of app 'small' are datetimes, and those of the savepoint are whole numbers"
    ):
        app.restore("friday", steps=["tens"])
