"""The contract of an assigner: which windows a row belongs to, and when they close.

Each kind of window has one assigner, in a module of its own. It finds and opens windows in the step's `RowWindows`;
rows, triggers, panes and late rows are the step's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from millpond.replica import Entry
from millpond.steps.windows.cell_names import Extent
from millpond.steps.windows.row_windows import OpenWindow, Undo
from millpond.steps.windows.window_batch import WindowBatch
from millpond.timing import Unit


class Assigner(ABC):
    """Assigns the rows of one batch of one partition to windows. Made once per batch."""

    may_wait = False  # whether `must_wait` has to be asked for each row

    def __init__(self, batch: WindowBatch) -> None:
        self.batch = batch
        self.windows = batch.windows
        self.definition: Any = batch.step.window  # from definitions.py
        if batch.time.unit is not None:
            self.learn_unit(batch.time.unit)

    def learn_unit(self, unit: Unit) -> None:
        """Take note of the unit of the times. Only the first call has an effect."""
        if self.batch.unit is None:
            self.batch.unit = unit
            self.batch.bounds_unit = unit if self.batch.is_timed else None
            self.measure(unit)

    def measure(self, unit: Unit) -> None:
        """Convert durations to ticks; called once, when the unit of the times is known."""
        return None

    # --- each kind of window says ---

    @abstractmethod
    def windows_for(self, key: bytes, at: int | None, row: Any, undo: Undo) -> tuple[list[OpenWindow], list[Extent]]:
        """Return the open windows that a row belongs to, oldest first, and the extents of those it missed.

        Every window is saved to `undo` before it changes.
        """

    @abstractmethod
    def closes_at(self, w: OpenWindow) -> int:
        """Return the watermark at which a window closes."""

    @abstractmethod
    def close(self, w: OpenWindow) -> OpenWindow | None:
        """Remove a window that has closed, or keep what later windows need of it. It is removed even if this raises.

        Return the window whose results are its final pane; None if there is nothing new to show.
        """

    @abstractmethod
    def pane_time(self, w: OpenWindow) -> int | None:
        """Return the event time of a window's panes: the last instant that it covers."""

    @abstractmethod
    def load(self, entry: Entry) -> OpenWindow:
        """Return the window of a stored cell that this batch has not read yet, and learn the unit from its name."""

    @abstractmethod
    def open_windows(self, key: bytes) -> list[OpenWindow]:
        """Return all open windows of a key, oldest first."""

    @abstractmethod
    def ended_windows(self, key: bytes, newest: int) -> list[OpenWindow]:
        """Return the windows of a key that may close by the key's own clock; called with `clock="key"` only."""

    # --- and some kinds say more ---

    def is_full(self, w: OpenWindow) -> bool:
        """Return whether a window closes with the row that was just added."""
        return False

    def must_wait(self, key: bytes, at: int) -> bool:
        """Return whether only the end of the batch shows if a row is late. Later rows of its key wait, too."""
        return False

    def settle(self, key: bytes, times: list[int]) -> list[list[Extent]]:
        """Return, for the rows of a key that have waited, the windows that each has missed: none if it is on time."""
        raise NotImplementedError

    # --- shared by the kinds whose windows have a name of their own ---

    def load_between(self, key: bytes, first: bytes, last: bytes) -> list[OpenWindow]:
        """Return the open windows of a key whose cells are between two names, in that order."""
        for entry in list(self.batch.context.view.range(self.batch.step.name, key, first, last)):
            if self.windows.find(key, entry.cell) is None:
                self.load(entry)
        return self.windows.open_between(key, first, last)
