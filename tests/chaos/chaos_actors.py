"""What the processes of a chaos round do, each in a process of its own.

Run as a script it does one of them: `python chaos_actors.py <folder> <log> <role> [arguments as JSON]`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import json
import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import millpond as mp
from millpond.clock import SystemClock
from millpond.driver.commit import Driver
from millpond.driver.loop import Settings, run_driver
from millpond.driver.settings import Controls, DriverSettings
from millpond.errors import Fenced, InvalidUse, MillpondError
from millpond.runtimes.local import LocalRuntime
from millpond.storage import open_storage

NAME = "chaos"
SINKS = ("totals", "counts", "closed")
WINDOW = 40
MAX_ROWS = 25  # of a batch

Row = dict[str, Any]


def add(key: str, row: Row, total: int) -> tuple[Row, int]:
    total += row["value"]
    return {"id": row["id"], "key": key, "total": total}, total


def third(row: Row) -> int:
    return int(row["id"]) % 3


def make_app(folder: Path, *, state: str = "state", sinks: str = "out", local: str = "local") -> mp.App:
    """Running totals, counts of them in a second stage, and windows: three file sinks of two formats."""
    app = mp.App(NAME, str(folder / state), local_dir=str(folder / local), keep=8, compact_every=3)
    rows = app.stream("rows", mp.sources.files(folder / "in"), timestamp="at")
    totals = rows.key_by("key").stateful_map("total", add, initial=0)
    totals.to("totals", mp.sinks.files(folder / sinks / "totals"))
    thirds = totals.key_by(third=third).aggregate("thirds", n=mp.count())
    thirds.to("counts", mp.sinks.files(folder / sinks / "counts", format="parquet"))
    windows = rows.key_by("key").window("windows", mp.tumbling(WINDOW), grace=mp.NO_GRACE).aggregate(n=mp.count())
    windows.to("closed", mp.sinks.files(folder / sinks / "closed"))
    return app


def drive(
    folder: Path,
    *,
    until: Any = None,
    ahead: bool = False,
    take_back: list[str] | None = None,
    at: tuple[str, str, int, str] | None = None,
    spark: bool = False,
    state: str = "state",
    sinks: str = "out",
    local: str = "local",
) -> None:
    """Run the app until it is stopped, or to the end of its input.

    `at` is a crash point of the protocol, how often it is passed before, and the signal that the driver sends itself
    there: SIGSTOP, until someone wakes it, or SIGKILL.
    """
    app = make_app(folder, state=state, sinks=sinks, local=local)
    how: dict[str, Any] = {"take_back": take_back} if take_back else {}
    settings = Settings(until, every=0.02, max_rows=MAX_ROWS)
    hook = None if at is None else _signal_itself(*at)
    if spark:
        return mp.lowlevel.run_with(app, Settings(until, every=0.05, max_rows=MAX_ROWS * 4), hook=hook, **how)
    stop, clock, storage = threading.Event(), SystemClock(), open_storage(app.state_dir)
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    def make() -> Driver:
        return Driver.start(
            mp.lowlevel.program(app),
            LocalRuntime(storage, clock, ahead=ahead),
            storage,
            clock,
            DriverSettings(
                partitions=app.partitions, home=app.local_dir, keep=app.keep, compact_every=app.compact_every, **how
            ),
            Controls(stop=stop, hook=hook),
        )

    run_driver(make, settings, stop, clock)


def _signal_itself(step: str, when: str, passed: int, name: str) -> Callable[[str, str], None]:
    seen = itertools.count()

    def hook(at: str, moment: str) -> None:
        if (at, moment) == (step, when) and next(seen) == passed:
            leads = os.getpgrp() == os.getpid()  # a group that holds the JVM and the workers, too
            os.kill(-os.getpid() if leads else os.getpid(), signal.Signals[name])

    return hook


def _begun(folder: Path) -> mp.App | None:
    """The app, if it has begun."""
    return make_app(folder) if any((folder / "state" / NAME / "ledger").glob("*.json")) else None


def rescale(folder: Path, *, partitions: int, force: bool) -> None:
    app = _begun(folder)
    if app is not None:
        app.rescale(partitions, force=force, timeout=20.0)


def compact(folder: Path, *, force: bool) -> None:
    app = _begun(folder)
    if app is not None:
        app.compact(force=force)


def rollback(folder: Path, *, back: int, force: bool) -> None:
    app = _begun(folder)
    newest = None if app is None else mp.open(app.state_dir, NAME).newest
    if app is not None and newest is not None:
        app.rollback(max(newest.born + 1, newest.number - back), force=force)


def savepoint(folder: Path, *, name: str) -> None:
    app = _begun(folder)
    if app is not None:
        app.savepoint(folder / "saved" / name)
        (folder / "saved" / f"{name}.done").touch()


def verify(folder: Path) -> None:
    app = _begun(folder)
    if app is not None:
        app.verify()  # beside a driver it may see files go; it must not raise


def copy(folder: Path) -> None:
    """Copy the state directory as the documentation says: the ledger first, and the rest after it."""
    source, target = folder / "state" / NAME, folder / "copying" / NAME
    shutil.rmtree(folder / "copying", ignore_errors=True)
    for root in (source / "ledger", source):
        for file in sorted(root.rglob("*")):
            to = target / file.relative_to(source)
            if file.is_file() and not file.name.startswith(".") and not to.exists():
                to.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileNotFoundError):
                    shutil.copy(file, to)
    if any((target / "ledger").glob("*.json")):
        with contextlib.suppress(OSError):
            os.rename(folder / "copying", folder / "copy")  # the first one that is complete stays


def read(folder: Path, *, times: int) -> None:
    """Read the state again and again; each time it must be that of some prefix of the input."""
    for _ in range(times):
        app = _begun(folder)
        newest = None if app is None else mp.open(app.state_dir, NAME).newest
        if app is None or newest is None or "total" not in newest.steps:
            continue
        held = dict(app.state("total").items())
        totals: dict[str, int] = {}
        for row in [{"key": "", "value": 0}, *rows_of(folder)]:
            totals[row["key"]] = totals.get(row["key"], 0) + row["value"]
            if sum(totals.values()) >= sum(held.values()):
                break
        totals.pop("", None)
        if held != totals:
            raise AssertionError(f"a reader saw {held}, which is the state of no prefix of the input: {totals}")


def rows_of(folder: Path) -> list[Row]:
    """The whole input, in its order."""
    files = sorted(file for file in (folder / "in").iterdir() if not file.name.startswith("."))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


ROLES = {
    each.__name__: each for each in (drive, rescale, compact, rollback, savepoint, verify, copy, read)
}  # fmt: skip
EXPECTED = (Fenced, InvalidUse)  # what may become of an actor that meets another one


def act(folder: str, log: str, role: str, how: dict[str, Any]) -> None:
    """Do it, and write how it ended to the log's last line."""
    with open(log, "ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        faulthandler.enable(file)
        end = "done"
        try:
            ROLES[role](Path(folder), **how)
        except EXPECTED as error:
            end = f"{type(error).__name__}: {error}"
        except BaseException as error:
            kind = "error" if isinstance(error, MillpondError) else "raw error"
            file.write(traceback.format_exc().encode())
            end = f"{kind}: {type(error).__name__}: {error}"
        file.write(f"\nEND {json.dumps(end)}\n".encode())
        os._exit(0)  # whatever threads are left: a process that has ended has ended


if __name__ == "__main__":
    act(sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4]))
