"""Sessions: windows that grow with their rows, and join where a row lies between two of them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from millpond.replica import Entry
from millpond.rows.rows import Rows
from millpond.steps.base import StepContext
from millpond.steps.failure import FAULTS, FailedRow
from millpond.steps.windows.assigner import closing_inclusive
from millpond.steps.windows.cell_names import extent_of, session_cell, text_of
from millpond.steps.windows.open_window import Window
from millpond.steps.windows.read_range import Stretch
from millpond.steps.windows.session_merge import clusters, together
from millpond.steps.windows.step import Saved, Windows
from millpond.timing import Unit

if TYPE_CHECKING:
    from millpond.steps.windows.window_step import WindowStep


def _last(w: Window) -> int:
    assert w.end is not None
    return w.end


@dataclass
class _Met(Stretch):
    """The sessions of a key that this batch has met: all of those that lie between two times."""

    live: list[Window] = field(default_factory=list)  # in the order of their times
    all: list[Window] = field(default_factory=list)
    cells: dict[bytes, Window] = field(default_factory=dict)  # that they were read from


@dataclass
class _Waiting:
    """A row that waits for the end of its batch."""

    rows: Rows
    place: int
    at: int
    row: Any


class Sessions(Windows):
    """Sessions per key. Of those of a key only the ones near a batch's rows are read."""

    MERGING = True

    def __init__(self, step: WindowStep, context: StepContext) -> None:
        self._met: dict[bytes, _Met] = {}
        # A row that is late unless a later row of its batch leads to an open session waits for the end of the batch,
        # and so do all rows of its key that come after it: they count in the order of arrival.
        self._waiting: dict[bytes, list[_Waiting]] = {}
        self._certain = False
        super().__init__(step, context)

    def measure(self, unit: Unit) -> None:
        self.gap, self.grace = self.span(self.window.gap, "gap"), self.span(self.grace_given, "grace")

    def closes(self, w: Window) -> int:
        assert w.end is not None
        return closing_inclusive(w.end, self.gap + self.grace)

    # --- which sessions a row meets ---

    def one(self, rows: Rows, i: int, key: bytes, at: int | None, row: Any) -> None:
        if at is None or self.unit is None:
            raise self.no_time()
        if not self._certain and (key in self._waiting or not self._is_sure(key, at)):
            self._waiting.setdefault(key, []).append(_Waiting(rows, i, at, row))
            return
        super().one(rows, i, key, at, row)

    def _is_sure(self, key: bytes, at: int) -> bool:
        """Whether a row is on time whatever else comes in its batch."""
        mark = self.late_by(key)
        is_late = mark is not None and closing_inclusive(at, self.gap + self.grace) <= mark
        return not is_late or bool(self._near(self._reach(key, at), at))

    def meet(self, key: bytes, at: int | None, row: Any, saved: Saved) -> tuple[list[Window], list[Any]]:
        assert at is not None and self.unit is not None
        met = self._reach(key, at)
        near = self._near(met, at)
        place = bisect_left(met.live, at - self.gap, key=_last)
        start, end = together([(w.start, w.end) for w in near], at)  # type: ignore[misc]
        if near:
            w = near[0]
            for each in near:
                saved.append(each.save())
            for other in near[1:]:
                self._join(w, other)
        else:
            w = Window(key, b"", start, end)
            saved.append(w.save())
            w.alive = True
            met.all.append(w)
        w.start, w.end, w.cell, w.changed = start, end, session_cell(start, end, self.unit), True
        met.live[place : place + len(near)] = [w]
        saved.append(lambda: met.live.__setitem__(slice(place, place + 1), near))
        return [w], []

    def _join(self, w: Window, other: Window) -> None:
        assert w.came is not None or not w.accs
        if other.came is not None:
            if w.came is None:
                w.came = other.came
            earlier, later = (other, w) if other.came[0] < w.came[0] else (w, other)
            self.accumulators.merge(w, other)
        else:
            earlier, later = w, other
            w.pane, w.past = max(w.pane, other.pane), w.past + other.past
            w.gone, w.ids = w.gone + other.gone, w.ids + other.ids
        w.trigger = self.firing.joined(earlier.trigger, later.trigger)
        other.gone, other.ids = (), ()  # they are the first one's now
        super().drop(other)

    def _near(self, met: _Met, at: int) -> list[Window]:
        found = []
        for place in range(bisect_left(met.live, at - self.gap, key=_last), len(met.live)):
            w = met.live[place]
            assert w.start is not None
            if w.start > at + self.gap:
                break
            found.append(w)
        return found

    def _reach(self, key: bytes, at: int) -> _Met:
        """Read the sessions of a key around a time, if this batch has not."""
        assert self.unit is not None
        met = self._met.get(key)
        if met is None:
            met = self._met[key] = _Met()
        met.reach(at - self.gap, at + self.gap, partial(self._read, key, met))
        return met

    def _read(self, key: bytes, met: _Met, first: int, last: int) -> None:
        assert self.unit is not None
        begin = b"s:" + text_of(first, self.unit)
        for entry in self.context.view.range(self.step.name, key, begin, b"s:~"):
            start, _, _ = extent_of(entry.cell)
            if start > last:
                return
            if entry.cell not in met.cells:
                self._keep(met, entry)

    def _keep(self, met: _Met, entry: Entry) -> Window:
        start, end, unit = extent_of(entry.cell)
        self.know(unit)
        w = self.accumulators.decode(entry.key, entry.cell, start, end, entry.value)
        met.cells[entry.cell] = w
        met.all.append(w)
        insort(met.live, w, key=_last)
        return w

    # --- what all kinds of windows are asked ---

    def drop(self, w: Window) -> None:
        super().drop(w)
        live = self._met[w.key].live
        place = bisect_left(live, _last(w), key=_last)
        if place < len(live) and live[place] is w:
            del live[place]

    def held(self) -> Iterator[Window]:
        for met in self._met.values():
            yield from met.all

    def met(self, key: bytes, cell: bytes) -> Window | None:
        met = self._met.get(key)
        return None if met is None else met.cells.get(cell)

    def take(self, entry: Entry) -> Window:
        return self._keep(self._met.setdefault(entry.key, _Met()), entry)

    def open(self, key: bytes) -> list[Window]:
        return self._upto(key, b"s:~")

    def _upto(self, key: bytes, last: bytes) -> list[Window]:
        met = self._met.setdefault(key, _Met())
        for entry in list(self.context.view.range(self.step.name, key, b"s:", last)):
            if entry.cell not in met.cells:
                self._keep(met, entry)
        return [w for w in met.live if w.cell <= last]

    def ended(self, key: bytes, newest: int) -> list[Window]:
        assert self.unit is not None
        return self._upto(key, b"s:" + text_of(newest, self.unit) + b"~")

    # --- rows that have waited ---

    def ending(self) -> None:
        self._certain = True
        for key, waiting in sorted(self._waiting.items()):
            on_time: set[int] = set()
            for cluster in clusters([each.at for each in waiting], self.gap):
                if any(self._is_sure(key, waiting[place].at) for place in cluster):
                    on_time.update(cluster)
            for place, each in enumerate(waiting):
                if place in on_time:
                    self._again(key, each)
                else:
                    self.miss(int(each.rows.order[each.place]), key, each.at, each.row, [(each.at, each.at)])
        self._waiting = {}

    def _again(self, key: bytes, each: _Waiting) -> None:
        try:
            self.one(each.rows, each.place, key, each.at, each.row)
        except FAULTS as error:
            self.context.failures.handle(
                self.step.on_error,
                self.step.name,
                error,
                FailedRow(
                    key=self.known(key),
                    row=each.row,
                    order=int(each.rows.order[each.place]),
                    again=lambda: self.one(each.rows, each.place, key, each.at, each.row),
                ),
            )
