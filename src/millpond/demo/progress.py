"""The progress of the app, read from its ledger by another process."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path

from millpond.clock import SystemClock
from millpond.demo.program import NAME, STEP
from millpond.log.ledger import Ledger
from millpond.state_view import StateView
from millpond.storage import open_storage

RATE_OVER = 5.0  # seconds
COUNT_EVERY = 1.0  # seconds between two counts of the keys


@dataclass(frozen=True)
class DemoProgress:
    """The commits so far; `rate` is in rows per second, `bytes` is the size of the state's segments."""

    rows: int = 0
    commits: int = 0
    bytes: int = 0
    keys: int = 0
    rate: float = 0.0


class Watch:
    """Reads the new records of the ledger with every `look`. It counts keys in a replica of its own."""

    def __init__(self, folder: Path) -> None:
        clock = SystemClock()
        storage = open_storage(folder / "state")
        self._ledger = Ledger(storage, NAME, clock)
        self.state = StateView(storage, NAME, STEP, clock, home=str(folder / "watch"))
        self._last = -1
        self._rows = self._commits = self._bytes = self._keys = 0
        self._counted = float("-inf")
        self._recent: deque[tuple[float, int]] = deque()

    def look(self, now: float) -> DemoProgress:
        """Return the progress up to now."""
        newest = self._ledger.newest(near=max(self._last, 0))
        last = max(self._last, self._ledger.floor() - 1)  # older records may be pruned
        for record in self._ledger.between(last, -1 if newest is None else newest.number):
            if record.kind == "commit":
                self._commits += 1
                self._rows += sum(record.rows.values())
                parts = record.segments.get(STEP, {}).values()
                self._bytes += sum(pointer.bytes for pointers in parts for pointer in pointers)
            self._last = record.number
        if self._commits and now - self._counted >= COUNT_EVERY:
            self._counted = now
            self._keys = sum(1 for _ in self.state.items())
        return DemoProgress(self._rows, self._commits, self._bytes, self._keys, self._rate(now))

    def _rate(self, now: float) -> float:
        self._recent.append((now, self._rows))
        while self._recent[0][0] < now - RATE_OVER:
            self._recent.popleft()
        (then, before), (_, rows) = self._recent[0], self._recent[-1]
        return (rows - before) / (now - then) if now > then else 0.0
