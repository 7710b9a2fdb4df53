"""Windows with a place of their own: tumbling and hopping ones, the global one, and those that go by rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from millpond.replica import Entry
from millpond.steps.base import StepContext
from millpond.steps.windows.assigner import closing, places_of, starts_of
from millpond.steps.windows.cell_names import GLOBAL, extent_of, window_cell
from millpond.steps.windows.open_window import Window
from millpond.steps.windows.step import Saved, Windows
from millpond.timing import MAX_TICKS, Unit

if TYPE_CHECKING:
    from millpond.steps.windows.window_step import WindowStep


class Placed(Windows):
    """Windows that are found by their names."""

    def __init__(self, step: WindowStep, context: StepContext) -> None:
        self._met: dict[bytes, dict[bytes, Window]] = {}
        super().__init__(step, context)

    def find(self, key: bytes, cell: bytes, start: int | None, end: int | None, saved: Saved) -> Window:
        """The window of this name, a new one if there is none; saved."""
        met = self._met.get(key)
        if met is None:
            met = self._met[key] = {}
        w = met.get(cell)
        if w is None:
            data = self.context.view.get(self.step.name, key, cell)
            w = Window(key, cell, start, end)
            if data is not None:
                w = self.accumulators.decode(key, cell, start, end, data)
            met[cell] = w
        saved.append(w.save())
        if not w.alive:
            self.begin(w)
        return w

    def begin(self, w: Window) -> None:
        """A window opens, perhaps where one was before."""
        self.accumulators.clear(w)
        w.pane, w.news, w.past, w.trigger, w.newest = 0, False, (), None, None
        w.alive = True

    def held(self) -> Iterator[Window]:
        for met in self._met.values():
            yield from met.values()

    def met(self, key: bytes, cell: bytes) -> Window | None:
        met = self._met.get(key)
        return None if met is None else met.get(cell)

    def take(self, entry: Entry) -> Window:
        start, end = self.extent(entry.cell)
        w = self.accumulators.decode(entry.key, entry.cell, start, end, entry.value)
        self._met.setdefault(entry.key, {})[entry.cell] = w
        return w

    def extent(self, cell: bytes) -> tuple[int | None, int | None]:
        start, end, unit = extent_of(cell)
        if self.TIMED:
            self.know(unit)
        return start, end

    def open(self, key: bytes) -> list[Window]:
        return self._among(key, b"w:", b"w:~")

    def _among(self, key: bytes, first: bytes, last: bytes) -> list[Window]:
        for entry in list(self.context.view.range(self.step.name, key, first, last)):
            if self.met(key, entry.cell) is None:
                self.take(entry)
        met = self._met.get(key, {})
        return [w for cell, w in sorted(met.items()) if w.alive and first <= cell <= last]


class Hops(Placed):
    """Tumbling and hopping windows."""

    def measure(self, unit: Unit) -> None:
        window = self.window
        self.size, self.every = self.span(window.size, "size"), self.span(window.every, "every")
        self.offset, self.grace = self.span(window.offset, "offset"), self.span(self.grace_given, "grace")

    def meet(self, key: bytes, at: int | None, row: Any, saved: Saved) -> tuple[list[Window], list[Any]]:
        if at is None or self.unit is None:
            raise self.no_time()
        mark = self.late_by(key)
        windows, missed = [], []
        for start in self.starts(at):
            end = start + self.size
            if mark is not None and closing(end, self.grace) <= mark:
                missed.append((start, end))
            else:
                windows.append(self.find(key, window_cell(start, end, self.unit), start, end, saved))
        return windows, missed

    def starts(self, at: int) -> range:
        """The starts of the windows that hold a time."""
        return starts_of(at, self.size, self.every, self.offset)

    def closes(self, w: Window) -> int:
        assert w.end is not None
        return closing(w.end, self.grace)

    def time(self, w: Window) -> int | None:
        assert w.end is not None
        return w.end - 1

    def ended(self, key: bytes, newest: int) -> list[Window]:
        assert self.unit is not None
        return self._among(key, b"w:", b"w:%b~" % window_cell(newest - self.size, 0, self.unit)[2:].partition(b"/")[0])


class Everything(Placed):
    """The one global window of a key."""

    TIMED = False

    def meet(self, key: bytes, at: int | None, row: Any, saved: Saved) -> tuple[list[Window], list[Any]]:
        return [self.find(key, GLOBAL, None, None, saved)], []

    def closes(self, w: Window) -> int:
        return MAX_TICKS

    def extent(self, cell: bytes) -> tuple[int | None, int | None]:
        return None, None

    def open(self, key: bytes) -> list[Window]:
        return self._among(key, GLOBAL, GLOBAL)

    def ended(self, key: bytes, newest: int) -> list[Window]:
        return []

    def time(self, w: Window) -> int | None:
        return w.newest


class Counts(Placed):
    """Windows of so many rows."""

    TIMED = False

    def meet(self, key: bytes, at: int | None, row: Any, saved: Saved) -> tuple[list[Window], list[Any]]:
        nth = self.marks.count(key)
        self.marks.counted(key, nth + 1, saved)
        size, first = self.window.size, self.marks.first_start(key)
        return [
            self.find(key, window_cell(start, start + size, "number"), start, start + size, saved)
            for start in places_of(nth, size, self.window.every)
            if start >= first
        ], []

    def close(self, w: Window, shown: list[Any]) -> None:
        # The input has ended. If it goes on after all, its windows are new ones: none is final twice.
        every = self.window.every
        self.marks.count_from(w.key, -(-self.marks.count(w.key) // every) * every)
        super().close(w, shown)

    def counted(self, w: Window, key: bytes, saved: Saved) -> bool:
        return self.marks.count(key) == w.end

    def closes(self, w: Window) -> int:
        return MAX_TICKS

    def ended(self, key: bytes, newest: int) -> list[Window]:
        return []

    def time(self, w: Window) -> int | None:
        return w.newest
