"""The row store of windows: those that a batch has read from state or opened, one object each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from millpond.log.segment import Change
from millpond.replica import Entry, View
from millpond.steps.windows.open_window import Accumulators, OpenWindow, Undo


class RowWindows:
    """The windows of one batch of one partition, by key and cell."""

    def __init__(self, step: str, view: View, accumulators: Accumulators) -> None:
        self._step, self._view, self._accumulators = step, view, accumulators
        self._by_cell: dict[bytes, dict[bytes, OpenWindow]] = {}
        self._unnamed: list[OpenWindow] = []

    def __iter__(self) -> Iterator[OpenWindow]:
        """Iterate over all windows, those that are no longer live included."""
        for windows in self._by_cell.values():
            yield from windows.values()
        yield from self._unnamed

    def find(self, key: bytes, cell: bytes) -> OpenWindow | None:
        """Return the window of a cell if this batch has read or opened it."""
        windows = self._by_cell.get(key)
        return None if windows is None else windows.get(cell)

    def open(self, key: bytes, cell: bytes, start: int | None, end: int | None, undo: Undo) -> OpenWindow:
        """Return the window of a cell, live: read from state, or new. It is saved to `undo` first."""
        windows = self._by_cell.get(key)
        w = None if windows is None else windows.get(cell)
        if w is None:
            w = self.get(key, cell, start, end)
        undo.append(w.save())
        if not w.is_live:  # new, or closed earlier in this batch
            self._accumulators.clear(w)
            w.pane, w.has_news, w.retractable, w.trigger_state, w.newest = 0, False, (), None, None
            w.is_live = True
        return w

    def get(self, key: bytes, cell: bytes, start: int | None, end: int | None) -> OpenWindow:
        """Return the window of a cell, read from state if need be. A new one is not live yet."""
        windows = self._by_cell.get(key)
        if windows is None:
            windows = self._by_cell[key] = {}
        w = windows.get(cell)
        if w is None:
            data = self._view.get(self._step, key, cell)
            if data is None:
                w = OpenWindow(key, cell, start, end)
            else:
                w = self._accumulators.decode(key, cell, start, end, data)
            windows[cell] = w
        return w

    def load(self, entry: Entry, start: int | None, end: int | None) -> OpenWindow:
        """Add the window of a stored cell."""
        w = self._accumulators.decode(entry.key, entry.cell, start, end, entry.value)
        self.add(w)
        return w

    def add(self, w: OpenWindow) -> None:
        """Add a window under its cell."""
        self._by_cell.setdefault(w.key, {})[w.cell] = w

    def add_unnamed(self, w: OpenWindow) -> None:
        """Add a new window whose cell may still change; `find` does not see it."""
        self._unnamed.append(w)

    def open_between(self, key: bytes, first: bytes, last: bytes) -> list[OpenWindow]:
        """Return the live windows of a key whose cells are between two names, in that order."""
        windows = self._by_cell.get(key, {})
        cells = sorted(cell for cell, w in windows.items() if w.is_live and first <= cell <= last)
        return [windows[cell] for cell in cells]

    def changes(
        self, due_of: Callable[[OpenWindow], int | None], wall_of: Callable[[OpenWindow], int | None]
    ) -> dict[tuple[bytes, bytes], Change]:
        """Return what this batch has changed, by key and cell.

        `due_of` and `wall_of` give the watermark and the time of the clock at which a window has something to do.
        """
        found: dict[tuple[bytes, bytes], Change] = {}
        encode = self._accumulators.encode
        for w in self:
            if not w.is_changed:
                continue
            if w.stored_cell is not None and (not w.is_live or w.stored_cell != w.cell):
                found.setdefault((w.key, w.stored_cell), Change(w.key, w.stored_cell, None))
            if w.is_live:
                found[w.key, w.cell] = Change(w.key, w.cell, encode(w), due_of(w), wall_of(w))
            if w.chunk_ids or w.dropped_ids:
                for cell, value in self._accumulators.chunks(w):
                    found[w.key, cell] = Change(w.key, cell, value)
        return found
