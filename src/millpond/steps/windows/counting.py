"""Count windows: so many rows of a key, in the order of arrival."""

from __future__ import annotations

from typing import Any

from millpond.replica import Entry
from millpond.steps.windows.assigner import Assigner
from millpond.steps.windows.cell_names import Extent, extent_of, window_cell
from millpond.steps.windows.row_windows import OpenWindow, Undo
from millpond.timing import MAX_TICKS


def first_rows_of(nth: int, size: int, every: int) -> range:
    """Return the first rows of the windows of `size` rows, a new one every so many, that hold the nth row, from 0.

    >>> list(first_rows_of(3, 4, 2))
    [0, 2]
    """
    return range(max(0, (nth - size) // every + 1) * every, nth + 1, every)


class CountAssigner(Assigner):
    """Assigns rows to windows by their number within the key."""

    def windows_for(self, key: bytes, at: int | None, row: Any, undo: Undo) -> tuple[list[OpenWindow], list[Extent]]:
        counts = self.batch.key_state
        nth = counts.count(key)
        counts.set_count(key, nth + 1, undo)
        size, first = self.definition.size, counts.first_start(key)
        return [
            self.windows.open(key, window_cell(start, start + size, "number"), start, start + size, undo)
            for start in first_rows_of(nth, size, self.definition.every)
            if start >= first
        ], []

    def is_full(self, w: OpenWindow) -> bool:
        return self.batch.key_state.count(w.key) == w.end

    def closes_at(self, w: OpenWindow) -> int:
        return MAX_TICKS

    def pane_time(self, w: OpenWindow) -> int | None:
        return w.newest

    def load(self, entry: Entry) -> OpenWindow:
        start, end, _ = extent_of(entry.cell)
        return self.windows.load(entry, start, end)

    def open_windows(self, key: bytes) -> list[OpenWindow]:
        return self.load_between(key, b"w:", b"w:~")

    def ended_windows(self, key: bytes, newest: int) -> list[OpenWindow]:
        return []

    def close(self, w: OpenWindow) -> OpenWindow | None:
        # The input has ended. If it goes on after all, its rows open new windows: no window has two final panes.
        every = self.definition.every
        counts = self.batch.key_state
        counts.restart_count(w.key, -(-counts.count(w.key) // every) * every)
        w.drop()
        return w if w.has_news else None
