"""Log lines about replicas that are built from a manifest: how much there is, and how long it takes."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from millpond.clock import elapsed
from millpond.log.checked import Pointer

log = logging.getLogger("millpond")

REPORT_SECONDS = 5.0  # between two lines about what is left


class FillProgress:
    """Logs at level INFO what is left to load into a replica, every few seconds, and at the end how long it took."""

    def __init__(self, app: str, partition: int | None, files: Sequence[Pointer]) -> None:
        self._what = f"{app}: all partitions" if partition is None else f"{app}: partition {partition}"
        self._files, self._done = len(files), 0
        self._cells, self._bytes = sum(file.rows for file in files), sum(file.bytes for file in files)
        self._read = self._read_bytes = 0
        self._began = self._reported = elapsed()

    def done(self, file: Pointer) -> None:
        """Report that a file has been applied."""
        self._done += 1
        self._read += file.rows
        self._read_bytes += file.bytes
        now = elapsed()
        if self._done == self._files:
            log.info("%s: %s", self._what, summary_text(self._cells, self._bytes, now - self._began))
        elif now - self._reported >= REPORT_SECONDS:
            self._reported = now
            log.info("%s: %s", self._what, remaining_text(self._read, self._cells, now - self._began))


def summary_text(cells: int, size: int, seconds: float) -> str:
    """Return what was loaded into a replica, in words.

    >>> summary_text(1_000_000, 120_000_000, 2.13)
    '1,000,000 cells, 120.0 MB in 2.1 s'
    """
    return f"{cells:,} cells, {size / 1e6:.1f} MB in {seconds:.1f} s"


def remaining_text(done: int, cells: int, seconds: float) -> str:
    """Return how much is loaded, and about how long the rest will take, in words.

    >>> remaining_text(250_000, 1_000_000, 2.0)
    '250,000 of 1,000,000 cells, about 6 s left'
    """
    rest = seconds * (cells - done) / done if done else 0.0
    return f"{done:,} of {cells:,} cells, about {rest:.0f} s left"
