"""Session windows: they grow with their rows, and merge where a row is near to two of them."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from millpond.replica import Entry
from millpond.steps.windows.assigner import Assigner
from millpond.steps.windows.cell_names import Extent, extent_of, session_cell, text_of
from millpond.steps.windows.row_windows import OpenWindow, ReadRange, Undo
from millpond.steps.windows.session_merge import clusters, extend
from millpond.steps.windows.window_batch import WindowBatch
from millpond.timing import Unit


def _end(w: OpenWindow) -> int:
    assert w.end is not None
    return w.end


@dataclass
class _KeySessions(ReadRange):
    """The live sessions of a key, in the order of their times: all that are in the range of time that was read."""

    live: list[OpenWindow] = field(default_factory=list)


class SessionAssigner(Assigner):
    """Assigns rows to sessions. Only the sessions of a key that are near a row of the batch are read.

    A row that is late, unless a later row of its batch connects it to an open session, waits for the end of the batch.
    """

    may_wait = True

    def __init__(self, batch: WindowBatch) -> None:
        self._by_key: dict[bytes, _KeySessions] = {}
        super().__init__(batch)

    def measure(self, unit: Unit) -> None:
        self._gap = self.batch.ticks(self.definition.gap, "gap")
        self._grace = self.batch.ticks(self.batch.step.grace, "grace")

    def closes_at(self, w: OpenWindow) -> int:
        return self._closes_after(_end(w))

    def _closes_after(self, last: int) -> int:
        """Return the watermark at which a session closes, from the time of its last row."""
        return last + self._gap + self._grace + 1

    def close(self, w: OpenWindow) -> OpenWindow | None:
        w.drop()
        live = self._by_key[w.key].live
        place = bisect_left(live, _end(w), key=_end)
        if place < len(live) and live[place] is w:
            del live[place]
        return w if w.has_news else None

    def pane_time(self, w: OpenWindow) -> int | None:
        return w.end

    # --- rows ---

    def must_wait(self, key: bytes, at: int) -> bool:
        return not self._is_on_time(key, at)

    def settle(self, key: bytes, times: list[int]) -> list[list[Extent]]:
        missed: list[list[Extent]] = [[(at, at)] for at in times]
        for cluster in clusters(times, self._gap):
            if any(self._is_on_time(key, times[place]) for place in cluster):
                for place in cluster:
                    missed[place] = []
        return missed

    def _is_on_time(self, key: bytes, at: int) -> bool:
        """Return whether a row is on time by itself or by a session that is open now."""
        mark = self.batch.late_mark(key)
        is_late = mark is not None and self._closes_after(at) <= mark
        return not is_late or bool(self._near(self._read_around(key, at), at))

    def windows_for(self, key: bytes, at: int | None, row: Any, undo: Undo) -> tuple[list[OpenWindow], list[Extent]]:
        assert at is not None and self.batch.unit is not None
        sessions = self._read_around(key, at)
        near = self._near(sessions, at)
        place = bisect_left(sessions.live, at - self._gap, key=_end)
        start, end = extend([(w.start, w.end) for w in near], at)  # type: ignore[misc]
        if near:
            w = near[0]
            for each in near:
                undo.append(each.save())
            for other in near[1:]:
                self._merge(w, other)
        else:
            w = OpenWindow(key, b"", start, end)
            undo.append(w.save())
            w.is_live = True
            self.windows.add_unnamed(w)
        w.start, w.end, w.cell, w.is_changed = start, end, session_cell(start, end, self.batch.unit), True
        sessions.live[place : place + len(near)] = [w]
        undo.append(lambda: sessions.live.__setitem__(slice(place, place + 1), near))
        return [w], []

    def _merge(self, w: OpenWindow, other: OpenWindow) -> None:
        assert w.arrived is not None or not w.accs
        if other.arrived is not None:
            if w.arrived is None:
                w.arrived = other.arrived
            earlier, later = (other, w) if other.arrived[0] < w.arrived[0] else (w, other)
            self.batch.accumulators.merge(w, other)
        else:
            earlier, later = w, other
            w.pane, w.retractable = max(w.pane, other.pane), w.retractable + other.retractable
            w.dropped_ids, w.chunk_ids = w.dropped_ids + other.dropped_ids, w.chunk_ids + other.chunk_ids
        w.trigger_state = self.batch.triggers.merge(earlier.trigger_state, later.trigger_state)
        other.dropped_ids, other.chunk_ids = (), ()  # they belong to `w` now
        other.drop()

    def _near(self, sessions: _KeySessions, at: int) -> list[OpenWindow]:
        """Return the sessions that a row at this time belongs to."""
        found = []
        for place in range(bisect_left(sessions.live, at - self._gap, key=_end), len(sessions.live)):
            w = sessions.live[place]
            assert w.start is not None
            if w.start > at + self._gap:
                break
            found.append(w)
        return found

    # --- reading ---

    def _read_around(self, key: bytes, at: int) -> _KeySessions:
        """Read the sessions of a key that are near a time, if this batch has not yet."""
        sessions = self._sessions(key)
        sessions.extend(at - self._gap, at + self._gap, partial(self._read, key))
        return sessions

    def _sessions(self, key: bytes) -> _KeySessions:
        sessions = self._by_key.get(key)
        if sessions is None:
            sessions = self._by_key[key] = _KeySessions()
        return sessions

    def _read(self, key: bytes, first: int, last: int) -> None:
        assert self.batch.unit is not None
        begin = b"s:" + text_of(first, self.batch.unit)
        for entry in self.batch.context.view.range(self.batch.step.name, key, begin, b"s:~"):
            start, _, _ = extent_of(entry.cell)
            if start > last:
                return
            if self.windows.find(key, entry.cell) is None:
                self.load(entry)

    def load(self, entry: Entry) -> OpenWindow:
        start, end, unit = extent_of(entry.cell)
        if self.batch.unit is None:
            self.learn_unit(unit)
        w = self.windows.load(entry, start, end)
        insort(self._sessions(entry.key).live, w, key=_end)
        return w

    def open_windows(self, key: bytes) -> list[OpenWindow]:
        return self._load_until(key, b"s:~")

    def ended_windows(self, key: bytes, newest: int) -> list[OpenWindow]:
        assert self.batch.unit is not None
        return self._load_until(key, b"s:" + text_of(newest, self.batch.unit) + b"~")

    def _load_until(self, key: bytes, last: bytes) -> list[OpenWindow]:
        for entry in list(self.batch.context.view.range(self.batch.step.name, key, b"s:", last)):
            if self.windows.find(key, entry.cell) is None:
                self.load(entry)
        return [w for w in self._sessions(key).live if w.cell <= last]
