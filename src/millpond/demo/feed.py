"""Writes the payments into a folder at a steady rate, a whole file at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec

from millpond.demo.payments import Payment

FILES = 200  # over which all payments are spread


class Feed:
    """Writes the input: each `tick` writes the payments that are due."""

    def __init__(self, folder: Path, payments: Iterator[Payment], rows: int, pace: float, now: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._payments, self._pace = folder, payments, pace
        self._per_file = max(1, rows // FILES)
        self._files = 0
        self._last, self._due = now, 0.0
        self.written = 0

    def tick(self, now: float, most: int) -> None:
        """Write the payments that have become due since the last call, but not more than `most` in all."""
        self._due = min(self._due + (now - self._last) * self._pace, float(most))
        self._last = now
        while self.written < self._due:
            rows = list(islice(self._payments, min(self._per_file, most - self.written)))
            if not rows:
                return
            self._write(msgspec.json.Encoder().encode_lines(rows))
            self.written += len(rows)

    def _write(self, data: bytes) -> None:
        # The source skips names that begin with a dot, so it reads whole files only.
        hidden = self._folder / ".next"
        hidden.write_bytes(data)
        os.replace(hidden, self._folder / f"{self._files:06d}.jsonl")
        self._files += 1
