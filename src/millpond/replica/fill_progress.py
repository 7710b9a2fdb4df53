"""How long it takes to build a replica from a manifest, as the log of the process tells it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from millpond.clock import elapsed
from millpond.log.pointer import Pointer

log = logging.getLogger("millpond")

OFTEN = 5.0  # seconds between two lines about what is left


class Filling:
    """Says at level INFO how much a replica was given, how long that took, and meanwhile what is left."""

    def __init__(self, app: str, partition: int, files: Sequence[Pointer]) -> None:
        self._what = f"{app}: partition {partition}"
        self._files, self._done = len(files), 0
        self._cells, self._bytes = sum(file.rows for file in files), sum(file.bytes for file in files)
        self._read = self._read_bytes = 0
        self._began = self._told = elapsed()

    def done(self, file: Pointer) -> None:
        """A file was applied."""
        self._done += 1
        self._read += file.rows
        self._read_bytes += file.bytes
        now = elapsed()
        if self._done == self._files:
            log.info("%s: %s", self._what, filled(self._cells, self._bytes, now - self._began))
        elif now - self._told >= OFTEN:
            self._told = now
            log.info("%s: %s", self._what, left(self._read, self._cells, now - self._began))


def filled(cells: int, size: int, seconds: float) -> str:
    """What a replica was given.

    >>> filled(1_000_000, 120_000_000, 2.13)
    '1,000,000 cells, 120.0 MB in 2.1 s'
    """
    return f"{cells:,} cells, {size / 1e6:.1f} MB in {seconds:.1f} s"


def left(done: int, cells: int, seconds: float) -> str:
    """How much of it is there, and about how long the rest will take.

    >>> left(250_000, 1_000_000, 2.0)
    '250,000 of 1,000,000 cells, about 6 s left'
    """
    rest = seconds * (cells - done) / done if done else 0.0
    return f"{done:,} of {cells:,} cells, about {rest:.0f} s left"
