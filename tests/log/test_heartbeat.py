"""The heartbeat: who seems to run an app, how that ends, and how to get past it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millpond as mp
from millpond.clock import ManualClock, SystemClock
from millpond.driver.commit import Driver
from millpond.driver.heartbeat_thread import HeartbeatThread
from millpond.driver.loop import Settings, run_driver
from millpond.driver.settings import DriverSettings
from millpond.log.checked import read_checked, write_checked
from millpond.log.heartbeat import FRESH_SECONDS, Heartbeat, seems_running
from millpond.runtimes.local import LocalRuntime
from millpond.storage import open_storage


def an_app(place: Path) -> mp.App:
    app = mp.App("beating", str(place / "state"), partitions=1, local_dir=str(place / "local"))
    rows = app.stream("rows", mp.sources.files(place / "in.jsonl")).key_by("key")
    rows.stateful_map("total", lambda key, row, n: (None, n + 1), initial=0).to("out", mp.sinks.discard())
    return app


def a_driver(place: Path) -> Driver:
    app, storage = an_app(place), open_storage(str(place / "state"))
    runtime = LocalRuntime(storage, SystemClock())
    return Driver.start(
        mp.lowlevel.program(app), runtime, storage, SystemClock(), DriverSettings(partitions=1, home=app.local_dir)
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "in.jsonl").write_text(json.dumps({"key": "a"}) + "\n")
    run_driver(lambda: a_driver(tmp_path), Settings(until="caught-up"), threading.Event(), SystemClock())
    return tmp_path


def beat_file(place: Path) -> Path:
    return place / "state" / "beating" / "heartbeat.json"


def write(place: Path, **other: Any) -> None:
    """The heartbeat of this process, with something else in it."""
    storage = open_storage(str(place / "state"))
    Heartbeat(storage, "beating", "someone", SystemClock()).beat(3)
    found = json.loads(read_checked(storage, "beating/heartbeat.json") or b"")
    write_checked(storage, "beating/heartbeat.json", found | other)


def running(place: Path) -> bool:
    return seems_running(open_storage(str(place / "state")), "beating", SystemClock()) is not None


# --- who runs ---


def test_a_stopped_app_has_no_heartbeat(place: Path) -> None:
    assert not beat_file(place).exists()


def test_a_process_that_was_killed_is_not_taken_for_one_that_got_its_id(place: Path) -> None:
    """As in a container, where the first process is always number 1: the id is our own, the process is not."""
    write(place)
    assert running(place)
    write(place, started="1")
    assert not running(place)
    assert an_app(place).rescale(2).startswith("1 to 2")


def test_a_killed_process_of_this_machine_is_noticed_at_once(place: Path) -> None:
    code = (
        "import sys; from millpond.log.heartbeat import Heartbeat; from millpond.clock import SystemClock; "
        "from millpond.storage import open_storage; import os, signal; "
        "Heartbeat(open_storage(sys.argv[1]), 'beating', 'd', SystemClock()).beat(1); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(place / "state")], check=False)
    assert beat_file(place).exists() and not running(place)


def test_a_process_that_this_user_may_not_see_is_not_taken_for_dead(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `hidepid`: there is no entry below /proc, and a signal is refused."""

    def refuse(pid: int, which: int) -> None:
        raise PermissionError("Operation not permitted")

    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    write(place, pid=ended.pid)
    assert not running(place)
    monkeypatch.setattr(os, "kill", refuse)
    assert running(place)


def test_a_process_that_lives_but_no_longer_says_so_does_not_run_the_app(place: Path) -> None:
    write(place, time=time.time() - FRESH_SECONDS - 1)
    assert not running(place)
    an_app(place).compact()


def test_of_another_machine_only_the_time_is_known(place: Path) -> None:
    write(place, machine="another", pid=1, started="1")
    assert running(place)
    write(place, machine="another", pid=1, started="1", time=time.time() - FRESH_SECONDS - 1)
    assert not running(place)


def test_a_heartbeat_from_a_clock_that_was_ahead_counts_for_nothing(place: Path) -> None:
    write(place, machine="another boot", time=time.time() + FRESH_SECONDS / 2)
    assert running(place)
    write(place, machine="another boot", time=time.time() + 86_400)
    assert not running(place)
    assert an_app(place).rescale(2).startswith("1 to 2")


def test_a_heartbeat_without_a_checksum_still_counts(place: Path) -> None:
    """As an earlier version wrote it, which may run beside this one."""
    old = {"driver": "d", "host": "h", "pid": 1, "time": time.time(), "number": 3}
    beat_file(place).write_text(json.dumps(old, separators=(",", ":")))
    assert running(place)
    beat_file(place).write_text(json.dumps(old | {"time": time.time() - FRESH_SECONDS - 1}, separators=(",", ":")))
    assert not running(place)


def test_a_damaged_heartbeat_counts_for_nothing(place: Path) -> None:
    write(place)
    whole = beat_file(place).read_bytes()
    for at in range(0, len(whole), 3):
        beat_file(place).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert not running(place), whole[at : at + 10]
    an_app(place).compact()


