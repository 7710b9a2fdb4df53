"""kill -9 of drivers, JVMs and Python workers at random moments: nothing is lost, nothing doubled."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from folders import by_key, held, write
from processes import Program, descendants, eventually, workers

import millpond as mp

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("MILLPOND_KILL_ROUNDS", "20"))
SEED = int(os.environ.get("MILLPOND_KILL_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
ROWS = 600  # a round


def newest(folder: Path) -> int:
    with contextlib.suppress(mp.errors.InvalidUse):
        record = mp.open(str(folder / "state"), "totals").newest
        return -1 if record is None else record.number
    return -1


def fold(rows: list[dict[str, Any]]) -> tuple[dict[str, int], dict[str, list[int]]]:
    """What state and sink must hold: the totals, and every total on the way."""
    totals: dict[str, int] = {}
    steps: dict[str, list[int]] = {}
    for row in rows:
        totals[row["key"]] = totals.get(row["key"], 0) + row["value"]
        steps.setdefault(row["key"], []).append(totals[row["key"]])
    return totals, steps


@pytest.mark.timeout(0)
def test_kill_9_of_drivers_and_workers_loses_nothing_and_doubles_nothing(
    program: Callable[..., Program], tmp_path: Path
) -> None:
    print(f"\nMILLPOND_KILL_SEED={SEED} MILLPOND_KILL_ROUNDS={ROUNDS}")
    chance = random.Random(SEED)
    rows: list[dict[str, Any]] = []

    def feed(number: int) -> None:
        fresh = [
            {"id": len(rows) + i, "key": f"k{chance.randrange(50)}", "value": chance.randrange(100)}
            for i in range(ROWS)
        ]
        rows.extend(fresh)
        write(tmp_path / "in" / f"{number:05d}.jsonl", fresh)

    feed(0)
    running = program("totals", tmp_path)
    killed = {"driver": 0, "jvm": 0, "worker": 0}
    for number in range(1, ROUNDS + 1):
        before = newest(tmp_path)
        feed(number)
        eventually(lambda before=before: newest(tmp_path) > before + 1, "a commit")  # type: ignore[misc]
        feed(1000 + number)
        time.sleep(chance.uniform(0.0, 1.5))
        what = "driver" if number % 6 == 0 else "jvm" if number % 10 == 0 else "worker"
        if what == "worker":
            there = eventually(lambda pid=running.pid: workers(pid), "a Python worker")  # type: ignore[misc]
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(there), signal.SIGKILL)
        elif what == "jvm":
            for pid in descendants(running.pid, "java"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            assert running.wait() != 0, "a driver whose JVM is gone says so"
            running = program("totals", tmp_path)
        else:
            running.kill()
            running = program("totals", tmp_path)
        killed[what] += 1
    feed(2 * ROUNDS + 5000)  # so that the last one to start has something to do, and is seen to do it
    rows.sort(key=lambda row: row["id"])
    # Files are read in the order of their names among those that are there, so the order of a key is
    # that in which the sink got it; what must hold is each row once, and totals that add up on the way.
    eventually(lambda: len(held(tmp_path / "out")) >= len(rows), "all rows")
    running.send(signal.SIGTERM)
    running.succeed()
    out = held(tmp_path / "out")
    assert sorted(row["id"] for row in out) == [row["id"] for row in rows], killed
    value = {row["id"]: row["value"] for row in rows}
    in_order = [{"key": row["key"], "value": value[row["id"]]} for row in out]
    totals, steps = fold(in_order)
    assert by_key(out, "key", "total") == steps
    state = mp.open(str(tmp_path / "state"), "totals").state("total")
    assert dict(state.items()) == totals == fold(rows)[0]
    assert killed["driver"] + killed["worker"] + killed["jvm"] == ROUNDS


def test_a_driver_that_has_nothing_to_do_notices_that_its_jvm_is_gone(
    program: Callable[..., Program], tmp_path: Path
) -> None:
    write(tmp_path / "in" / "a.jsonl", [{"id": 1, "key": "k", "value": 5}])
    running = program("totals", tmp_path)
    eventually(lambda: len(held(tmp_path / "out")) == 1, "the row")
    time.sleep(1.0)
    for pid in descendants(running.pid, "java"):
        os.kill(pid, signal.SIGKILL)
    assert running.wait(60.0) != 0
    assert "Spark is gone" in running.output
