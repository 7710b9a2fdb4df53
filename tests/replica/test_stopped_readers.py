"""A reader that is stopped (SIGSTOP, Ctrl-Z) while it brings a shared replica up to date does not hold up the app."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from small_drivers import WHOLE, Lanes, driver_of

import millpond as mp
from millpond.clock import SystemClock
from millpond.driver.commit import Driver
from millpond.replica import host_lock as turns
from millpond.replica import lmdb_store as local
from millpond.replica.lmdb_store import close_below
from millpond.state_view import StateView
from millpond.storage import open_storage

FORK = multiprocessing.get_context("fork")


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


class StopsAt:
    """A storage whose process is stopped when it reads a path that ends or begins so."""

    def __init__(self, place: Path, part: str) -> None:
        self._storage, self._part = open_storage(str(place)), part

    def get(self, path: str) -> bytes | None:
        if self._part and self._part in path:
            self._part = ""
            stop()
        return self._storage.get(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


def an_app(rows: list[Any], asked: list[Any]) -> mp.App:
    app = mp.App("shared", partitions=1)
    stream = app.stream("rows", Lanes({"0": rows}, width=1)).key_by("key")
    stream.stateful_map("total", lambda key, row, total: (None, total + row["value"]), initial=0)
    table = app.table("latest", stream, everywhere=True)
    app.stream("asked", Lanes({"0": asked}, width=1)).lookup("found", table, on="key").to("out", mp.sinks.memory())
    return app


ROWS = [{"key": key, "value": value} for value in range(1, 5) for key in "ab"]


def driver(place: Path, rows: list[Any], asked: list[Any], app: mp.App | None = None) -> Driver:
    return driver_of(app or an_app(rows, asked), open_storage(str(place / "state")), place / "home")


def read(storage: Any, place: Path) -> dict[str, int]:
    return dict(StateView(storage, "shared", "total", SystemClock(), home=str(place / "home")).items())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(turns, "PATIENCE", 1.0)
    first = driver(tmp_path, list(ROWS), [])
    while first.batch(WHOLE):
        pass
    first.release()
    first.close()
    mp.admin(str(tmp_path / "state"), "shared").compact()
    close_below(str(tmp_path))
    yield tmp_path
    close_below(str(tmp_path))


def is_stopped(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


@contextlib.contextmanager
def stopped(work: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """A process that stops in the middle of its work; what is yielded lets it go on and gives what came of it."""
    end = FORK.Queue()
    process = FORK.Process(target=lambda: end.put(work()), daemon=True)
    process.start()
    assert process.pid is not None
    try:
        until = time.monotonic() + 30
        while not is_stopped(process.pid):
            assert process.is_alive() and time.monotonic() < until, "the reader was to be stopped"
            time.sleep(0.01)

        def go_on() -> Any:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGCONT)
            return end.get(timeout=60)

        yield go_on
    finally:
        process.kill()
        process.join()


def in_a_transaction(place: Path) -> dict[str, int]:
    """Stopped with the store's lock in hand, and LMDB's."""
    originals = {name: getattr(local, name) for name in ("_put", "append_table")}

    def stopping(name: str) -> Callable[..., Any]:
        def put(*args: Any) -> Any:
            found = originals[name](*args)
            for each, original in originals.items():
                setattr(local, each, original)
            stop()
            return found

        return put

    for name in originals:
        setattr(local, name, stopping(name))
    return read(open_storage(str(place / "state")), place)


STOPS: dict[str, Callable[[Path], dict[str, int]]] = {
    "fetching a record": lambda place: read(StopsAt(place / "state", "/ledger/000000000000000000"), place),
    "fetching a manifest": lambda place: read(StopsAt(place / "state", "/manifests/"), place),
    "fetching a compacted file": lambda place: read(StopsAt(place / "state", "/steps/total/"), place),
    "in a transaction": in_a_transaction,
}
BUILDING = [(where, False) for where in STOPS]
FOLLOWING = [(where, True) for where in ("fetching a record", "in a transaction")]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("where", "is_built"), BUILDING + FOLLOWING)
def test_the_app_goes_on_beside_a_stopped_reader(place: Path, where: str, is_built: bool) -> None:
    if not is_built:
        shutil.rmtree(place / "home")
    else:  # the replica lacks the newest records
        behind = driver_of(an_app([*ROWS, *ROWS[:2]], []), open_storage(str(place / "state")), place / "elsewhere")
        while behind.batch(WHOLE):
            pass
        behind.release()
        behind.close()
        close_below(str(place))
    extra = 1 if is_built else 0
    with stopped(lambda: STOPS[where](place)) as go_on:
        rows = [*ROWS, *ROWS[:2], {"key": "a", "value": 100}] if is_built else [*ROWS, {"key": "a", "value": 100}]
        app = driver(place, rows, [])
        began = time.monotonic()
        while app.batch(WHOLE):
            pass
        assert time.monotonic() - began < 15
        app.release()
        app.close()
        expected = {"a": 110 + extra, "b": 10 + extra}
        assert read(open_storage(str(place / "state")), place) == expected
        assert go_on() in (expected, {"a": 10 + extra, "b": 10 + extra})
    assert read(open_storage(str(place / "state")), place) == expected
    left = [path.name for path in (place / "home").rglob("building-*")]
    assert not left, "nothing of a build is left"


@pytest.mark.timeout(60)
def test_a_lookup_goes_on_beside_a_worker_stopped_while_it_fetches_the_table(place: Path) -> None:
    def asks() -> Any:
        asked = [{"key": "a"}]
        app = an_app(ROWS, asked)
        one = driver_of(app, StopsAt(place / "state", "/steps/latest/"), place / "home")
        try:
            one.batch(WHOLE)
        except mp.errors.Fenced:
            return "fenced"
        return mp.lowlevel.program(app).sinks["out"].rows  # type: ignore[attr-defined]

    for table in (place / "home").rglob("table-*"):
        shutil.rmtree(table)
    with stopped(asks) as go_on:
        app = an_app(ROWS, [{"key": "a"}])
        other = driver(place, [], [], app)
        other.batch(WHOLE)
        assert mp.lowlevel.program(app).sinks["out"].rows == [{"key": "a", "value": 4}]  # type: ignore[attr-defined]
        other.close()
        assert go_on() == "fenced"


@pytest.mark.timeout(60)
def test_a_builder_that_makes_progress_is_waited_for(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slower than anybody's patience, but never still for so long: the others do not build a second one."""
    monkeypatch.setattr(turns, "PATIENCE", 0.5)

    shutil.rmtree(place / "home")
    started = FORK.Event()

    class Slow(StopsAt):
        def get(self, path: str) -> bytes | None:
            if "/steps/" in path or "/manifests/" in path:
                started.set()
                time.sleep(0.4)
            return self._storage.get(path)

    class Counted(StopsAt):
        fetched = 0

        def get(self, path: str) -> bytes | None:
            self.fetched += "/steps/" in path
            return self._storage.get(path)

    process = FORK.Process(target=lambda: read(Slow(place / "state", ""), place), daemon=True)
    process.start()
    try:
        assert started.wait(30)
        counted = Counted(place / "state", "")
        assert read(counted, place) == {"a": 10, "b": 10}
        assert counted.fetched == 0
    finally:
        process.join(30)
        process.kill()


def test_what_a_killed_builder_left_is_removed_by_the_next(place: Path) -> None:

    shutil.rmtree(place / "home")
    with stopped(lambda: read(StopsAt(place / "state", "/steps/total/"), place)):
        assert list((place / "home").rglob("building-*.lock"))
    assert list((place / "home").rglob("building-*.lock")), "it was killed"
    assert read(open_storage(str(place / "state")), place) == {"a": 10, "b": 10}
    assert not list((place / "home").rglob("building-*"))
