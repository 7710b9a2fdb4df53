"""Which process is killed, and when: after a number of committed rows, so that slow machines crash as often."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Crash:
    """A kill that is due when `at` rows are committed."""

    victim: Literal["worker", "driver"]
    at: int


def schedule_crashes(rows: int, kills: int, seed: int) -> list[Crash]:
    """Return the crashes: a worker and then the driver, `kills` times, each in its own part of the input.

    >>> [crash.victim for crash in schedule_crashes(1000, kills=2, seed=1)]
    ['worker', 'driver', 'worker', 'driver']
    """
    chance = random.Random(seed)
    found: list[Crash] = []
    for number in range(2 * kills):
        begin, end = (rows_released(rows, 2 * kills, done) for done in (number - 1, number))
        length = end - begin
        at = chance.randint(begin + length // 5, begin + length * 4 // 5)
        found.append(Crash("worker" if number % 2 == 0 else "driver", at))
    return found


def rows_released(rows: int, crashes: int, done: int) -> int:
    """Return how many rows may be written after `done` crashes, so that there is work left for the next one.

    >>> [rows_released(1000, crashes=4, done=done) for done in range(5)]
    [200, 400, 600, 800, 1000]
    """
    return rows * (done + 1) // (crashes + 1)
