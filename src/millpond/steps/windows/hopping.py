"""Tumbling and hopping windows: `[start, end)` of one size, at fixed places on the time line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millpond.replica import Entry
from millpond.steps.windows.assigner import Assigner
from millpond.steps.windows.cell_names import Extent, extent_of, window_cell
from millpond.steps.windows.row_windows import OpenWindow, Undo
from millpond.timing import MAX_TICKS, Unit


def starts_of(time: int, size: int, every: int, offset: int = 0) -> range:
    """Return the starts of the hopping windows `[start, start + size)` that hold a time, oldest first.

    >>> [(start, start + 20) for start in starts_of(29, 20, 5)]
    [(10, 30), (15, 35), (20, 40), (25, 45)]
    >>> list(starts_of(-1, 10, 10))
    [-10]
    """
    newest = (time - offset) // every * every + offset
    oldest = ((time - size - offset) // every + 1) * every + offset
    return range(oldest, newest + 1, every)


@dataclass(frozen=True)
class Grid:
    """The places of tumbling or hopping windows, in ticks. Window `n` is `[n * every + offset, … + size)`.

    The arithmetic of `start_of` and `closing_of` holds for NumPy arrays of window numbers as well.
    """

    size: int
    every: int
    offset: int = 0
    grace: int = 0

    def extents_of(self, at: int) -> list[Extent]:
        """Return the windows that hold a time, oldest first.

        >>> Grid(size=10, every=5).extents_of(12)
        [(5, 15), (10, 20)]
        """
        return [(start, start + self.size) for start in starts_of(at, self.size, self.every, self.offset)]

    def closes_at(self, end: int) -> int:
        """Return the watermark at which a window `[start, end)` closes."""
        return min(end + self.grace, MAX_TICKS)

    def split(self, at: int, mark: int | None) -> tuple[list[Extent], list[Extent]]:
        """Return the windows of a time that are open at a watermark, and those that have closed.

        >>> Grid(size=10, every=5, grace=2).split(12, 17)
        ([(10, 20)], [(5, 15)])
        """
        extents = self.extents_of(at)
        if mark is None or extents[0][1] + self.grace > mark:
            return extents, []
        closed = sum(self.closes_at(end) <= mark for _, end in extents)
        return extents[closed:], extents[:closed]

    def start_of(self, number: Any) -> Any:
        """Return the start of a window by its number."""
        return number * self.every + self.offset

    def closing_of(self, number: Any) -> Any:
        """Return the watermark at which a window closes, by its number."""
        return number * self.every + (self.offset + self.size + self.grace)

    def number_of(self, start: int, end: int) -> int | None:
        """Return the number of a window; None if it is not on this grid, because the program's windows have changed.

        >>> Grid(size=10, every=5).number_of(15, 25), Grid(size=10, every=5).number_of(15, 30)
        (3, None)
        """
        number, rest = divmod(start - self.offset, self.every)
        return None if rest or end - start != self.size else number


class HoppingAssigner(Assigner):
    """Assigns rows to tumbling and hopping windows."""

    grid: Grid

    def measure(self, unit: Unit) -> None:
        ticks, window, grace = self.batch.ticks, self.definition, self.batch.step.grace
        self.grid = Grid(
            ticks(window.size, "size"),
            ticks(window.every, "every"),
            ticks(window.offset, "offset"),
            ticks(grace, "grace"),
        )

    def windows_for(self, key: bytes, at: int | None, row: Any, undo: Undo) -> tuple[list[OpenWindow], list[Extent]]:
        unit = self.batch.unit
        if at is None or unit is None:
            raise self.batch.missing_time()
        # `Grid.split`, spelled out: this runs for every row.
        grid, mark, open_window = self.grid, self.batch.late_mark(key), self.windows.open
        windows: list[OpenWindow] = []
        missed: list[Extent] = []
        for start in starts_of(at, grid.size, grid.every, grid.offset):
            end = start + grid.size
            if mark is not None and end + grid.grace <= mark:
                missed.append((start, end))
            else:
                windows.append(open_window(key, window_cell(start, end, unit), start, end, undo))
        return windows, missed

    def closes_at(self, w: OpenWindow) -> int:
        assert w.end is not None
        return w.end + self.grid.grace

    def close(self, w: OpenWindow) -> OpenWindow | None:
        w.drop()
        return w if w.has_news else None

    def pane_time(self, w: OpenWindow) -> int | None:
        assert w.end is not None
        return w.end - 1

    def load(self, entry: Entry) -> OpenWindow:
        start, end, unit = extent_of(entry.cell)
        if self.batch.unit is None:
            self.learn_unit(unit)
        return self.windows.load(entry, start, end)

    def open_windows(self, key: bytes) -> list[OpenWindow]:
        return self.load_between(key, b"w:", b"w:~")

    def ended_windows(self, key: bytes, newest: int) -> list[OpenWindow]:
        assert self.batch.unit is not None
        last_start = window_cell(newest - self.grid.size, 0, self.batch.unit)[2:].partition(b"/")[0]
        return self.load_between(key, b"w:", b"w:%b~" % last_start)
