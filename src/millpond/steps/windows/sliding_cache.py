"""Blocks: what many parts of sliding windows come to, kept, so that a window of many rows need not read them all.

A block holds the parts of a stretch of time, a fraction of a window's size. It is made when a window that holds the
whole stretch closes. From then on a row of that stretch is late, so a block hardly ever changes: where such a row
comes and still counts in windows that are open, its block is dropped, and made again by the next window that closes.
A block says nothing that its parts do not say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from millpond.replica import Entry, View
from millpond.steps.windows.cell_names import text_of, time_of
from millpond.steps.windows.open_window import Accumulators, Window
from millpond.timing import Unit

PER_WINDOW = 32  # blocks in a window's size
WORTH = 8  # parts in a block: fewer are read as fast


class Blocks:
    """The blocks of the keys that a batch has met."""

    def __init__(self, step: str, view: View, accumulators: Accumulators, size: int, unit: Unit) -> None:
        self._step, self._view, self._accumulators, self._unit = step, view, accumulators, unit
        self.width = size // PER_WINDOW
        self._met: dict[bytes, dict[bytes, Window]] = {}

    def _cell(self, start: int) -> bytes:
        return b"b:%d/%b" % (self.width, text_of(start, self._unit))

    def inside(self, first: int, last: int) -> tuple[int, int]:
        """The start of the first block that lies between two times, and the time after the last one."""
        return -(-first // self.width) * self.width, (last + 1) // self.width * self.width

    def between(self, key: bytes, first: int, after: int) -> dict[int, Window]:
        """The blocks that there are of a key, from one start on to another, by their starts."""
        met = self._met.setdefault(key, {})
        begin, end = self._cell(first), self._cell(after - self.width)
        for entry in self._view.range(self._step, key, begin, end):
            if entry.cell not in met:
                self.take(entry)
        found = {w.start: w for cell, w in met.items() if w.alive and begin <= cell <= end}
        return {start: found[start] for start in sorted(s for s in found if s is not None)}

    def make(self, key: bytes, start: int, whole: Window) -> None:
        """Keep what the parts of a block come to."""
        cell = self._cell(start)
        met = self._met.setdefault(key, {})
        w = met.get(cell) or Window(key, cell, start, start + self.width - 1)
        w.accs, w.came = whole.accs, whole.came
        w.alive = w.changed = w.closed = True
        met[cell] = w

    def drop(self, key: bytes, at: int, saved: list[Any]) -> None:
        """A row of a time has come that a block may hold."""
        cell = self._cell(at // self.width * self.width)
        met = self._met.setdefault(key, {})
        if cell not in met and (entry := self._view.entry(self._step, key, cell)) is not None:
            self.take(entry)
        w = met.get(cell)
        if w is not None and w.alive:
            saved.append(w.save())
            w.alive, w.changed = False, True

    def drop_all(self) -> None:
        """The program's windows are others than those that the blocks were made for."""
        for entry in self._view.entries(self._step):
            if entry.cell[:2] == b"b:":
                w = self.take(entry)
                w.alive, w.changed = False, True

    def take(self, entry: Entry) -> Window:
        width, _, start = entry.cell[2:].partition(b"/")
        at, _ = time_of(start)
        w = self._accumulators.decode(entry.key, entry.cell, at, at + int(width) - 1, entry.value)
        self._met.setdefault(entry.key, {})[entry.cell] = w
        return w

    def met(self, key: bytes, cell: bytes) -> Window | None:
        return self._met.get(key, {}).get(cell)

    def held(self) -> Iterator[Window]:
        for met in self._met.values():
            yield from met.values()
