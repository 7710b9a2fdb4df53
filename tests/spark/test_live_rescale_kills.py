"""Rescaling under load, with kill -9 of drivers and Python workers at random: nothing is lost, nothing doubled."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from folders import by_key, held, write
from processes import Program, eventually, workers

import millpond as mp

pytestmark = pytest.mark.slow

SEED = int(os.environ.get("MILLPOND_KILL_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
LONG = "MILLPOND_KILL_ROUNDS" in os.environ  # `make kill`
SEEDS = int(os.environ.get("MILLPOND_RESCALE_SEEDS", "10" if LONG else "1"))
MOST_AHEAD = 1_000  # rows that the app has not read yet
NUMBERS = (5, 3, 8)  # partitions, one after the other; the program says 2


class Load:
    """Writes rows into the input folder until it is stopped."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.rows: list[dict[str, Any]] = []
        self._folder, self._chance = folder, chance
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._feed()
        self._thread.start()

    def _work(self) -> None:
        while not self._stop.wait(0.25):
            if len(self.rows) - len(held(self._folder / "out")) < MOST_AHEAD:  # on a slow machine it would only grow
                self._feed()

    def _feed(self) -> None:
        chance, first = self._chance, len(self.rows)
        fresh = [
            {"id": first + i, "key": f"k{chance.randrange(50)}", "value": chance.randrange(100)} for i in range(60)
        ]
        self.rows += fresh
        write(self._folder / "in" / f"{first:08d}.jsonl", fresh)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def rescale(folder: Path, partitions: int, said: list[str]) -> None:
    """What an operator does: the command again, until it has worked."""
    while True:
        with contextlib.suppress(mp.errors.MillpondError):
            said.append(mp.admin(str(folder / "state"), "totals").rescale(partitions))
            return
        time.sleep(0.2)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("number", range(SEEDS))
def test_kill_9_while_a_running_app_is_rescaled_loses_nothing_and_doubles_nothing(
    program: Callable[..., Program], tmp_path: Path, number: int
) -> None:
    seed = SEED + number
    print(f"\nMILLPOND_KILL_SEED={seed} MILLPOND_RESCALE_SEEDS=1")
    chance, said = random.Random(seed), list[str]()
    kills = [chance.choice(["driver", "worker", "worker", "nothing"]) for _ in NUMBERS]
    if not LONG:  # a JVM starts slowly
        kills = chance.sample(["driver", "worker", "nothing"], 3)
    load = Load(tmp_path, random.Random(seed))
    running = program("totals", tmp_path)
    try:
        eventually(lambda: held(tmp_path / "out"), "the first output")
        for number, what in zip(NUMBERS, kills, strict=True):
            before = len(held(tmp_path / "out"))
            eventually(lambda before=before: len(held(tmp_path / "out")) > before, "a driver at work")  # type: ignore[misc]
            command = threading.Thread(target=rescale, args=(tmp_path, number, said))
            command.start()
            time.sleep(chance.uniform(0.0, 2.5))
            if what == "worker":
                there = eventually(lambda pid=running.pid: workers(pid), "a Python worker")  # type: ignore[misc]
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(there), signal.SIGKILL)
            elif what == "driver":
                running.kill()
                running = program("totals", tmp_path)
            command.join(240.0)
            if running.process.poll() is not None:  # fenced: the command took the app for stopped while it started
                running = program("totals", tmp_path)
            assert not command.is_alive(), f"the app was not rescaled to {number}\n{running.output[-4000:]}"
    finally:
        load.stop()
    print(kills, *said, sep="\n")
    rows = load.rows
    eventually(lambda: len(held(tmp_path / "out")) >= len(rows), "all rows")
    running.send(signal.SIGTERM)
    running.succeed()
    newest = mp.open(str(tmp_path / "state"), "totals").newest
    assert newest is not None and newest.partitions == NUMBERS[-1]
    out = held(tmp_path / "out")
    assert sorted(row["id"] for row in out) == [row["id"] for row in rows], kills
    value = {row["id"]: row["value"] for row in rows}
    totals: dict[str, int] = {}
    steps: dict[str, list[int]] = {}
    for row in out:  # in the order in which the sink got them
        totals[row["key"]] = totals.get(row["key"], 0) + value[row["id"]]
        steps.setdefault(row["key"], []).append(totals[row["key"]])
    assert by_key(out, "key", "total") == steps
    assert dict(mp.open(str(tmp_path / "state"), "totals").state("total").items()) == totals
    assert not [path for path in (tmp_path / "state/totals/requests").glob("*") if ".answer." not in path.name]
