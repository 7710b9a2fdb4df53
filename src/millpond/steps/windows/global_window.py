"""The global window: one for all rows of a key. It closes at the end of the input."""

from __future__ import annotations

from typing import Any

from millpond.replica import Entry
from millpond.steps.windows.assigner import Assigner
from millpond.steps.windows.cell_names import GLOBAL, Extent
from millpond.steps.windows.row_windows import OpenWindow, Undo
from millpond.timing import MAX_TICKS


class GlobalAssigner(Assigner):
    """Assigns every row of a key to its one window."""

    def windows_for(self, key: bytes, at: int | None, row: Any, undo: Undo) -> tuple[list[OpenWindow], list[Extent]]:
        return [self.windows.open(key, GLOBAL, None, None, undo)], []

    def closes_at(self, w: OpenWindow) -> int:
        return MAX_TICKS

    def close(self, w: OpenWindow) -> OpenWindow | None:
        w.drop()
        return w if w.has_news else None

    def pane_time(self, w: OpenWindow) -> int | None:
        return w.newest

    def load(self, entry: Entry) -> OpenWindow:
        return self.windows.load(entry, None, None)

    def open_windows(self, key: bytes) -> list[OpenWindow]:
        return self.load_between(key, GLOBAL, GLOBAL)

    def ended_windows(self, key: bytes, newest: int) -> list[OpenWindow]:
        return []
