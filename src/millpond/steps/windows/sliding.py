"""Sliding windows: `[t - size, t]` for each distinct time t.

The rows of each distinct time are kept apart, as a part, until no window that holds them can come. Where windows
show nothing before they close, a row costs its own part and nothing else; the parts of a window are merged when it
closes, those of long stretches as blocks, and of windows that close one after the other only what differs is merged
again. Where a trigger may show panes, each window keeps accumulators of its own, made of the parts when its first row
comes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from millpond.replica import Entry
from millpond.steps.base import StepContext
from millpond.steps.windows.assigner import closing_inclusive
from millpond.steps.windows.cell_names import extent_of, text_of, time_cell, time_of, window_cell
from millpond.steps.windows.open_window import Accumulators, Window
from millpond.steps.windows.read_range import Stretch
from millpond.steps.windows.sliding_cache import WORTH, Blocks
from millpond.steps.windows.step import Saved, Windows
from millpond.timing import Unit, as_user

if TYPE_CHECKING:
    from millpond.steps.windows.window_step import WindowStep


@dataclass
class _Met(Stretch):
    """What this batch has met of a key: all parts between two times, and windows."""

    times: list[int] = field(default_factory=list)  # of the parts, in order
    parts: dict[int, Window] = field(default_factory=dict)
    windows: dict[bytes, Window] = field(default_factory=dict)
    closings: int = 0
    slide: _Slide | None = None


class Slides(Windows):
    """Sliding windows per key."""

    MERGING = True

    def __init__(self, step: WindowStep, context: StepContext) -> None:
        self._met: dict[bytes, _Met] = {}
        self._over: list[Window] = []  # parts that no window needs any more
        self._blocks: Blocks | None = None
        super().__init__(step, context)
        self._lazy = not self.trigger.causes

    def measure(self, unit: Unit) -> None:
        self.size, self.grace = self.span(self.window.size, "size"), self.span(self.grace_given, "grace")
        blocks = Blocks(self.step.name, self.context.view, self.accumulators, self.size, unit)
        before, now = self.context.previous_detail or {}, self.step.detail
        if any(before.get(what) != now.get(what) for what in ("window", "grace", "clock")):
            blocks.drop_all()
        # By the clock of a key all parts that are over are met anyway; what is collected is read part by part.
        if blocks.width > 1 and not self.by_key and not self.accumulators.collects:
            self._blocks = blocks
        self._all_blocks = blocks

    def closes(self, w: Window) -> int:
        assert w.end is not None
        # A part stays until the last window that can hold it has closed.
        return closing_inclusive(w.end, self.grace) + (self.size if w.closed else 0)

    def meet(self, key: bytes, at: int | None, row: Any, saved: Saved) -> tuple[list[Window], list[Any]]:
        if at is None or self.unit is None:
            raise self.no_time()
        mark = self.late_by(key)
        missed: list[Any] = []
        is_late = mark is not None and closing_inclusive(at, self.grace) <= mark
        if is_late:
            assert mark is not None
            met = self._reach(key, at, at + self.size)
            later = met.times[bisect_right(met.times, at) : bisect_right(met.times, at + self.size)]
            closed = [at, *(t for t in later if closing_inclusive(t, self.grace) <= mark)]
            missed = [(t - self.size, t) for t in closed]
            if closing_inclusive(at + self.size, self.grace) <= mark:
                return [], missed
            if self._all_blocks.width:
                self._all_blocks.drop(key, at, saved)
        if self._lazy:
            part = self._part(key, at, saved)
            part.closed = part.closed or is_late
            return [part], missed
        return self._own(key, at, row, mark, is_late, saved), missed

    def _own(self, key: bytes, at: int, row: Any, mark: int | None, is_late: bool, saved: Saved) -> list[Window]:
        """The windows that hold the row, each with accumulators of its own."""
        assert self.unit is not None
        accumulators = self.accumulators
        met = self._reach(key, at - self.size, at + self.size)
        found = []
        if not is_late:
            w = self._window(key, at)
            saved.append(w.save())
            if not w.alive:
                w.alive = True
                self._fill(w, met, at)
            found.append(w)
        for t in met.times[bisect_right(met.times, at) : bisect_right(met.times, at + self.size)]:
            w = self._window(key, t)
            if w.alive and (mark is None or closing_inclusive(t, self.grace) > mark):
                saved.append(w.save())
                found.append(w)
        part = self._part(key, at, saved)
        part.closed = True
        time = as_user(at, self.unit) if accumulators.needs_time else None
        accumulators.add(part, row, time, accumulators.stamp())
        return found

    def _fill(self, w: Window, met: _Met, at: int) -> None:
        """A new window holds the rows that came before it was there."""
        before = met.times[bisect_left(met.times, at - self.size) : bisect_right(met.times, at)]
        found: Window | None = None
        for t in before:
            found = together(self.accumulators, found, met.parts[t])
        if found is not None:
            self.accumulators.refill(w, found)

    def _window(self, key: bytes, at: int) -> Window:
        assert self.unit is not None
        met, cell = self._met[key], window_cell(at - self.size, at, self.unit)
        w = met.windows.get(cell)
        if w is None:
            data = self.context.view.get(self.step.name, key, cell)
            w = Window(key, cell, at - self.size, at)
            if data is not None:
                w = self.accumulators.decode(key, cell, at - self.size, at, data)
            met.windows[cell] = w
        return w

    # --- parts ---

    def _part(self, key: bytes, at: int, saved: Saved) -> Window:
        assert self.unit is not None
        met = self._reach(key, at, at)
        part = met.parts.get(at)
        if part is None:
            part = Window(key, time_cell(at, self.unit), at - self.size, at)
            met.parts[at] = part
        saved.append(part.save())
        if not part.alive:
            part.alive, part.closed = True, False
            insort(met.times, at)
            saved.append(lambda: met.times.remove(at))
        return part

    def _reach(self, key: bytes, first: int, last: int) -> _Met:
        """Read the parts of a key between two times, if this batch has not."""
        met = self._met.get(key)
        if met is None:
            met = self._met[key] = _Met()
        met.reach(first, last, partial(self._read, key, met))
        return met

    def _read(self, key: bytes, met: _Met, first: int, last: int) -> None:
        assert self.unit is not None
        begin, end = time_cell(first, self.unit), time_cell(last, self.unit)
        for entry in self.context.view.range(self.step.name, key, begin, end):
            self._keep(met, entry)

    def _keep(self, met: _Met, entry: Entry) -> Window:
        at, unit = time_of(entry.cell[2:])
        self.know(unit)
        part = met.parts.get(at)
        if part is None:
            part = self.accumulators.decode(entry.key, entry.cell, at - self.size, at, entry.value)
            met.parts[at] = part
            insort(met.times, at)
        return part

    # --- windows close ---

    def close(self, w: Window, shown: list[Any]) -> None:
        if w.closed:
            self._over.append(w)
        elif self._lazy:
            try:
                whole = self._whole(w)
                self.show(whole, True, shown)
            finally:
                w.closed = w.changed = True
                if self.closes(w) <= self._upto(w.key):
                    self._over.append(w)
        else:
            super().close(w, shown)

    def _upto(self, key: bytes) -> int:
        mark = (
            self.marks.newest(key)
            if self.by_key and not self.context.time.is_final
            else self.context.time.end_watermark
        )
        return -(1 << 63) if mark is None else mark

    def passed(self) -> None:
        for part in self._over:
            self.drop(part)
        self._over = []

    def _whole(self, w: Window) -> Window:
        """All rows of a window, made of its parts."""
        assert w.end is not None
        met = self._met[w.key]
        met.closings += 1
        if self._blocks is not None and met.closings <= _FEW:
            return self._of_blocks(w, met, self._blocks)
        if met.slide is None or w.end < met.slide.end:
            met.slide = _Slide(self.accumulators)
            self._reach(w.key, w.end - self.size, w.end)
        elif met.last is None or w.end > met.last:
            self._reach(w.key, met.slide.end, w.end)
        slide = met.slide
        since = w.end - self.size - 1 if slide.end is _NEVER else max(slide.end, w.end - self.size - 1)
        for t in met.times[bisect_right(met.times, since) : bisect_right(met.times, w.end)]:
            slide.push(t, met.parts[t])
        found = slide.since(w.end - self.size)
        slide.end = w.end
        whole = together(self.accumulators, None, found if found is not None else w)
        whole.start, whole.end, whole.key = w.start, w.end, w.key
        return whole

    def _of_blocks(self, w: Window, met: _Met, blocks: Blocks) -> Window:
        """The same, of blocks where there are some; where there could be, they are made."""
        assert w.start is not None and w.end is not None
        begin, after = blocks.inside(w.start, w.end)
        whole: Window | None = None
        at = w.start
        for start, block in blocks.between(w.key, begin, after).items() if begin < after else ():
            whole = self._of_parts(whole, w.key, met, at, start - 1, blocks, (begin, after))
            whole = together(self.accumulators, whole, block)
            at = start + blocks.width
        whole = self._of_parts(whole, w.key, met, at, w.end, blocks, (begin, after))
        found = together(self.accumulators, None, whole if whole is not None else w)
        found.start, found.end, found.key = w.start, w.end, w.key
        return found

    def _of_parts(
        self, whole: Window | None, key: bytes, met: _Met, first: int, last: int, blocks: Blocks, full: tuple[int, int]
    ) -> Window | None:
        """The whole so far, and the parts between two times."""
        if first > last:
            return whole
        self._read(key, met, first, last)
        times = met.times[bisect_left(met.times, first) : bisect_right(met.times, last)]
        for number, group in groupby(times, key=lambda t: t // blocks.width):
            inside = [met.parts[t] for t in group]
            found: Window | None = None
            for part in inside:
                found = together(self.accumulators, found, part)
            assert found is not None
            start = number * blocks.width
            lasts = closing_inclusive(start + blocks.width + self.size, self.grace) > self._upto(key)
            if len(inside) >= WORTH and full[0] <= start < full[1] and lasts:
                blocks.make(key, start, found)
            whole = together(self.accumulators, whole, found)
        return whole

    # --- what all kinds of windows are asked ---

    def held(self) -> Iterator[Window]:
        for met in self._met.values():
            yield from met.parts.values()
            yield from met.windows.values()
        if self.unit is not None:
            yield from self._all_blocks.held()

    def met(self, key: bytes, cell: bytes) -> Window | None:
        if cell[:2] == b"b:":
            return None if self.unit is None else self._all_blocks.met(key, cell)
        met = self._met.get(key)
        if met is None:
            return None
        return met.parts.get(time_of(cell[2:])[0]) if cell[:2] == b"t:" else met.windows.get(cell)

    def take(self, entry: Entry) -> Window:
        met = self._met.setdefault(entry.key, _Met())
        if entry.cell[:2] == b"t:":
            return self._keep(met, entry)
        if entry.cell[:2] == b"b:":
            self.know(time_of(entry.cell.partition(b"/")[2])[1])
            return self._all_blocks.take(entry)
        start, end, unit = extent_of(entry.cell)
        self.know(unit)
        w = met.windows[entry.cell] = self.accumulators.decode(entry.key, entry.cell, start, end, entry.value)
        return w

    def open(self, key: bytes) -> list[Window]:
        met = self._met.setdefault(key, _Met())
        for entry in list(self.context.view.range(self.step.name, key, b"w:", b"w:~")):
            if entry.cell not in met.windows:
                self.take(entry)
        return [w for _, w in sorted(met.windows.items()) if w.alive]

    def ended(self, key: bytes, newest: int) -> list[Window]:
        assert self.unit is not None
        met = self._met.setdefault(key, _Met())
        for entry in list(self.context.view.range(self.step.name, key, b"t:", b"t:" + text_of(newest, self.unit))):
            self._keep(met, entry)
        windows = [] if self._lazy else [w for w in self.open(key) if w.end is not None and w.end <= newest]
        return [*windows, *(met.parts[t] for t in met.times[: bisect_right(met.times, newest)])]


_NEVER = -(1 << 63)
_FEW = 8  # windows of a key that close in one batch: of more, all parts are read at once


class _Slide:
    """Parts one after the other, from the newer end in and from the older end out, and what they come to at any time.

    Two stacks: each part is merged twice at most, however many windows hold it.
    """

    def __init__(self, accumulators: Accumulators) -> None:
        self._accumulators = accumulators
        self._front: list[tuple[int, Window]] = []  # the oldest last, each with all that came in before its flip
        self._back: list[tuple[int, Window]] = []
        self._newer: Window | None = None  # all of the back
        self.end = _NEVER

    def push(self, at: int, part: Window) -> None:
        self._back.append((at, part))
        self._newer = together(self._accumulators, self._newer, part)

    def since(self, first: int) -> Window | None:
        """All parts that are not older; older ones are forgotten."""
        while self._front and self._front[-1][0] < first:
            self._front.pop()
        if not self._front:
            found: Window | None = None
            for at, part in reversed(self._back):
                if at < first:
                    break
                found = together(self._accumulators, part, found)
                self._front.append((at, found))
            self._back, self._newer = [], None
        older = self._front[-1][1] if self._front else None
        if older is None or self._newer is None:
            return older or self._newer
        return together(self._accumulators, older, self._newer)


def together(accumulators: Accumulators, one: Window | None, other: Window | None) -> Window:
    """A window with all that two of them hold; they stay as they are."""
    first = one if one is not None else other
    assert first is not None
    found = Window(first.key, first.cell, first.start, first.end)
    found.accs, found.came, found.ids, found.fresh = first.accs, first.came, first.ids, first.fresh
    if one is not None and other is not None:
        accumulators.merge(found, other)
    return found
