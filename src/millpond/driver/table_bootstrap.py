"""Table bootstrap: when a driver starts, the streams that feed tables are read to their present end before others."""

from __future__ import annotations

from dataclasses import dataclass, field

from millpond.pipeline.graph import Program
from millpond.pipeline.phases import phases
from millpond.runtimes.base import Runtime
from millpond.sources.base import Limit

FEW_BATCHES = 10  # consecutive batches that found little
BOOTSTRAP_SECONDS = 60.0  # after which these mean that the rows have arrived since the start


@dataclass
class TableBootstrap:
    """Decides which streams a driver reads in its first batches.

    The present end of a stream is reached when it has no more rows; or, as new rows may arrive for ever, when after a
    while several batches in a row find little.
    """

    program: Program
    began: float
    _left: list[frozenset[str]] = field(init=False)
    _little: int = 0

    def __post_init__(self) -> None:
        self._left = phases(self.program)

    def streams(self, now: float) -> frozenset[str] | None:
        """Return the streams to read at a time on the monotonic clock; None means all."""
        if self._left and self._little >= FEW_BATCHES and now >= self.began + BOOTSTRAP_SECONDS:
            self._begin_next(now)
        return self._left[0] if self._left else None

    def note_read(self, rows: int, limit: Limit) -> None:
        """Take note of how many rows a batch has read, and of its limit."""
        self._little = self._little + 1 if rows * 2 < limit.rows else 0

    def finish_phase(self, only: frozenset[str] | None, runtime: Runtime, now: float) -> bool:
        """End the phase of these streams, which have no more rows, and return whether other streams are read now.

        False if all streams are read already, or if a streaming DataFrame has not looked for rows yet.
        """
        if only is None or not self._left or self._left[0] != only:
            return False
        if not all(runtime.is_waiting(stream) for stream in only):
            return False
        self._begin_next(now)
        return True

    def _begin_next(self, now: float) -> None:
        self._left.pop(0)
        self._little, self.began = 0, now
