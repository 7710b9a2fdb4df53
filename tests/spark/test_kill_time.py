"""kill -9 over windows, timers, a TTL and a join: no pane, no timer, no pair is lost or comes twice."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from folders import held, write
from processes import Program, descendants, eventually, workers

import millpond as mp

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("MILLPOND_KILL_TIME_ROUNDS", "8"))
SEED = int(os.environ.get("MILLPOND_KILL_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
ROWS = 300  # of each stream, a round
DISORDER, BUCKET, NEAR = 40, 100, 3  # as in the program


def newest(folder: Path) -> int:
    with contextlib.suppress(mp.errors.InvalidUse):
        record = mp.open(str(folder / "state"), "timed").newest
        return -1 if record is None else record.number
    return -1


def expected(rows: list[dict[str, Any]], others: list[dict[str, Any]]) -> tuple[Any, Any, Any]:
    windows: dict[tuple[str, int], list[int]] = {}
    for row in rows:
        windows.setdefault((row["key"], row["at"] // BUCKET), []).append(row["value"])
    per_key: dict[str, list[dict[str, Any]]] = {}
    for other in others:
        per_key.setdefault(other["key"], []).append(other)
    pairs: Counter[tuple[int, int | None]] = Counter()
    for row in rows:
        near = [o["id"] for o in per_key.get(row["key"], []) if abs(o["at"] - row["at"]) <= NEAR]
        pairs.update([(row["id"], other) for other in near] or [(row["id"], None)])
    sums = Counter((k, bucket * BUCKET, len(v), sum(v)) for (k, bucket), v in windows.items())
    timers = Counter((k, bucket, len(v)) for (k, bucket), v in windows.items())
    return sums, timers, pairs


@pytest.mark.timeout(0)
def test_kill_9_loses_and_doubles_no_pane_no_timer_and_no_pair(program: Callable[..., Program], tmp_path: Path) -> None:
    print(f"\nMILLPOND_KILL_SEED={SEED} MILLPOND_KILL_TIME_ROUNDS={ROUNDS}")
    chance = random.Random(SEED)
    sent: dict[str, list[dict[str, Any]]] = {"in": [], "other": []}

    def feed(number: int) -> None:
        for name, rows in sent.items():
            fresh = [
                {
                    "id": len(rows) + i,
                    "key": f"k{chance.randrange(20)}",
                    "value": chance.randrange(100),
                    "at": len(rows) + i + chance.randrange(DISORDER),
                }
                for i in range(ROWS)
            ]
            rows.extend(fresh)
            write(tmp_path / name / f"{number:05d}.jsonl", fresh)

    feed(0)
    running = program("timed", tmp_path)
    for number in range(1, ROUNDS + 1):
        before = newest(tmp_path)
        feed(number)
        eventually(lambda before=before: newest(tmp_path) > before, "a commit")  # type: ignore[misc]
        time.sleep(chance.uniform(0.0, 1.0))
        if number % 3 == 0:
            running.kill()
            running = program("timed", tmp_path)
        elif number % 7 == 0:
            for pid in descendants(running.pid, "java"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            assert running.wait() != 0
            running = program("timed", tmp_path)
        else:
            there = eventually(lambda pid=running.pid: workers(pid), "a Python worker")  # type: ignore[misc]
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(there), signal.SIGKILL)
    feed(ROUNDS + 1)  # so that the last one to start has something to do, and is seen to do it
    eventually(lambda: len(held(tmp_path / "ids")) >= len(sent["in"]), "all rows")
    running.send(signal.SIGTERM)
    running.succeed()
    program("timed", tmp_path, "end").succeed()
    sums, timers, pairs = expected(sent["in"], sent["other"])
    assert held(tmp_path / "late") == []
    assert sorted(row["id"] for row in held(tmp_path / "ids")) == [row["id"] for row in sent["in"]]
    found = Counter((r["key"], r["window_start"], r["n"], r["total"]) for r in held(tmp_path / "windows"))
    assert found == sums
    assert Counter((r["key"], r["bucket"], r["n"]) for r in held(tmp_path / "timers")) == timers
    assert Counter((r["left"], r["right"]) for r in held(tmp_path / "pairs")) == pairs
    opened = mp.open(str(tmp_path / "state"), "timed")
    admin = mp.admin(str(tmp_path / "state"), "timed")
    assert list(opened.state("sums").items()) == []  # what has closed has left
    seen = sum(len(value["seen"]) for _, value in opened.state("once").items())
    assert seen <= 6 * BUCKET + 2 * DISORDER + ROWS  # ids that are over have left, too
    assert admin.verify().ok
