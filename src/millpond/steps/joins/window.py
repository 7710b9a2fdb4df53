"""`join_window`: every pair of rows of one key that are in the same window, when the window closes.

clicks.join_window("seen", views, mp.tumbling("1m"), grace="10s")

Beside the rows, each open window has a cell, due when the window closes:

    w:0000000000000000100/0000000000000000110      true
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from millpond.log.segment import Change
from millpond.rows.rows import Rows
from millpond.steps.base import Running, StepContext
from millpond.steps.joins.buffer import JoinRow, read_stored_rows, stored_row
from millpond.steps.joins.join_step import JoinStep
from millpond.steps.joins.running_join import RunningJoin
from millpond.steps.joins.time_bounds import LEFT, RIGHT, SIDES
from millpond.steps.windows.cell_names import Extent, extent_of, window_cell
from millpond.steps.windows.definitions import Hopping
from millpond.steps.windows.hopping import Grid
from millpond.steps.windows.panes import shown_bounds
from millpond.timing import Duration, Unit, span


@dataclass(frozen=True, kw_only=True)
class WindowJoinStep(JoinStep):
    """Pairs of rows of one key that are in the same window."""

    kind: ClassVar[str] = "join_window"

    window: Hopping
    grace: Duration

    def begin(self, context: StepContext) -> Running:
        return RunningWindowJoin(self, context)

    @property
    def watermark_lag(self) -> tuple[Duration, ...]:
        return (self.window.size, self.grace)


class RunningWindowJoin(RunningJoin):
    """Rows are stored, once, until the last of their windows has closed. Pairs of a window are found when it closes.

    A row that comes too late for some of its windows counts in the others, and goes to the side stream with those it
    missed.
    """

    def __init__(self, step: WindowJoinStep, context: StepContext) -> None:
        super().__init__(step, context)
        self._step = step
        self._opened: dict[tuple[bytes, bytes], int] = {}  # windows of new rows that stay open: when they close
        self._closing: dict[bytes, dict[Extent, int]] = {}  # of each key, the windows that close in this batch: when

    def _grid(self, unit: Unit) -> Grid:
        where, window = f"join_window({self._step.name!r}", self._step.window
        lengths = {"size": window.size, "every": window.every, "offset": window.offset}
        given = {**lengths, "grace": self._step.grace}
        return Grid(**{name: span(value, unit, f"{where}, {name})") for name, value in given.items()})

    def _add(self, rows: Rows, side: int, unit: Unit) -> None:
        mark = self._time.start_watermark
        self._arrivals.add(rows if mark is None else self._split_late(rows, side, mark), side)

    def _split_late(self, rows: Rows, side: int, mark: int) -> Rows:
        """Return the rows for which some window is still open. Those that have missed one go to the side stream."""
        assert rows.times is not None
        grid, unit = self._grid(rows.times.unit), rows.times.unit
        good, late, missed = [], [], list[Any]()
        for i, at in enumerate(rows.times.values.tolist()):
            still_open, closed = grid.split(at, mark)
            if still_open:
                good.append(i)
            if closed:
                late.append(i)
                missed.append([shown_bounds(start, end, unit) for start, end in closed])
        if late:
            self._arrivals.add_late(rows.pick(late), side, missed=missed)
        return rows if len(good) == len(rows) else rows.pick(good)

    def _match_arrivals(self, unit: Unit) -> None:
        grid, arrivals = self._grid(unit), self._arrivals.by_key()
        for key, sides in arrivals.items():
            self._closing[key] = {}  # so that keys with new rows come first
            for row in (*sides[LEFT], *sides[RIGHT]):
                self._assign(grid, row, unit)
        self._store_opened()
        self._read_closing(grid)
        for key, windows in self._closing.items():
            self._close(key, windows, arrivals.get(key, ([], [])))

    def _assign(self, grid: Grid, row: JoinRow, unit: Unit) -> None:
        """Take note of the windows of a new row, and store it if one of them stays open."""
        windows, _ = grid.split(row.at, self._time.start_watermark)
        for start, end in windows:
            due = grid.closes_at(end)
            if self._is_due(due):
                self._closing[row.key][start, end] = due
            else:
                self._opened[row.key, window_cell(start, end, unit)] = due
        due = grid.closes_at(windows[-1][1])
        if not self._is_due(due):
            self._changes.add(row.change(due))

    def _store_opened(self) -> None:
        """Store the windows of new rows that are not stored yet."""
        keys, cells = [key for key, _ in self._opened], [cell for _, cell in self._opened]
        stored = self._context.view.get_cells(self._step.name, keys, cells)
        for ((key, cell), due), value in zip(self._opened.items(), stored, strict=True):
            if value is None:
                self._changes.add(Change(key, cell, b"true", due))

    def _read_closing(self, grid: Grid) -> None:
        """Find the stored windows that close now, and delete them and the rows whose last window closes."""
        watermark = self._time.end_watermark
        for entry in self._context.view.due(self._step.name, watermark) if watermark is not None else ():
            is_window = entry.cell.startswith(b"w:")
            if is_window:
                start, end, _ = extent_of(entry.cell)
            else:
                start, end = grid.extents_of(stored_row(entry, self._context.codec).at)[-1]
            due = grid.closes_at(end)
            if not self._is_due(due):  # the program's windows or grace have grown since it was stored
                self._changes.add(Change(entry.key, entry.cell, entry.value, due))
                continue
            self._changes.add(Change(entry.key, entry.cell, None))
            if is_window:
                self._closing.setdefault(entry.key, {})[start, end] = due

    def _close(self, key: bytes, windows: dict[Extent, int], new: tuple[list[JoinRow], list[JoinRow]]) -> None:
        """Add the pairs of some windows of one key; the rows in them are read once."""
        ranges, sides = _covered_ranges(windows), []
        for side in range(len(SIDES)):
            stored = read_stored_rows(self._context, self._step.name, key, side, ranges)
            sides.append(sorted([*stored, *new[side]], key=lambda row: row.cell))
        times = [[row.at for row in rows] for rows in sides]
        for (start, end), due in windows.items():
            lefts, rights = (
                rows[bisect_left(at, start) : bisect_left(at, end)] for rows, at in zip(sides, times, strict=True)
            )
            self._add_pairs(lefts, rights, due)
            self._note_closed(due)

    def _add_pairs(self, lefts: list[JoinRow], rights: list[JoinRow], due: int) -> None:
        """Add all pairs of a window, or the rows of one side if the other has none."""
        emits_left, emits_right = self._step.emits_unmatched
        for left in lefts if rights else ():
            for right in rights:
                self._pairs.add_ending(left, right, due)
        if not rights and emits_left:
            for left in lefts:
                self._pairs.add_ending(left, None, due)
        if not lefts and emits_right:
            for right in rights:
                self._pairs.add_ending(None, right, due)


def _covered_ranges(windows: Iterable[Extent]) -> list[Extent]:
    """Return the ranges of time, first and last included, that some windows cover; ranges that touch are merged.

    >>> _covered_ranges([(10, 20), (0, 10), (5, 15), (30, 40)])
    [(0, 19), (30, 39)]
    """
    found: list[Extent] = []
    for start, end in sorted(windows):
        if found and start <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], end - 1))
        else:
            found.append((start, end - 1))
    return found
