"""Chaos: drivers, admins and readers of one app in real processes, under SIGSTOP, SIGCONT and SIGKILL.

`MILLPOND_CHAOS_ROUNDS` says how many rounds there are, each with a fresh app; without it there are as many as fit into
40 seconds. `MILLPOND_CHAOS_SEED` is the seed of the first round, or "random", and the next ones count on from it: the
seed that a failed round prints runs that round again first.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path

import pytest
from chaos_round import Round

ROUNDS = int(os.environ.get("MILLPOND_CHAOS_ROUNDS", "0"))
SPARK_ROUNDS = int(os.environ.get("MILLPOND_CHAOS_SPARK_ROUNDS", "0"))
GIVEN = os.environ.get("MILLPOND_CHAOS_SEED", "") or "1"
SEED = random.SystemRandom().randrange(1, 10**6) if GIVEN == "random" else int(GIVEN)
SHORT = 40.0  # seconds
EVENTS = 25


def rounds(count: int, seconds: float, folder: Path, *, spark: bool = False) -> None:
    began = time.monotonic()
    for number in range(count):
        if time.monotonic() - began > seconds:
            break
        seed, place = SEED + number, folder / f"{number}"
        place.mkdir()
        one = Round(seed, place, spark=spark)
        wrong = one.play(EVENTS)
        ends = [process.end for process in one.processes]
        fenced, killed = sum(str(end).startswith("Fenced") for end in ends), ends.count(None)
        print(
            f"round {number + 1} of {count}, MILLPOND_CHAOS_SEED={seed}: {len(ends)} processes, {fenced} fenced, "
            f"{killed} killed, {time.monotonic() - began:.0f} s",
            flush=True,
        )
        assert not wrong, str(one)
        shutil.rmtree(place)


@pytest.mark.timeout(0)
def test_chaos_leaves_every_output_once_and_the_state_right(tmp_path: Path) -> None:
    rounds(ROUNDS or 1000, float("inf") if ROUNDS else SHORT, tmp_path)


@pytest.mark.timeout(0)
@pytest.mark.skipif(not SPARK_ROUNDS, reason="needs a JVM: make chaos-spark")
def test_chaos_on_spark(tmp_path: Path) -> None:
    rounds(SPARK_ROUNDS, float("inf"), tmp_path, spark=True)
