"""Who is killed, and when: decided by how many rows are committed, so that slow machines crash as often."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Crash:
    """A kill that is due once so many rows are committed."""

    victim: Literal["worker", "driver"]
    at: int


def schedule(rows: int, kills: int, seed: int) -> list[Crash]:
    """A worker and then the driver, `kills` times, each at some moment in a stretch of the input of its own.

    >>> [crash.victim for crash in schedule(1000, kills=2, seed=1)]
    ['worker', 'driver', 'worker', 'driver']
    """
    chance = random.Random(seed)
    found: list[Crash] = []
    for number in range(2 * kills):
        begin, end = (released(rows, 2 * kills, done) for done in (number - 1, number))
        length = end - begin
        at = chance.randint(begin + length // 5, begin + length * 4 // 5)
        found.append(Crash("worker" if number % 2 == 0 else "driver", at))
    return found


def released(rows: int, crashes: int, done: int) -> int:
    """How many rows may be written once so many crashes are done: there is always work for the next to hit.

    >>> [released(1000, crashes=4, done=done) for done in range(5)]
    [200, 400, 600, 800, 1000]
    """
    return rows * (done + 1) // (crashes + 1)