# --- refusals and force ---

ACTIONS: dict[str, Callable[[mp.App, bool], Any]] = {
    "rollback": lambda app, force: app.rollback(1, force=force),
    "compact": lambda app, force: app.compact(force=force),
    "drop_step": lambda app, force: mp.admin(app.state_dir, app.name).drop_step("total", force=force),
    "clear_state": lambda app, force: app.clear_state(force=force),
    "drop_outputs": lambda app, force: app.drop_outputs("out", force=force),
}


@pytest.mark.parametrize("what", ACTIONS)
def test_the_refusal_says_how_to_get_out_and_force_is_the_way(place: Path, what: str) -> None:
    write(place, time=time.time() - 3)
    text = (
        rf"{what}: app 'beating' is running on \S+, process {os.getpid()}: its last heartbeat is [345] s old. "
        r"Stop it first. If that process is gone, wait 30 s, or say --force \(force=True in Python\)"
    )
    newest = mp.open(str(place / "state"), "beating").newest
    with pytest.raises(mp.errors.InvalidUse, match=text):
        ACTIONS[what](an_app(place), False)
    assert mp.open(str(place / "state"), "beating").newest == newest
    ACTIONS[what](an_app(place), True)
    assert mp.open(str(place / "state"), "beating").newest != newest


# --- the thread ---


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeartbeatThread.__init__, "__defaults__", (0.05,))


class Running:
    """A loop in a thread, as `app.start()` has it."""

    def __init__(self, place: Path, every: float) -> None:
        self.stop, self.error = threading.Event(), ""
        self.drivers: list[Driver] = []
        self._thread = threading.Thread(target=self._run, args=(place, every), daemon=True)
        self._thread.start()
        self.until(lambda: self.drivers and beat_file(place).exists())

    def _run(self, place: Path, every: float) -> None:
        def make() -> Driver:
            self.drivers.append(a_driver(place))
            return self.drivers[-1]

        try:
            run_driver(make, Settings(every=every), self.stop, SystemClock())
        except mp.errors.MillpondError as error:
            self.error = type(error).__name__

    def until(self, what: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 20
        while not what():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def ends(self) -> str:
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.error


def driver_in(place: Path) -> str:
    return json.loads(beat_file(place).read_text())["driver"]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("every", [0.05, 600.0])
def test_an_idle_driver_notices_that_another_owns_the_app(place: Path, every: float) -> None:
    """However long it waits between two looks at its sources; and it leaves the other's heartbeat alone."""
    older = Running(place, every)
    newer = Running(place, 0.05)
    assert older.ends() == "Fenced"
    newer.until(lambda: driver_in(place) == newer.drivers[0].owner.id)
    time.sleep(0.3)
    assert driver_in(place) == newer.drivers[0].owner.id
    newer.stop.set()
    assert newer.ends() == ""
    assert not beat_file(place).exists()


@pytest.mark.usefixtures("quick")
def test_an_idle_driver_notices_that_maintenance_has_claimed_the_app(place: Path) -> None:
    older = Running(place, 600.0)
    an_app(place).rescale(2, force=True)
    assert older.ends() == "Fenced"
    assert not beat_file(place).exists()


@pytest.mark.usefixtures("quick")
def test_a_long_batch_does_not_stop_the_heartbeat(place: Path) -> None:
    release, entered = threading.Event(), threading.Event()
    driver = a_driver(place)
    batch = driver.batch

    def slow(*args: Any, **how: Any) -> bool:
        entered.set()
        release.wait(20)
        return batch(*args, **how)

    driver.batch = slow  # type: ignore[method-assign]
    thread = threading.Thread(
        target=lambda: run_driver(lambda: driver, Settings(until="caught-up"), threading.Event(), SystemClock())
    )
    thread.start()
    assert entered.wait(20)
    times = set()
    for _ in range(50):
        times.add(json.loads(beat_file(place).read_text())["time"])
        time.sleep(0.02)
    release.set()
    thread.join(20)
    assert len(times) > 3


def test_a_clock_set_back_does_not_make_a_running_app_silent(place: Path) -> None:
    clock, storage = ManualClock(), open_storage(str(place / "state"))
    beating = Heartbeat(storage, "beating", "d", clock)
    beating.beat(1)
    clock.step(-3600)
    beating.beat(2)
    found = seems_running(storage, "beating", clock)
    assert found is not None and found.number == 2


def test_a_mistake_in_what_a_heartbeat_reports_does_not_end_the_heartbeat(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A standby driver would take over an app that runs."""
    driver, calls = a_driver(place), threading.Semaphore(0)

    def report() -> None:
        calls.release()
        raise RuntimeError("dictionary changed size during iteration")

    with HeartbeatThread(driver.storage, driver.owner, SystemClock(), every=0.01) as beating:
        beating.follow(report)
        assert all(calls.acquire(timeout=20) for _ in range(3))
    assert "a heartbeat has failed; the next one follows" in caplog.text
    driver.release()
