"""How long an app stands still when its driver is lost: with a standby driver, and with a cold start.

Drivers run in processes of their own, on a session of two cores, with a small batch every 100 ms. From the signal to
the first commit of another driver:

- standby: kill -9 of a driver and its JVM on the machine of the standby driver, which sees that the process is gone;
- silent: SIGSTOP of the driver, which shows the standby driver what it sees of another machine: silence;
- cold: kill -9, and a new driver is started at the same moment.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import millpond as mp
from millpond.clock import SystemClock
from millpond.log.heartbeat import WATCHED_BEAT_SECONDS, read_beat
from millpond.log.ledger import Ledger
from millpond.log.paths import Paths
from millpond.log.record import Record
from millpond.log.standby_drivers import standby_drivers
from millpond.storage import open_storage

if TYPE_CHECKING:
    from harness import Bench

PATIENCE = 300.0
PAUSE = 0.02
WARM_BATCHES = 5  # of the first driver, before it is killed
Way = Literal["standby", "silent", "cold"]


def against_cold_start(bench: Bench) -> None:
    found: dict[Way, list[float]] = {"standby": [], "silent": [], "cold": []}
    for _ in range(bench.rounds(3)):
        for way, seconds in found.items():
            seconds.append(_lose_driver(bench.new_folder(f"takeover-{way}"), way))
    standby, silent, cold = (statistics.median(seconds) for seconds in found.values())
    bench.note(
        "driver lost, from kill -9 to the first commit of the next: standby driver on this machine / cold start",
        f"{standby:.1f} / {cold:.1f} s",
    )
    bench.note("driver silent, from SIGSTOP to the first commit of a standby driver", f"{silent:.1f} s")


def _lose_driver(folder: Path, way: Way) -> float:
    """Run an app, lose its driver, and return the seconds to the first commit of another one."""
    (folder / "in").mkdir(parents=True)
    storage = open_storage(str(folder / "state"))
    ledger = Ledger(storage, "bench", SystemClock())
    with contextlib.ExitStack() as ending:
        first = ending.enter_context(_process(folder, "first"))
        _wait(lambda: _feed(folder) and (_newest_commit(ledger) or -1) > WARM_BATCHES, first)
        if way != "cold":
            standby = ending.enter_context(_process(folder, "standby"))
            _wait(lambda: bool(standby_drivers(storage, "bench", SystemClock())), standby)
            _wait(lambda: _beats_often(storage), first)
            time.sleep(2.0)  # the standby driver warms up after it is shown
        owner = ledger.newest()
        began = time.monotonic()
        os.killpg(first.pid, signal.SIGSTOP if way == "silent" else signal.SIGKILL)
        if way == "cold":
            standby = ending.enter_context(_process(folder, "first"))
        assert owner is not None
        _wait(lambda: _feed(folder) and _is_committed_by_other(ledger, owner), standby)
        return time.monotonic() - began


@contextlib.contextmanager
def _process(folder: Path, role: str) -> Iterator[subprocess.Popen[bytes]]:
    """A driver at the head of a process group with its JVM; the group is killed at the end."""
    with open(folder / f"{role}-{time.monotonic_ns()}.log", "wb") as log:
        started = subprocess.Popen(
            [sys.executable, __file__, str(folder), role], stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def _feed(folder: Path) -> bool:
    """Add a few rows, if the last ones are older than a batch."""
    number = len(list((folder / "in").glob("*.jsonl")))
    newest = folder / "in" / f"{number - 1:06d}.jsonl"
    if number == 0 or time.time() - newest.stat().st_mtime > 0.1:
        rows = [{"key": f"k{n}", "value": n} for n in range(100)]
        hidden = folder / "in" / ".next"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        hidden.rename(folder / "in" / f"{number:06d}.jsonl")
    return True


def _newest_commit(ledger: Ledger) -> int | None:
    newest = ledger.newest()
    return None if newest is None else newest.number


def _beats_often(storage: Any) -> bool:
    beat = read_beat(storage, Paths("bench").heartbeat)
    return beat is not None and beat.every <= WATCHED_BEAT_SECONDS


def _is_committed_by_other(ledger: Ledger, before: Record) -> bool:
    newest = ledger.newest(near=before.number)
    return newest is not None and newest.driver != before.driver and newest.kind == "commit"


def _wait(is_so: Any, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > until or process.poll() is not None:
            raise SystemExit(f"a driver did not get there; its exit code is {process.poll()}")
        time.sleep(PAUSE)


def _add(key: str, row: dict[str, Any], total: int) -> tuple[dict[str, Any], int]:
    return {"key": key, "total": total + row["value"]}, total + row["value"]


def _run_driver(folder: Path, role: str) -> None:
    from on_spark import a_session

    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    app = mp.App("bench", str(folder / "state"), partitions=2, local_dir=str(folder / "local"))
    rows = app.stream("rows", mp.sources.files(folder / "in"))
    rows.key_by("key").stateful_map("total", _add, initial=0).to("out", mp.sinks.discard())
    app.run(spark=a_session(), every="100ms", standby=role == "standby")


def _end_with(parent: int) -> None:
    """End this driver and its JVM when the benchmark has ended, in whatever way."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.killpg(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    _run_driver(Path(sys.argv[1]), sys.argv[2])
