"""What the benchmarks share: the options of a run, its files, warm-up, turns, and the table that it prints.

Both ways of a comparison take turns, because a machine is not the same from minute to minute. The first batches of each
way, and the first seconds, in which its JVM warms up, are left out.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WARM_BATCHES = 2
WARM_SECONDS = 16.0

Way = Callable[[], list[float]]  # returns the seconds of each batch


@dataclass
class Bench:
    """One run of some benchmarks."""

    place: Path  # of all files of the run
    is_quick: bool = False  # a check that everything runs, not a measurement
    has_peers: bool = True
    lines: list[tuple[str, str]] = field(default_factory=list)  # of the table
    at_end: ExitStack = field(default_factory=ExitStack)  # closes what benchmarks have started
    _inputs: dict[Any, str] = field(default_factory=dict)
    _warmed: float = 0.0  # seconds for which the session has been warmed up

    @property
    def warm_seconds(self) -> float:
        return 0.0 if self.is_quick else WARM_SECONDS

    @property
    def size(self) -> int:
        """The rows of a batch."""
        return 10_000 if self.is_quick else 100_000

    def rounds(self, count: int) -> int:
        return 1 if self.is_quick else count

    @cached_property
    def spark(self) -> SparkSession:
        """The session of Millpond, started when it is first needed."""
        from on_spark import a_session

        return a_session()

    def new_folder(self, name: str) -> Path:
        return self.place / f"{name}-{time.monotonic_ns()}"

    def files(self, make: Callable[..., None], **how: Any) -> str:
        """Return a folder of input files. Files that an earlier benchmark of the run has made are used again."""
        known = (make, *how.items())
        if known not in self._inputs:
            folder = self.new_folder("in")
            folder.mkdir(parents=True)
            make(folder, **how)
            self._inputs[known] = str(folder)
        return self._inputs[known]

    # --- measuring ---

    def warm_up(self, way: Way) -> None:
        """Run a way in Millpond's session once, and again until the session is warm. It stays so for the next ways."""
        began = time.perf_counter()
        way()
        while self._warmed + time.perf_counter() - began < self.warm_seconds:
            way()
        self._warmed += time.perf_counter() - began

    def without_first(self, batches: list[float]) -> list[float]:
        """Return the batches after the first seconds, of a process that has just started."""
        first = max(WARM_BATCHES, sum(end < self.warm_seconds for end in itertools.accumulate(batches)))
        if len(batches) - first < 2:
            raise SystemExit(f"too few batches to leave out the first {self.warm_seconds:.0f} s: {batches}")
        return batches[first:]

    def in_turns(self, rounds: int, *ways: Way) -> list[float]:
        """Return the median seconds per batch of each way."""
        found: list[list[float]] = [[] for _ in ways]
        for _ in range(self.rounds(rounds)):
            for way, batches in zip(ways, found, strict=True):
                batches += way()
        return [statistics.median(batches) for batches in found]

    # --- the table ---

    def note(self, what: str, figure: str) -> None:
        self.lines.append((what, figure))
        print(f"{what:100s} {figure}", flush=True)

    def note_rows(self, what: str, one: float, other: float | None = None) -> None:
        """Add a line with rows per second, and the ratio to those of another way."""
        if other is None:
            self.note(what, f"{one:,.0f} rows/s")
        else:
            self.note(what, f"{one:,.0f} / {other:,.0f} rows/s = {ratio(one, other)}")

    def end(self) -> None:
        """Stop the session, if there is one, and what else was started, and print the table."""
        if "spark" in self.__dict__:
            self.spark.stop()
        self.at_end.close()
        print("\n| what | figure |\n|---|---|")
        for what, figure in self.lines:
            print(f"| {what} | {figure} |")


def ratio(one: float, other: float) -> str:
    return f"{one / other:.1f}x" if one > 2 * other else f"{one / other:.2f}x"
