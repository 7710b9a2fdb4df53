"""What workers say while they rebuild replicas: the driver's log and `millpond status` show it."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_drivers import start_driver
from typer.testing import CliRunner

import millpond as mp
from millpond.cli import commands
from millpond.clock import ManualClock, SystemClock
from millpond.driver import recovery_watch
from millpond.driver.heartbeat_thread import HeartbeatThread
from millpond.errors import Corrupt, Unavailable
from millpond.log.heartbeat import Heartbeat
from millpond.log.paths import Paths
from millpond.log.recovery import RecoveryFile, read_recoveries
from millpond.replica import fill_progress
from millpond.sources.base import Limit
from millpond.storage import open_storage

LIMIT = Limit(1000, 1 << 30)
PATIENCE = 120  # seconds; the tests wait for events


def an_app(place: Path, rows: list[Any], local: str) -> mp.App:
    app = mp.App("shop", str(place / "state"), partitions=1, local_dir=str(place / local), compact_every=1000)
    keyed = app.stream("rows", mp.sources.rows(rows)).key_by("k")
    for name in ("a", "b", "c"):  # three steps, so that a manifest has several files
        keyed.stateful_map(name, lambda k, row, n: (None, n + row["v"]), initial=0)
    return app


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The rows of an app whose state is compacted, and whose replicas are lost."""
    found = [{"k": k % 50, "v": k} for k in range(100)]
    app = an_app(tmp_path, found, "before")
    driver = start_driver(app)
    driver.batch(LIMIT)
    driver.release()
    driver.close()
    app.compact()
    monkeypatch.setattr(fill_progress, "REPORT_SECONDS", 0.0)
    monkeypatch.setattr(recovery_watch, "WATCH_AFTER_SECONDS", 0.0)
    return [*found, {"k": 1, "v": 1}]


