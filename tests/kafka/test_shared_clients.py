"""Threads of one process share its producers and clients: those that fence a sink, and those of a delivery process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from millpond.kafka.transactions import MOST_IDLE, Writers

THREADS = 8


class Client:
    """Something that can be closed."""

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def often_switched() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("often_switched")
def test_threads_can_keep_more_writers_than_there_is_room_for() -> None:
    writers: Any = Writers()

    def work(thread: int) -> None:
        for turn in range(5000):
            name = (turn * 7 + thread * 13) % (MOST_IDLE + 26)
            writers.keep(name, writers.take(name) or Client())

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))
