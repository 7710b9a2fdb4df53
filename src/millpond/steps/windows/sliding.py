"""Sliding windows: `[t - size, t]` for each distinct time t.

The rows of each distinct time are stored as a part, until no window that holds them can come. If windows show nothing
before they close, a row changes its own part only; the parts of a window are merged when it closes. Long spans of parts
are stored merged (sliding_cache.py), and for windows that close one after the other only the difference is merged. If a
trigger may fire earlier, each window has accumulators of its own, merged from the parts when its first row comes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

from millpond.replica import Entry
from millpond.steps.windows.assigner import Assigner
from millpond.steps.windows.cell_names import Extent, extent_of, text_of, time_cell, time_of, window_cell
from millpond.steps.windows.row_windows import Accumulators, OpenWindow, ReadRange, Undo
from millpond.steps.windows.sliding_cache import MIN_PARTS, SlidingBlocks
from millpond.steps.windows.window_batch import WindowBatch
from millpond.timing import Unit, as_user

_NO_MARK = -(1 << 63)
_MAX_BY_BLOCKS = 8  # windows of a key that close in one batch by blocks; for more, all parts are read at once


@dataclass
class _KeyParts(ReadRange):
    """The parts of a key: all that are in the range of time that was read."""

    times: list[int] = field(default_factory=list)  # of the parts, in order
    parts: dict[int, OpenWindow] = field(default_factory=dict)
    closings: int = 0
    queue: _PartQueue | None = None


class SlidingAssigner(Assigner):
    """Assigns rows to sliding windows."""

    def __init__(self, batch: WindowBatch) -> None:
        self._by_key: dict[bytes, _KeyParts] = {}
        self._is_lazy = not batch.trigger.causes  # windows show nothing before they close
        self._uses_blocks = False
        super().__init__(batch)

    def measure(self, unit: Unit) -> None:
        batch = self.batch
        self._size, self._grace = (
            batch.ticks(self.definition.size, "size"),
            batch.ticks(batch.step.grace, "grace"),
        )
        self._blocks = SlidingBlocks(batch.step.name, batch.context.view, self.windows, self._size, unit)
        before, now = batch.context.previous_detail or {}, batch.step.detail
        if any(before.get(what) != now.get(what) for what in ("window", "grace", "clock")):
            self._blocks.drop_all()
        # By the clock of a key all parts that are over are read anyway; collected values are read part by part.
        self._uses_blocks = self._blocks.width > 1 and not batch.is_clock_of_key and not batch.accumulators.collects

    def closes_at(self, w: OpenWindow) -> int:
        assert w.end is not None
        # A part stays until the last window that can hold it has closed.
        return self._closes_after(w.end) + (self._size if w.is_emitted else 0)

    def _closes_after(self, end: int) -> int:
        """Return the watermark at which a window `[end - size, end]` closes."""
        return end + self._grace + 1

    # --- rows ---

    def windows_for(self, key: bytes, at: int | None, row: Any, undo: Undo) -> tuple[list[OpenWindow], list[Extent]]:
        if at is None or self.batch.unit is None:
            raise self.batch.missing_time()
        mark = self.batch.late_mark(key)
        missed: list[Extent] = []
        is_late = mark is not None and self._closes_after(at) <= mark
        if is_late:
            assert mark is not None
            read = self._read_between(key, at, at + self._size)
            later = read.times[bisect_right(read.times, at) : bisect_right(read.times, at + self._size)]
            closed = [at, *(t for t in later if self._closes_after(t) <= mark)]
            missed = [(t - self._size, t) for t in closed]
            if self._closes_after(at + self._size) <= mark:
                return [], missed
            if self._blocks.width:
                self._blocks.drop(key, at, undo)
        if self._is_lazy:
            part = self._part(key, at, undo)
            part.is_emitted = part.is_emitted or is_late
            return [part], missed
        return self._early_windows(key, at, row, is_late, undo), missed

    def _early_windows(self, key: bytes, at: int, row: Any, is_late: bool, undo: Undo) -> list[OpenWindow]:
        """Return the open windows that hold a row, each with accumulators of its own, and add the row to its part."""
        assert self.batch.unit is not None
        accumulators = self.batch.accumulators
        read = self._read_between(key, at - self._size, at + self._size)
        found = []
        if not is_late:
            w = self._window(key, at)
            undo.append(w.save())
            if not w.is_live:
                w.is_live = True
                self._fill(w, read, at)
            found.append(w)
        mark = self.batch.late_mark(key)
        for t in read.times[bisect_right(read.times, at) : bisect_right(read.times, at + self._size)]:
            w = self._window(key, t)
            if w.is_live and (mark is None or self._closes_after(t) > mark):
                undo.append(w.save())
                found.append(w)
        part = self._part(key, at, undo)
        part.is_emitted = True
        time = as_user(at, self.batch.unit) if accumulators.needs_time else None
        accumulators.add(part, row, time, accumulators.stamp())
        return found

    def _fill(self, w: OpenWindow, read: _KeyParts, at: int) -> None:
        """Copy the rows that came before a new window was opened into it."""
        before = read.times[bisect_left(read.times, at - self._size) : bisect_right(read.times, at)]
        found: OpenWindow | None = None
        for t in before:
            found = merge_windows(self.batch.accumulators, found, read.parts[t])
        if found is not None:
            self.batch.accumulators.refill(w, found)

    def _window(self, key: bytes, at: int) -> OpenWindow:
        assert self.batch.unit is not None
        return self.windows.get(key, window_cell(at - self._size, at, self.batch.unit), at - self._size, at)

    # --- parts ---

    def _part(self, key: bytes, at: int, undo: Undo) -> OpenWindow:
        assert self.batch.unit is not None
        read = self._read_between(key, at, at)
        part = read.parts.get(at)
        if part is None:
            part = OpenWindow(key, time_cell(at, self.batch.unit), at - self._size, at)
            read.parts[at] = part
            self.windows.add(part)
        undo.append(part.save())
        if not part.is_live:
            part.is_live, part.is_emitted = True, False
            insort(read.times, at)
            undo.append(lambda: read.times.remove(at))
        return part

    def _read_between(self, key: bytes, first: int, last: int) -> _KeyParts:
        """Read the parts of a key between two times, if this batch has not yet."""
        read = self._parts(key)
        read.extend(first, last, partial(self._read, key, read))
        return read

    def _parts(self, key: bytes) -> _KeyParts:
        read = self._by_key.get(key)
        if read is None:
            read = self._by_key[key] = _KeyParts()
        return read

    def _read(self, key: bytes, read: _KeyParts, first: int, last: int) -> None:
        assert self.batch.unit is not None
        begin, end = time_cell(first, self.batch.unit), time_cell(last, self.batch.unit)
        for entry in self.batch.context.view.range(self.batch.step.name, key, begin, end):
            self._load_part(read, entry)

    def _load_part(self, read: _KeyParts, entry: Entry) -> OpenWindow:
        at, unit = time_of(entry.cell[2:])
        if self.batch.unit is None:
            self.learn_unit(unit)
        part = read.parts.get(at)
        if part is None:
            part = read.parts[at] = self.windows.load(entry, at - self._size, at)
            insort(read.times, at)
        return part

    # --- closing ---

    def close(self, w: OpenWindow) -> OpenWindow | None:
        if w.is_emitted:
            w.drop()
            return None
        if not self._is_lazy:
            w.drop()
            return w if w.has_news else None
        try:
            return self._merge_parts(w)
        finally:
            w.is_emitted = w.is_changed = True
            if self.closes_at(w) <= self._end_mark(w.key):
                w.drop()

    def pane_time(self, w: OpenWindow) -> int | None:
        return w.end

    def _end_mark(self, key: bytes) -> int:
        """Return the watermark that decides what closes in this batch."""
        time, is_by_key = self.batch.time, self.batch.is_clock_of_key
        mark = self.batch.key_state.newest(key) if is_by_key and not time.is_final else time.end_watermark
        return _NO_MARK if mark is None else mark

    def _merge_parts(self, w: OpenWindow) -> OpenWindow:
        """Return a window with all rows of `w`, merged from its parts."""
        assert w.end is not None
        read = self._by_key[w.key]
        read.closings += 1
        if self._uses_blocks and read.closings <= _MAX_BY_BLOCKS:
            return self._merge_blocks(w, read)
        if read.queue is None or w.end < read.queue.end:
            read.queue = _PartQueue(self.batch.accumulators)
            self._read_between(w.key, w.end - self._size, w.end)
        elif read.last is None or w.end > read.last:
            self._read_between(w.key, read.queue.end, w.end)
        queue = read.queue
        since = w.end - self._size - 1 if queue.end is _NO_MARK else max(queue.end, w.end - self._size - 1)
        for t in read.times[bisect_right(read.times, since) : bisect_right(read.times, w.end)]:
            queue.push(t, read.parts[t])
        found = queue.merge_since(w.end - self._size)
        queue.end = w.end
        return self._whole(w, found)

    def _whole(self, w: OpenWindow, merged_parts: OpenWindow | None) -> OpenWindow:
        whole = merge_windows(self.batch.accumulators, None, merged_parts if merged_parts is not None else w)
        whole.start, whole.end, whole.key = w.start, w.end, w.key
        return whole

    def _merge_blocks(self, w: OpenWindow, read: _KeyParts) -> OpenWindow:
        """Merge the blocks in a window and the parts between them, and make the blocks that are missing."""
        assert w.start is not None and w.end is not None
        begin, after = self._blocks.inside(w.start, w.end)
        whole: OpenWindow | None = None
        at = w.start
        for block in self._blocks.between(w.key, begin, after) if begin < after else ():
            assert block.start is not None
            whole = self._merge_range(whole, w, read, (at, block.start - 1))
            whole = merge_windows(self.batch.accumulators, whole, block)
            at = block.start + self._blocks.width
        return self._whole(w, self._merge_range(whole, w, read, (at, w.end)))

    def _merge_range(
        self, whole: OpenWindow | None, w: OpenWindow, read: _KeyParts, times: tuple[int, int]
    ) -> OpenWindow | None:
        """Merge the parts of `w` from a first to a last time into the whole so far."""
        first, last = times
        if first > last:
            return whole
        assert w.start is not None and w.end is not None
        blocks, accumulators = self._blocks, self.batch.accumulators
        begin, after = blocks.inside(w.start, w.end)
        self._read(w.key, read, first, last)
        inside = read.times[bisect_left(read.times, first) : bisect_right(read.times, last)]
        for number, group in groupby(inside, key=lambda t: t // blocks.width):
            parts = [read.parts[t] for t in group]
            found: OpenWindow | None = None
            for part in parts:
                found = merge_windows(accumulators, found, part)
            assert found is not None
            start = number * blocks.width
            is_needed = self._closes_after(start + blocks.width + self._size) > self._end_mark(w.key)
            if len(parts) >= MIN_PARTS and begin <= start < after and is_needed:
                blocks.make(w.key, start, found)
            whole = merge_windows(accumulators, whole, found)
        return whole

    # --- loading ---

    def load(self, entry: Entry) -> OpenWindow:
        if entry.cell[:2] == b"t:":
            return self._load_part(self._parts(entry.key), entry)
        if entry.cell[:2] == b"b:":
            self.learn_unit(time_of(entry.cell.partition(b"/")[2])[1])
            return self._blocks.load(entry)
        start, end, unit = extent_of(entry.cell)
        self.learn_unit(unit)
        return self.windows.load(entry, start, end)

    def open_windows(self, key: bytes) -> list[OpenWindow]:
        return self.load_between(key, b"w:", b"w:~")

    def ended_windows(self, key: bytes, newest: int) -> list[OpenWindow]:
        assert self.batch.unit is not None
        read = self._parts(key)
        last = b"t:" + text_of(newest, self.batch.unit)
        for entry in list(self.batch.context.view.range(self.batch.step.name, key, b"t:", last)):
            self._load_part(read, entry)
        windows = [] if self._is_lazy else [w for w in self.open_windows(key) if w.end is not None and w.end <= newest]
        return [*windows, *(read.parts[t] for t in read.times[: bisect_right(read.times, newest)])]


class _PartQueue:
    """A queue of parts, in order of time, and what the parts in it merge to.

    Two stacks: each part is merged twice at most, however many windows hold it.
    """

    def __init__(self, accumulators: Accumulators) -> None:
        self._accumulators = accumulators
        # The oldest part is last; each is merged with those that were newer when the back became the front.
        self._front: list[tuple[int, OpenWindow]] = []
        self._back: list[tuple[int, OpenWindow]] = []
        self._back_merged: OpenWindow | None = None
        self.end = _NO_MARK

    def push(self, at: int, part: OpenWindow) -> None:
        """Add a part that is newer than all others."""
        self._back.append((at, part))
        self._back_merged = merge_windows(self._accumulators, self._back_merged, part)

    def merge_since(self, first: int) -> OpenWindow | None:
        """Remove the parts before a time, and return the others merged; None if there are none."""
        while self._front and self._front[-1][0] < first:
            self._front.pop()
        if not self._front:
            found: OpenWindow | None = None
            for at, part in reversed(self._back):
                if at < first:
                    break
                found = merge_windows(self._accumulators, part, found)
                self._front.append((at, found))
            self._back, self._back_merged = [], None
        older = self._front[-1][1] if self._front else None
        if older is None or self._back_merged is None:
            return older or self._back_merged
        return merge_windows(self._accumulators, older, self._back_merged)


def merge_windows(accumulators: Accumulators, one: OpenWindow | None, other: OpenWindow | None) -> OpenWindow:
    """Return a new window with everything that two of them hold; both stay as they are."""
    first = one if one is not None else other
    assert first is not None
    found = OpenWindow(first.key, first.cell, first.start, first.end)
    found.accs, found.arrived = first.accs, first.arrived
    found.chunk_ids, found.gathered = first.chunk_ids, first.gathered
    if one is not None and other is not None:
        accumulators.merge(found, other)
    return found