class Watched:
    """A storage that calls a function before it reads a state segment, and may refuse to write progress."""

    def __init__(self, storage: Any, before_read: Any, refuses: bool = False) -> None:
        self._storage, self._before_read, self._refuses = storage, before_read, refuses

    def get(self, path: str) -> Any:
        if "/steps/" in path:
            self._before_read()
        return self._storage.get(path)

    def put(self, path: str, data: Any) -> None:
        if self._refuses and "/recovery/" in path:
            raise Unavailable("the bucket is read-only")
        self._storage.put(path, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


class Lines(logging.Handler):
    """Remembers the lines that the driver writes about rebuilt state, and sets an event at the first."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.seen = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "state is rebuilt from the log" in record.getMessage():
            self.found.append(record.getMessage())
            self.seen.set()


@pytest.fixture
def lines() -> Iterator[Lines]:
    logger, handler = logging.getLogger("millpond"), Lines()
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(before)


def test_the_driver_and_status_say_what_is_rebuilt(tmp_path: Path, rows: list[Any], lines: Lines) -> None:
    storage = open_storage(str(tmp_path / "state"))
    shown: list[Any] = []

    def wait() -> None:
        """Let the worker pause at its second file, until the driver has reported the progress."""
        if list(storage.list(Paths("shop").recoveries)) and not shown:
            assert lines.seen.wait(PATIENCE)
            arguments = ["status", "--state-dir", str(tmp_path / "state")]
            shown.append(CliRunner().invoke(commands, arguments).stdout)
            shown.append(json.loads(CliRunner().invoke(commands, [*arguments, "--format", "json"]).stdout))

    driver = start_driver(an_app(tmp_path, rows, "after"), Watched(storage, wait))
    with HeartbeatThread(storage, driver.owner, SystemClock(), every=0.05) as beating:
        beating.follow(driver.recovery.report)
        assert driver.batch(LIMIT)
        number = driver.last.number
        driver.release()
    driver.close()
    assert lines.found[0].startswith(f"shop: batch {number} waits: state is rebuilt from the log: partition 0 on ")
    assert "50 of 150 cells, about " in lines.found[0]
    text, found = shown
    assert "recovering" in text and "50 of 150 cells" in text
    [told] = found["recovering"]
    assert (told["partition"], told["batch"], told["done"], told["cells"]) == (0, number, 50, 150)
    assert list(storage.list(Paths("shop").recoveries)) == []
    app = an_app(tmp_path, rows, "after")
    assert app.state("a").get(1) == sum(row["v"] for row in rows if row["k"] == 1)


def test_a_task_does_not_fail_because_of_it(tmp_path: Path, rows: list[Any], lines: Lines) -> None:
    storage = Watched(open_storage(str(tmp_path / "state")), lambda: None, refuses=True)
    driver = start_driver(an_app(tmp_path, rows, "after"), storage)
    assert driver.batch(LIMIT)
    driver.release()
    driver.close()
    assert lines.found == []


def test_a_manifest_that_cannot_be_loaded_leaves_no_progress_behind(tmp_path: Path, rows: list[Any]) -> None:
    storage, failed = open_storage(str(tmp_path / "state")), []

    def fail() -> None:
        if list(storage.list(Paths("shop").recoveries)):
            failed.append(True)
            raise Corrupt("the bucket is damaged")

    driver = start_driver(an_app(tmp_path, rows, "after"), Watched(storage, fail))
    assert driver.batch(LIMIT)  # by way of the segments before the compaction
    driver.release()
    driver.close()
    assert failed
    assert list(storage.list(Paths("shop").recoveries)) == []


def test_progress_of_another_batch_driver_or_time_is_ignored(tmp_path: Path) -> None:
    storage, clock = open_storage(str(tmp_path / "state")), SystemClock()
    RecoveryFile(storage, "shop", "mine", 7, 3).write(10, 40, 5.0)
    [found] = read_recoveries(storage, "shop", "mine", 7, clock)
    assert found.describe().endswith(": 10 of 40 cells, about 15 s left")
    assert read_recoveries(storage, "shop", "other", 7, clock) == []
    assert read_recoveries(storage, "shop", "mine", 8, clock) == []
    assert read_recoveries(storage, "shop", "mine", 7, ManualClock(clock.now() + 3600)) == []
    storage.put(Paths("shop").recovery(3), b"nonsense")
    assert read_recoveries(storage, "shop", "mine", 7, clock) == []


def test_what_dead_workers_left_is_removed_by_the_next_driver(tmp_path: Path, lines: Lines, monkeypatch: Any) -> None:
    monkeypatch.setattr(recovery_watch, "WATCH_AFTER_SECONDS", 0.0)
    storage = open_storage(str(tmp_path / "state"))
    RecoveryFile(storage, "shop", "dead", 7, 3).write(10, 40, 5.0)
    RecoveryFile(storage, "shop", "mine", 9, 4).write(10, 40, 5.0)
    watch = recovery_watch.RecoveryWatch(storage, "shop", "mine", SystemClock())
    watch.report()  # no batch is computed: nothing is read
    assert len(list(storage.list(Paths("shop").recoveries))) == 2
    watch.batch = (9, SystemClock().monotonic())
    watch.report()
    assert [item.path for item in storage.list(Paths("shop").recoveries)] == [Paths("shop").recovery(4)]
    assert len(lines.found) == 1 and "partition 4 on " in lines.found[0]


def test_status_shows_nothing_of_an_app_that_is_not_running(tmp_path: Path, rows: list[Any]) -> None:
    storage = open_storage(str(tmp_path / "state"))
    RecoveryFile(storage, "shop", "dead", 7, 0).write(10, 40, 5.0)
    arguments = ["status", "--state-dir", str(tmp_path / "state"), "--format", "json"]
    assert json.loads(CliRunner().invoke(commands, arguments).stdout)["recovering"] == []
    Heartbeat(storage, "shop", "dead", SystemClock()).beat(6)
    assert len(json.loads(CliRunner().invoke(commands, arguments).stdout)["recovering"]) == 1
