"""Tables first: when a driver begins, the streams that feed tables are read to their present end before others."""

from __future__ import annotations

from dataclasses import dataclass, field

from millpond.pipeline.graph import Program
from millpond.pipeline.phases import phases
from millpond.runtimes.base import Runtime
from millpond.sources.base import Limit

FEW_BATCHES = 10  # batches, one after the other, that found little
BOOTSTRAP_SECONDS = 60.0  # seconds after which these mean that what comes now was not there at the beginning


@dataclass
class TableBootstrap:
    """Which streams a driver reads for now.

    The present end of a stream is where it has nothing more; or, as new rows may come for ever, where after a while
    batch after batch finds little.
    """

    program: Program
    began: float
    _left: list[frozenset[str]] = field(init=False)
    _little: int = 0

    def __post_init__(self) -> None:
        self._left = phases(self.program)

    def streams(self, now: float) -> frozenset[str] | None:
        """The streams to read at a time; nothing means all."""
        if self._left and self._little >= FEW_BATCHES and now >= self.began + BOOTSTRAP_SECONDS:
            self._begin_next(now)
        return self._left[0] if self._left else None

    def note_read(self, rows: int, limit: Limit) -> None:
        """A batch has read so many rows, and could have read as many as the limit says."""
        self._little = self._little + 1 if rows * 2 < limit.rows else 0

    def finish_phase(self, only: frozenset[str] | None, runtime: Runtime, now: float) -> bool:
        """These streams, if not all were meant, have nothing more; whether others are to be read now."""
        if only is None or not self._left or self._left[0] != only:
            return False
        if not all(runtime.is_waiting(stream) for stream in only):
            return False
        self._begin_next(now)
        return True

    def _begin_next(self, now: float) -> None:
        self._left.pop(0)
        self._little, self.began = 0, now
