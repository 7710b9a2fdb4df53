"""A driver put to sleep at any step, replaced, and woken up: the newer one owns the app, nothing is lost or doubled."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any, Literal

import pytest

import millpond as mp
from millpond.clock import SystemClock
from millpond.driver.commit import STEPS, Driver
from millpond.driver.settings import Controls, DriverSettings, Hook
from millpond.runtimes.local import LocalRuntime
from millpond.sinks.base import Delivery
from millpond.sources.base import Limit
from millpond.storage import open_storage

ROWS: list[Any] = [{"id": i, "key": f"k{i % 7}", "value": i} for i in range(60)]
# Only a streaming DataFrame is told anything in the middle of `acknowledge`.
POINTS = [(s, w) for s in STEPS for w in ("before", "during", "after") if (s, w) != ("acknowledge", "during")]


class DriverFiles:
    """A file sink that the driver calls, so that it can fall asleep in the middle of a delivery."""

    def __init__(self, folder: Path) -> None:
        self._files = mp.sinks.files(folder)
        self.where: Literal["driver", "workers", "session"] = "driver"

    def deliver(self, rows: list[Any], delivery: Delivery) -> None:
        self._files.deliver(rows, delivery)


def add(key: str, row: dict[str, Any], total: int) -> tuple[dict[str, Any], int]:
    total += row["value"]
    return {"id": row["id"], "key": key, "total": total}, total


def a_driver(folder: Path, hook: Hook | None = None) -> Driver:
    app = mp.App("sleepy", str(folder / "state"), partitions=2)
    totals = app.stream("rows", mp.sources.files(folder / "in")).key_by("key").stateful_map("total", add, initial=0)
    totals.to("out", DriverFiles(folder / "out"))
    totals.key_by(lambda row: row["id"] % 3).aggregate("thirds", n=mp.count()).to("counts", mp.sinks.memory())
    storage, clock = open_storage(str(folder / "state")), SystemClock()
    runtime = LocalRuntime(storage, clock)
    home = str(folder / "local")
    return Driver.start(
        mp.lowlevel.program(app),
        runtime,
        storage,
        clock,
        DriverSettings(partitions=2, home=home, threaded=False),
        Controls(hook=hook),
    )


def run_to_the_end(driver: Driver) -> None:
    while driver.batch(Limit(10, 1 << 30)):
        pass
    driver.release()


def sleeper(folder: Path, step: str, when: str, end: Any) -> None:
    """The first driver: it falls asleep at its third batch, and says how it ended when it is woken."""
    seen = 0

    def hook(at: str, moment: str) -> None:
        nonlocal seen
        seen += (at, moment) == ("plan", "before")
        if seen == 3 and (at, moment) == (step, when):
            seen = 99
            os.kill(os.getpid(), signal.SIGSTOP)

    try:
        run_to_the_end(a_driver(folder, hook))
    except mp.errors.Fenced:
        end.put("fenced")
    else:
        end.put("done")


def is_asleep(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


@pytest.mark.parametrize(("step", "when"), POINTS)
def test_a_driver_that_slept_through_its_replacement_is_fenced_and_has_done_no_harm(
    tmp_path: Path, step: str, when: str
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    forked = multiprocessing.get_context("fork")
    end = forked.Queue()
    first = forked.Process(target=sleeper, args=(tmp_path, step, when, end), daemon=True)
    first.start()
    assert first.pid is not None
    try:
        until = time.monotonic() + 60
        while not is_asleep(first.pid):
            assert first.is_alive() and time.monotonic() < until, "the first driver was to fall asleep"
            time.sleep(0.01)
        run_to_the_end(a_driver(tmp_path))
        os.kill(first.pid, signal.SIGCONT)
        assert end.get(timeout=60) == "fenced"
        first.join(60)
    finally:
        first.kill()
    out = [json.loads(line) for f in sorted((tmp_path / "out").iterdir()) for line in f.read_text().splitlines()]
    assert sorted(row["id"] for row in out) == [row["id"] for row in ROWS]
    totals: dict[str, int] = {}
    for row in ROWS:
        totals[row["key"]] = totals.get(row["key"], 0) + row["value"]
    app = mp.open(str(tmp_path / "state"), "sleepy")
    assert dict(app.state("total").items()) == totals
    assert {k: v["n"] for k, v in app.state("thirds").items()} == {0: 20, 1: 20, 2: 20}
