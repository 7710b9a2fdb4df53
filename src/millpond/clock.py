"""The only source of time and random ids; the linter bans others elsewhere."""

from __future__ import annotations

import random
import subprocess
import sys
import time
import uuid
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """The time of day, a clock that never goes back, and a way to wait.

    `now` is in seconds since the epoch and may jump either way when the machine's clock is set. Durations are
    measured with `monotonic`.
    """

    def now(self) -> float: ...

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own clock."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)


class ManualClock:
    """A clock for tests: it stands still until `advance` is called, and `sleep` does not block."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start
        self._passed = 0.0

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._passed

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds
        self._passed += seconds

    def step(self, seconds: float) -> None:
        """Set the time of day forward or back, as an administrator or NTP does; no time passes."""
        self._now += seconds


elapsed = time.perf_counter  # seconds on a clock that never goes back, for measuring durations


def as_datetime(seconds: float) -> datetime:
    """Return processing time as an aware datetime in UTC."""
    return datetime.fromtimestamp(seconds, UTC)


_random = random.Random()


def chance() -> float:
    """Return a random number from 0.0 to less than 1.0."""
    return _random.random()


def seed_chance(seed: int) -> None:
    """Make `chance` return the same numbers in every run, for tests. Ids from `new_id` stay random."""
    _random.seed(seed)


def new_id() -> str:
    """Return sixteen random hex digits, for an attempt, a driver or an incarnation."""
    return uuid.uuid4().hex[:16]


@cache
def boot() -> str:
    """Return an id of this boot of the machine. Replicas are not synced, so none is used after a reboot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        pass
    if sys.platform == "darwin":
        out = subprocess.run(["sysctl", "-n", "kern.boottime"], capture_output=True, text=True, check=False)
        digits = "".join(c for c in out.stdout.split(",")[0] if c.isdigit())
        if digits:
            return digits
    return "unknown"
