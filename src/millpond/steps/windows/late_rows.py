"""Rows that missed a window, as letters for the step's side stream."""

from __future__ import annotations

from typing import Any

from millpond.rows.rows import KeyedRowBuilder, Rows
from millpond.steps.windows.panes import shown_bounds
from millpond.steps.windows.window_batch import WindowBatch
from millpond.timing import difference


class LateRows:
    """Collects the late rows of a batch: `{row, key, late_by, missed}`, each with its own key, time and order."""

    def __init__(self, batch: WindowBatch) -> None:
        self._batch = batch
        self._builder: KeyedRowBuilder | None = None

    def add(self, order: int, key: bytes, at: int, row: Any, missed: list[tuple[int, int]]) -> None:
        """Add a row at a time with the extents of the windows that it missed."""
        batch = self._batch
        assert batch.unit is not None
        if self._builder is None:
            self._builder = KeyedRowBuilder(batch.unit)
        mark = batch.late_mark(key)
        letter = {
            "row": row,
            "key": batch.keys[key],
            "late_by": difference((at if mark is None else mark) - at, batch.unit),
            "missed": [shown_bounds(start, end, batch.bounds_unit) for start, end in missed],
        }
        self._builder.add(key, letter["key"], letter, at, order)

    def take(self) -> list[Rows]:
        """Return the rows that came up since the last call, and report how many there are."""
        if self._builder is None:
            return []
        late, self._builder = self._builder.rows(), None
        self._batch.context.count_late(len(late))
        return [late]
