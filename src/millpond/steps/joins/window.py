"""`join_window`: every pair of rows of one key that are in the same window, when the window closes.

clicks.join_window("seen", views, mp.tumbling("1m"), grace="10s")

Beside the rows, a cell for each open window says when it closes, so that windows are found by what is due:

    w:0000000000000000100/0000000000000000110      true
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, ClassVar

from millpond.log.segment import Change
from millpond.rows.rows import Rows
from millpond.steps.base import Running, StepContext
from millpond.steps.joins.buffer import Arrivals, Changes, Row, kept, nothing, read
from millpond.steps.joins.interval import HOWS
from millpond.steps.joins.join_step import JoinStep
from millpond.steps.joins.pairs import Pairs
from millpond.steps.joins.time_bounds import LEFT, RIGHT, SIDES
from millpond.steps.windows.cell_names import extent_of, window_cell
from millpond.steps.windows.definitions import Hopping
from millpond.steps.windows.hopping import Grid
from millpond.timing import MAX_TICKS, Duration, Unit, as_user, span

Extent = tuple[int, int]  # [start, end)


@dataclass(frozen=True, kw_only=True)
class WindowJoinStep(JoinStep):
    """Pairs of rows of one key that are in the same window."""

    kind: ClassVar[str] = "join_window"

    window: Hopping
    grace: Duration

    def begin(self, context: StepContext) -> Running:
        return JoinWindow(self, context)

    @property
    def watermark_lag(self) -> tuple[Duration, ...]:
        return (self.window.size, self.grace)


class JoinWindow(Running):
    """Rows are kept, once, until the last of their windows has closed. What pairs there are is seen when one closes.

    A row that comes too late for some of its windows counts in the others, and is put aside with those it missed.
    """

    def __init__(self, step: WindowJoinStep, context: StepContext) -> None:
        self._step, self._context = step, context
        self._outer = HOWS[step.how]
        self._arrivals = Arrivals(step, context)
        self._pairs, self._changes = Pairs(step, context), Changes()

    def run(self, rows: Rows, side: int = 0) -> Rows:
        began, timed = self._context.time.start_watermark, self._arrivals.timed(rows, side)
        if timed is not None and timed.times is not None:
            if began is not None:
                timed = self._in_time(timed, side, began)
            self._arrivals.take(timed, side)
        return nothing(self._arrivals.unit)

    def _in_time(self, rows: Rows, side: int, began: int) -> Rows:
        """The rows that some window is still open for. Those that have missed one go aside."""
        assert rows.times is not None
        grid, unit = self._grid(rows.times.unit), rows.times.unit
        good, late, missed = [], [], list[Any]()
        for i, at in enumerate(rows.times.values.tolist()):
            still, gone = grid.split(at, began)
            if still:
                good.append(i)
            if gone:
                late.append(i)
                missed.append([(as_user(start, unit), as_user(end, unit)) for start, end in gone])
        if late:
            self._arrivals.put_aside(rows.pick(late), side, missed=missed)
        return rows if len(good) == len(rows) else rows.pick(good)

    def _grid(self, unit: Unit) -> Grid:
        where, window = f"join_window({self._step.name!r}", self._step.window
        lengths = {"size": window.size, "every": window.every, "offset": window.offset}
        given = {**lengths, "grace": self._step.grace}
        return Grid(**{name: span(value, unit, f"{where}, {name})") for name, value in given.items()})

    def end(self) -> Rows | None:
        unit = self._arrivals.unit
        if unit is None:
            return None
        grid, came = self._grid(unit), self._arrivals.by_key()
        opened: dict[tuple[bytes, bytes], int] = {}  # windows that a row has met and that stay open: when they close
        over: dict[bytes, dict[Extent, int]] = {}  # those that close now, by key
        for key, sides in came.items():
            for row in (*sides[LEFT], *sides[RIGHT]):
                self._place(grid, row, unit, opened, over.setdefault(key, {}))
        self._open(opened)
        self._find_over(grid, over)
        for key, windows in over.items():
            self._close(key, windows, came.get(key, ([], [])))
        return self._pairs.rows(unit)

    def _place(
        self,
        grid: Grid,
        row: Row,
        unit: Unit,
        opened: dict[tuple[bytes, bytes], int],
        over: dict[Extent, int],
    ) -> None:
        """Note the windows of a new row, and keep it while one of them is open."""
        windows, _ = grid.split(row.at, self._context.time.start_watermark)
        for extent in windows:
            due = grid.closes_at(extent[1])
            if self._is_over(due):
                over[extent] = due
            else:
                opened[row.key, window_cell(*extent, unit)] = due
        due = grid.closes_at(windows[-1][1])
        if not self._is_over(due):
            self._changes.add(row.change(due))

    def _is_over(self, due: int) -> bool:
        return self._context.time.end_watermark is not None and due <= self._context.time.end_watermark

    def _open(self, opened: dict[tuple[bytes, bytes], int]) -> None:
        known = self._context.view.get_cells(self._step.name, [key for key, _ in opened], [cell for _, cell in opened])
        for ((key, cell), due), value in zip(opened.items(), known, strict=True):
            if value is None:
                self._changes.add(Change(key, cell, b"true", due))

    def _find_over(self, grid: Grid, over: dict[bytes, dict[Extent, int]]) -> None:
        """What is due: windows to close, and rows whose last window closes."""
        watermark = self._context.time.end_watermark
        for entry in self._context.view.due(self._step.name, watermark) if watermark is not None else ():
            is_window = entry.cell.startswith(b"w:")
            at = kept(entry, self._context.codec).at if not is_window else 0
            extent = extent_of(entry.cell)[:2] if is_window else grid.extents_of(at)[-1]
            due = grid.closes_at(extent[1])
            if not self._is_over(due):  # the program has grown more patient since it was kept
                self._changes.add(Change(entry.key, entry.cell, entry.value, due))
                continue
            self._changes.add(Change(entry.key, entry.cell, None))
            if is_window:
                over.setdefault(entry.key, {})[extent] = due

    def _close(self, key: bytes, windows: dict[Extent, int], new: tuple[list[Row], list[Row]]) -> None:
        """Bring the pairs of some windows of one key; its rows in them are read once."""
        ranges, sides = _together(windows), []
        for side in range(len(SIDES)):
            held = read(self._context, self._step.name, key, side, ranges)
            sides.append(sorted([*held, *new[side]], key=lambda row: row.cell))
        times = [[row.at for row in rows] for rows in sides]
        for (start, end), due in windows.items():
            lefts, rights = (
                rows[bisect_left(at, start) : bisect_left(at, end)] for rows, at in zip(sides, times, strict=True)
            )
            for left in lefts if rights else ():
                for right in rights:
                    self._pairs.add_ending(left, right, due)
            if not rights and self._outer[LEFT]:
                for left in lefts:
                    self._pairs.add_ending(left, None, due)
            if not lefts and self._outer[RIGHT]:
                for right in rights:
                    self._pairs.add_ending(None, right, due)
            if self._context.time.is_final and due < MAX_TICKS:  # what comes after the end is late
                self.closed_until = due if self.closed_until is None else max(due, self.closed_until)

    def take_side_rows(self) -> list[Rows]:
        return self._arrivals.take_late_rows()

    def changes(self) -> list[Change]:
        return self._changes.sorted()


def _together(windows: dict[Extent, int]) -> list[Extent]:
    """The times, first and last included, that some windows cover, as few ranges as there can be.

    >>> _together({(10, 20): 0, (0, 10): 0, (5, 15): 0, (30, 40): 0})
    [(0, 19), (30, 39)]
    """
    found: list[Extent] = []
    for start, end in sorted(windows):
        if found and start <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], end - 1))
        else:
            found.append((start, end - 1))
    return found
