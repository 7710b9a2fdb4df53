"""All clocks and all chance come from here; the linter bans them elsewhere."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Processing time, in seconds since the epoch, and a way to wait for it to pass."""

    def now(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class ManualClock:
    """A clock that a test moves: it stands still until `advance`, and never blocks."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds

    def advance(self, seconds: float) -> None:
        self._now += seconds


def elapsed() -> float:
    """Seconds on a clock that never goes back, for measuring durations."""
    return time.perf_counter()


def as_datetime(seconds: float) -> datetime:
    """Processing time as an aware datetime in UTC."""
    return datetime.fromtimestamp(seconds, UTC)


def new_id() -> str:
    """Sixteen random hex digits: an attempt, a driver, an incarnation."""
    return uuid.uuid4().hex[:16]
