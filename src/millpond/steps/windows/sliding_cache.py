"""Blocks: merged parts of sliding windows, stored so that a window of many rows need not read all of its parts.

A block holds the parts of a span of time, a fraction of a window's size. It is made when a window that contains the
whole span closes. From then on a row in that span is late, so a block rarely changes: if such a row comes and
still counts in windows that are open, its block is dropped, and the next window that closes makes it again.
A block is a cache: everything in it is also in its parts.
"""

from __future__ import annotations

from millpond.replica import Entry, View
from millpond.steps.windows.cell_names import text_of, time_of
from millpond.steps.windows.row_windows import OpenWindow, RowWindows, Undo
from millpond.timing import Unit

BLOCKS_PER_WINDOW = 32
MIN_PARTS = 8  # fewer parts than this are read as fast as a block


class SlidingBlocks:
    """The blocks of the keys that a batch has read."""

    def __init__(self, step: str, view: View, windows: RowWindows, size: int, unit: Unit) -> None:
        self._step, self._view, self._windows, self._unit = step, view, windows, unit
        self.width = size // BLOCKS_PER_WINDOW
        self._by_key: dict[bytes, list[OpenWindow]] = {}

    def _cell(self, start: int) -> bytes:
        return b"b:%d/%b" % (self.width, text_of(start, self._unit))

    def inside(self, first: int, last: int) -> tuple[int, int]:
        """Return the start of the first block that is wholly between two times, and the time after the last one."""
        return -(-first // self.width) * self.width, (last + 1) // self.width * self.width

    def between(self, key: bytes, first: int, after: int) -> list[OpenWindow]:
        """Return the blocks of a key from one start on and before another, in order."""
        begin, end = self._cell(first), self._cell(after - self.width)
        for entry in self._view.range(self._step, key, begin, end):
            if self._windows.find(key, entry.cell) is None:
                self.load(entry)
        blocks = [w for w in self._by_key.get(key, ()) if w.is_live and begin <= w.cell <= end]
        return sorted(blocks, key=lambda w: w.cell)

    def make(self, key: bytes, start: int, whole: OpenWindow) -> None:
        """Store the merged parts of a block."""
        cell = self._cell(start)
        w = self._windows.find(key, cell)
        if w is None:
            w = OpenWindow(key, cell, start, start + self.width - 1)
            self._windows.add(w)
            self._by_key.setdefault(key, []).append(w)
        w.accs, w.arrived = whole.accs, whole.arrived
        w.is_live = w.is_changed = w.is_emitted = True

    def drop(self, key: bytes, at: int, undo: Undo) -> None:
        """Drop the block that covers a time, if there is one: a row of that time has come."""
        cell = self._cell(at // self.width * self.width)
        w = self._windows.find(key, cell)
        if w is None and (entry := self._view.entry(self._step, key, cell)) is not None:
            w = self.load(entry)
        if w is not None and w.is_live:
            undo.append(w.save())
            w.drop()

    def drop_all(self) -> None:
        """Drop all blocks: the program's windows have changed since they were made."""
        for entry in self._view.entries(self._step):
            if entry.cell[:2] == b"b:":
                w = self.load(entry)
                w.drop()

    def load(self, entry: Entry) -> OpenWindow:
        width, _, start = entry.cell[2:].partition(b"/")
        at, _ = time_of(start)
        w = self._windows.load(entry, at, at + int(width) - 1)
        self._by_key.setdefault(entry.key, []).append(w)
        return w
