"""Standby drivers in processes of their own, without Spark: they take over, once, and nothing is lost or doubled."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import standby_totals
from folders import held, write
from processes import Program, eventually, is_asleep

import millpond as mp
from millpond.clock import ManualClock, SystemClock
from millpond.driver.standby import Standby
from millpond.log.heartbeat import Beat, read_beat
from millpond.log.paths import Paths
from millpond.log.standby_drivers import LEFT_SECONDS, STALE_SECONDS, StandbyFile, StandbyWatch, standby_drivers
from millpond.storage import open_storage

ROUNDS = int(os.environ.get("MILLPOND_KILL_ROUNDS", "4"))
SEED = int(os.environ.get("MILLPOND_KILL_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)

Start = Callable[..., Program]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a first or a standby driver."""
    started: list[Program] = []

    def begin(role: str, *args: object) -> Program:
        script = Path(standby_totals.__file__)
        started.append(Program(script, tmp_path, role, *args, logs=tmp_path / "logs"))
        return started[-1]

    yield begin
    for one in started:
        one.destroy()


class Feed:
    """The input, and what state and sink must hold."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rows = folder, 0

    def add(self, count: int = 50) -> None:
        fresh = [{"id": n, "key": f"k{n % 7}", "value": n} for n in range(self.rows, self.rows + count)]
        write(self.folder / "in" / f"{self.rows:08d}.jsonl", fresh)
        self.rows += count

    def arrives(self) -> None:
        eventually(lambda: len(held(self.folder / "out")) >= self.rows, f"{self.rows} rows in the sink")

    def is_counted_once(self) -> None:
        assert sorted(row["id"] for row in held(self.folder / "out")) == list(range(self.rows))
        totals: dict[str, int] = {}
        for n in range(self.rows):
            totals[f"k{n % 7}"] = totals.get(f"k{n % 7}", 0) + n
        assert dict(mp.open(str(self.folder / "state"), "totals").state("total").items()) == totals


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return Feed(tmp_path)


def beat_of(folder: Path) -> Beat | None:
    return read_beat(open_storage(str(folder / "state")), Paths("totals").heartbeat)


def owner_among(running: list[Program], folder: Path) -> Program | None:
    beat = beat_of(folder)
    return next((one for one in running if beat is not None and one.pid == beat.pid), None)


def shown(folder: Path) -> list[int]:
    """The process ids of the standby drivers that seem to wait."""
    return [beat.pid for beat in standby_drivers(open_storage(str(folder / "state")), "totals", SystemClock())]


def newest(folder: Path) -> Any:
    return mp.open(str(folder / "state"), "totals").newest


def test_a_standby_driver_goes_on_after_kill_9_of_the_first(start: Start, feed: Feed, tmp_path: Path) -> None:
    feed.add()
    first = start("first")
    feed.arrives()
    standby = start("standby")
    standby.wait_for(f"standing by; process {first.pid} on ")
    eventually(lambda: shown(tmp_path) == [standby.pid], "the standby driver to be shown")
    feed.add()
    feed.arrives()
    first.kill()
    feed.add()
    feed.arrives()
    assert "taking over: the process of its owner is gone" in standby.output
    standby.wait_for("s after the take-over: batch ")
    assert shown(tmp_path) == []
    standby.send(signal.SIGTERM)
    assert "ended" in standby.succeed()
    assert newest(tmp_path).kind == "release"
    feed.is_counted_once()


def test_a_driver_that_slept_through_a_take_over_is_fenced(start: Start, feed: Feed, tmp_path: Path) -> None:
    feed.add()
    first = start("first")
    feed.arrives()
    standby = start("standby")
    standby.wait_for("standing by")
    eventually(lambda: (beat_of(tmp_path) or Beat("", "", 0, 0, 0)).every == 1.0, "the owner to beat more often")
    first.send(signal.SIGSTOP)
    eventually(lambda: is_asleep(first.pid), "the first driver to sleep")
    feed.add()
    feed.arrives()
    assert "taking over: its owner is silent; it was silent for " in standby.output
    first.send(signal.SIGCONT)
    assert first.wait() == 3 and "Fenced: app 'totals'" in first.output
    feed.add()
    feed.arrives()
    assert standby.process.poll() is None
    feed.is_counted_once()


def test_an_app_that_was_stopped_on_purpose_is_taken_over(start: Start, feed: Feed, tmp_path: Path) -> None:
    """As in a rolling deployment: the standby driver runs the new program."""
    feed.add()
    first = start("first")
    feed.arrives()
    standby = start("standby")
    standby.wait_for("standing by")
    first.send(signal.SIGTERM)
    first.succeed()
    feed.add()
    feed.arrives()
    standby.wait_for("taking over: its owner has stopped")
    feed.is_counted_once()


def test_one_of_several_standby_drivers_takes_over_and_the_others_wait_for_that_one(
    start: Start, feed: Feed, tmp_path: Path
) -> None:
    feed.add()
    running = [start("standby") for _ in range(3)]  # the first of them finds an app that never ran
    feed.arrives()
    for _ in range(2):
        owner = eventually(lambda: beat_of(tmp_path), "a heartbeat").pid
        waiting = [one for one in running if one.pid != owner]
        for one in waiting:
            one.wait_for(f"standing by; process {owner} on ")
        next(one for one in running if one.pid == owner).kill()
        feed.add()
        feed.arrives()
        assert all(one.process.poll() is None for one in waiting)
        eventually(lambda owner=owner: (beat_of(tmp_path) or Beat("", "", owner, 0, 0)).pid != owner, "another owner")  # type: ignore[misc]
        running = waiting
    feed.is_counted_once()


def test_a_standby_driver_that_is_stopped_while_it_waits_has_written_no_record(
    start: Start, feed: Feed, tmp_path: Path
) -> None:
    feed.add()
    first = start("first")
    feed.arrives()
    standby = start("standby")
    standby.wait_for("standing by")
    first.send(signal.SIGSTOP)
    eventually(lambda: is_asleep(first.pid), "the first driver to sleep")
    before = newest(tmp_path)
    standby.send(signal.SIGTERM)
    assert "the standby driver has stopped; it has written nothing" in standby.succeed()
    assert newest(tmp_path) == before and shown(tmp_path) == []
    first.send(signal.SIGCONT)
    feed.add()
    feed.arrives()


def test_a_driver_that_restarts_does_not_take_the_app_back(start: Start, feed: Feed, tmp_path: Path) -> None:
    feed.add()
    first = start("first", 5)
    feed.arrives()
    standby = start("standby", 5)
    standby.wait_for("standing by")
    write(tmp_path / "in" / "99999999.jsonl", [{"id": -1, "key": "k0", "value": 0, "fail": first.pid}])
    standby.wait_for("taking over: its owner has stopped")
    assert first.wait() == 3 and "Fenced: app 'totals'" in first.output
    eventually(lambda: len(held(tmp_path / "out")) == feed.rows + 1, "the row that failed")
    assert standby.process.poll() is None


def test_a_standby_driver_whose_program_does_not_fit_the_state_says_so_while_the_first_runs(
    start: Start, feed: Feed, tmp_path: Path
) -> None:
    feed.add()
    first = start("first")
    feed.arrives()
    other = mp.App("totals", str(tmp_path / "state"), partitions=2)
    other.stream("rows", mp.sources.rows([])).key_by("key").aggregate("total", n=mp.count())
    program = mp.lowlevel.program(other)
    standby = Standby(program, open_storage(other.state_dir), SystemClock())
    with pytest.raises(mp.errors.Incompatible, match="step 'total' is of kind"):
        standby.wait(threading.Event())
    feed.add()
    feed.arrives()
    assert first.process.poll() is None


def test_a_standby_driver_whose_ledger_is_gone_does_not_begin_anew(start: Start, feed: Feed, tmp_path: Path) -> None:
    feed.add()
    first = start("first")
    feed.arrives()
    standby = start("standby")
    standby.wait_for("standing by")
    first.send(signal.SIGSTOP)
    os.rename(tmp_path / "state" / "totals" / "ledger", tmp_path / "elsewhere")
    assert standby.wait() == 3
    assert "Fenced: app 'totals'" in standby.output and "watched is gone" in standby.output
    assert not (tmp_path / "state" / "totals" / "ledger").exists()


@pytest.mark.timeout(0)
def test_kill_9_of_drivers_again_and_again_with_a_standby_beside_loses_and_doubles_nothing(
    start: Start, feed: Feed, tmp_path: Path
) -> None:
    print(f"\nMILLPOND_KILL_SEED={SEED} MILLPOND_KILL_ROUNDS={ROUNDS}")
    chance = random.Random(SEED)
    feed.add()
    running = [start("standby"), start("standby")]
    asleep: list[Program] = []
    for _ in range(ROUNDS):
        feed.arrives()
        owner = eventually(lambda: owner_among(running, tmp_path), "an owner")
        for one in running:
            if one is not owner:
                one.wait_for("standing by")
        if asleep and chance.random() < 0.5:  # only now: one that wakes before it is replaced is still the owner
            asleep.pop().send(signal.SIGCONT)
        feed.add(chance.randrange(1, 400))
        time.sleep(chance.uniform(0.0, 0.5))
        if chance.random() < 0.3:
            owner.send(signal.SIGSTOP)
            asleep.append(owner)
        else:
            owner.kill()
        running.remove(owner)
        running.append(start("standby"))
    feed.add()
    feed.arrives()
    owner = eventually(lambda: owner_among(running, tmp_path), "an owner")
    for one in asleep:
        one.send(signal.SIGCONT)
    for one in sorted(running, key=lambda one: one is owner):  # those that wait first, so that none takes over
        if one is not owner:
            one.wait_for("standing by")
        one.send(signal.SIGTERM)
        one.succeed()
    feed.is_counted_once()


def test_a_state_that_no_other_process_reaches_needs_no_standby_driver() -> None:
    with pytest.raises(mp.errors.InvalidUse, match="no other process reaches state_dir 'memory://'"):
        mp.App("orders", "memory://").run(standby=True)
    with pytest.raises(mp.errors.InvalidUse, match="expected True or False, got 1"):
        mp.App("orders").run(standby=1)  # type: ignore[arg-type]


class Failing:
    """A storage that is unavailable for some calls, and counts them."""

    def __init__(self, inner: Any, times: int) -> None:
        self._inner, self.url, self.left = inner, inner.url, times

    def __getattr__(self, name: str) -> Any:
        if self.left and name in ("get", "list"):
            self.left -= 1
            raise mp.errors.Unavailable("the bucket does not answer", retry_after=0.01)
        return getattr(self._inner, name)


def test_a_standby_driver_waits_for_a_storage_that_is_unavailable(start: Start, feed: Feed, tmp_path: Path) -> None:
    feed.add()
    first = start("first")
    feed.arrives()
    app, stop = standby_totals.make_app(tmp_path), threading.Event()
    storage = Failing(open_storage(app.state_dir), 3)
    standby = Standby(mp.lowlevel.program(app), storage, SystemClock(), 2, lambda _: stop.set())
    assert standby.wait(stop) is None  # it was stopped when it warmed up, after its first observation
    assert storage.left == 0
    assert first.process.poll() is None


def test_a_standby_driver_whose_cluster_has_no_room_yet_watches_the_owner_all_the_same(
    start: Start, feed: Feed, tmp_path: Path
) -> None:
    feed.add()
    first = start("first")
    feed.arrives()
    app, began, has_room = standby_totals.make_app(tmp_path), threading.Event(), threading.Event()

    def keep_warm(partitions: int | None) -> None:
        began.set()
        has_room.wait()

    standby = Standby(mp.lowlevel.program(app), open_storage(app.state_dir), SystemClock(), 2, keep_warm)
    killer = threading.Thread(target=lambda: (began.wait(), first.kill()))
    killer.start()
    try:
        found = standby.wait(threading.Event())
    finally:
        has_room.set()
        killer.join()
    assert found is not None and found.why == "the process of its owner is gone"


def test_a_standby_driver_that_can_start_no_worker_says_so_while_the_first_runs(
    start: Start, feed: Feed, tmp_path: Path
) -> None:
    feed.add()
    first = start("first")
    feed.arrives()

    def keep_warm(partitions: int | None) -> None:
        raise mp.errors.InvalidUse("a Python worker of Spark could not be started")

    app = standby_totals.make_app(tmp_path)
    standby = Standby(mp.lowlevel.program(app), open_storage(app.state_dir), SystemClock(), 2, keep_warm)
    with pytest.raises(mp.errors.InvalidUse, match="could not be started"):
        standby.wait(threading.Event())
    assert first.process.poll() is None
    assert shown(tmp_path) == []


# --- the files ---


def test_an_owner_sees_a_standby_driver_for_as_long_as_its_file_changes() -> None:
    storage, clock, other = open_storage("memory://"), ManualClock(), ManualClock(start=5.0)
    file = StandbyFile(storage, "orders", "s1", other)  # the clock of another machine
    watch = StandbyWatch(storage, "orders", clock)
    assert not watch.look()
    file.write(3)
    assert watch.look()
    clock.advance(STALE_SECONDS)
    assert not watch.look()
    other.advance(1.0)
    file.write(4)
    assert watch.look()
    file.remove()
    assert not watch.look()


def test_a_file_that_a_dead_standby_driver_has_left_is_removed_at_last() -> None:
    storage, clock = open_storage("memory://"), ManualClock()
    StandbyFile(storage, "orders", "s1", clock).write(3)
    watch = StandbyWatch(storage, "orders", clock)
    watch.look()
    clock.advance(LEFT_SECONDS - 1)
    watch.look()
    assert list(storage.list("orders/standby-drivers"))
    clock.advance(1)
    watch.look()
    assert not list(storage.list("orders/standby-drivers"))


def test_a_damaged_file_of_a_standby_driver_counts_for_nothing() -> None:
    storage, clock = open_storage("memory://"), ManualClock()
    StandbyFile(storage, "orders", "s1", clock).write(3)
    assert len(standby_drivers(storage, "orders", clock)) == 1
    path = Paths("orders").standby_driver("s1")
    storage.put(path, (storage.get(path) or b"").replace(b'"number":3', b'"number":4'))
    assert standby_drivers(storage, "orders", clock) == []
    assert not StandbyWatch(storage, "orders", clock).look()
