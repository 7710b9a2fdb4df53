"""Cells with a time to live: what the `State` handle reads and writes.

An entry is a value, a list as a whole, or an element of a map. Readers no longer see an entry that has expired, and
`expire` removes it from storage at the end of the batch, found by the index of its time.

    v:name      the value            its own time
    l:name      the list's bounds    the time of the whole list; its elements have none
    m:name:key  an element           its own time
    x:name      a TTL that was given with the value itself, beside it; has the same time

The record says which TTL the entries were written with. If the program's is another, all entries get new times, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from millpond.errors import InvalidUse
from millpond.replica import Entry
from millpond.steps.base import StepContext
from millpond.steps.kind import Step
from millpond.steps.state.named import NEVER, TIMERS, CellTimes, NamedCells, is_state
from millpond.steps.state.single import ABSENT, is_absent
from millpond.steps.state.ttl import TTL
from millpond.timing import Unit, span


class RowTime:
    """The time of the row, or the timer, at hand. It decides what has expired and how long a refreshed entry lives."""

    def __init__(self, context: StepContext, step: str) -> None:
        self._step = step
        self._start_watermark, self._batch_unit = context.time.start_watermark, context.time.unit
        self.time: int | None = None  # its own event time
        self.event = self._start_watermark  # its own event time, or the watermark if that is later
        self.wall = context.time.wall
        self.unit = self._batch_unit

    def move(self, time: int | None, unit: Unit | None) -> None:
        """Go on to another row, of that event time if it has one."""
        start = self._start_watermark
        self.time = time
        self.event = start if time is None else time if start is None or time > start else start
        self.unit = unit or self._batch_unit

    def has_passed(self, times: CellTimes) -> bool:
        """Return whether an entry with these times has expired."""
        due, wall = times
        return (due is not None and self.event is not None and due <= self.event) or (
            wall is not None and wall <= self.wall
        )

    def expiry(self, ttl: TTL) -> CellTimes:
        """Return when an entry expires that is refreshed now."""
        if ttl.clock == "processing" or (ttl.clock is None and self.time is None):
            return None, self.wall + self._span(ttl, "instant")
        if self.time is None or self.event is None or self.unit is None:
            raise InvalidUse(
                f'step {self._step!r}: ttl with clock="event" needs rows with an event time, and this one has none; '
                'give the stream timestamp=…, or say clock="processing"'
            )
        return self.event + self._span(ttl, self.unit), None

    def _span(self, ttl: TTL, unit: Unit) -> int:
        return span(ttl.after, unit, f"step {self._step!r}, ttl")


class ExpiringCells:
    """The cells of a step as they are at the time of the row at hand: a `NamedCells` in which entries expire."""

    def __init__(self, step: Step, context: StepContext) -> None:
        self._step, self._context, self._ttl = step.name, context, step.state.ttl
        self._is_refreshed_by_reads = self._ttl is not None and self._ttl.refresh == "read"
        self._cells = cells = NamedCells(step.name, context.view, context.codec)
        self.now = RowTime(context, step.name)
        # What expiry leaves as it is, bound here because most of it is called for every row.
        self.select, self.commit_row, self.undo_row = cells.select, cells.commit_row, cells.undo_row
        self.write, self.drop, self.times = cells.write, cells.drop, cells.times
        self.pop_due, self.all_due, self.changed_times = cells.pop_due, cells.all_due, cells.changed_times
        self.changes = cells.changes
        before, after = (context.previous_detail or {}).get("ttl"), step.detail.get("ttl")
        if context.previous_detail is not None and before != after:
            self._adopt_ttl(before, after)

    def read(self, cell: bytes) -> Any:
        """Return an immutable value, `Packed`, ABSENT or DROPPED; ABSENT if the entry has expired."""
        found = self._cells.read(cell)
        if self._cells.has_times and not is_absent(found) and not cell.startswith(TIMERS):
            times = self._cells.known_times(cell)
            if times is not None and self.now.has_passed(times):
                return ABSENT
        return found

    def value(self, cell: bytes) -> Any:
        """Return the value of a cell, a new copy each time; ABSENT or DROPPED where there is none."""
        found = self._cells.decode(self.read(cell))
        if self._is_refreshed_by_reads and not is_absent(found) and _has_times(cell):
            self._refresh(cell)
        return found

    def put(self, cell: bytes, value: Any, ttl: TTL | None = None) -> None:
        """Write an entry; it lives as long as its own TTL says, or else the step's."""
        if ttl is None and self._ttl is None:
            self.write(cell, value)
            return
        times = self._times_after_write(cell, ttl or self._ttl)  # type: ignore[arg-type]
        self.write(cell, value, *times)
        if ttl is not None:
            self.write(_own_ttl_cell(cell), ttl.detail, *times)

    def clear(self) -> None:
        """Drop all of the key's state, also what has expired; its timers stay."""
        for cell in sorted(self._cells.scan()):
            if not cell.startswith(TIMERS):
                self.drop(cell)

    def touch(self, cell: bytes) -> None:
        """Refresh a list whose elements were changed, if it is there."""
        if self._ttl is not None and not is_absent(self.read(cell)):
            self._cells.set_times(cell, self._times_after_write(cell, self._ttl))

    def drop_expired_list(self, cell: bytes) -> None:
        """Remove what is left of a list that has expired, before a new one is written in its place."""
        if is_absent(self.read(cell)) and not is_absent(self._cells.read(cell)):
            self._remove(cell)

    def scan(self, beginning: bytes = b"") -> Iterator[bytes]:
        """Yield the key's cells that begin so and have not expired, in order."""
        has_passed = self.now.has_passed
        return iter(sorted(c for c, times in self._cells.scan(beginning).items() if not has_passed(times)))

    def expire(self) -> None:
        """Remove from storage what has expired by the end of the batch."""
        for wall, until in ((False, self._context.time.expiry_watermark), (True, self._context.time.wall)):
            for _, key, cell in () if until is None else self.all_due(until, wall=wall):
                self.select(key)
                self._remove(cell)
                self.commit_row()

    def _refresh(self, cell: bytes) -> None:
        assert self._ttl is not None
        times = self._cells.known_times(cell) or NEVER
        if not self._has_own_ttl(cell, times):
            fresh = _later(times, self.now.expiry(self._ttl))
            if fresh != times:
                self._cells.set_times(cell, fresh)

    def _times_after_write(self, cell: bytes, ttl: TTL) -> CellTimes:
        held = self.times(cell) if not is_absent(self.read(cell)) else NEVER
        if ttl.refresh == "never" and held != NEVER:
            had_own = self._has_own_ttl(cell, held)
            if had_own is (ttl is not self._ttl):
                return held
            if had_own:  # it has the step's TTL from now on
                self.drop(_own_ttl_cell(cell))
            return self.now.expiry(ttl)
        fresh = self.now.expiry(ttl)
        later = _later(held, fresh)
        # A late row never shortens a life; only a TTL that was given with the value itself may end it sooner.
        return fresh if later != fresh and (ttl is not self._ttl or self._has_own_ttl(cell, held)) else later

    def _has_own_ttl(self, cell: bytes, times: CellTimes) -> bool:
        """Return whether a value has these times by a TTL that was given with it."""
        if not cell.startswith(b"v:") or times == NEVER:
            return False
        own = _own_ttl_cell(cell)
        return not is_absent(self._cells.read(own)) and self.times(own) == times

    def _remove(self, cell: bytes) -> None:
        cells = [cell]
        if cell.startswith(b"l:") and cell.count(b":") == 1:
            cells.extend(sorted(self._cells.scan(cell + b":")))
        for each in cells:
            self._cells.drop_stored(each)

    # --- another TTL than the one that the entries were written with ---

    def _adopt_ttl(self, before: dict[str, Any] | None, after: dict[str, Any] | None) -> None:
        new, time = None if after is None else self._ttl, self._context.time
        basis = time.start_watermark if time.start_watermark is not None else time.expiry_watermark
        by_event = new is not None and new.clock != "processing" and time.unit is not None
        for entry in self._context.view.entries(self._step):
            if not _has_times(entry.cell) or self._is_stored_with_own_ttl(entry):
                continue
            times: CellTimes = (entry.due, entry.wall)
            if new is None:
                times = NEVER
            elif by_event:
                assert time.unit is not None
                length = span(new.after, time.unit, f"step {self._step!r}, ttl")
                if entry.due is not None and before is not None and before["unit"] == time.unit:
                    times = entry.due + length - before["after"], None
                elif basis is not None:
                    times = basis + length, None
            elif new.clock != "event":
                length = span(new.after, "instant", f"step {self._step!r}, ttl")
                if entry.wall is not None and before is not None and before["unit"] == "instant":
                    times = None, entry.wall + length - before["after"]
                else:
                    times = None, time.wall + length
            self.set_stored_times(entry, times)

    def set_stored_times(self, entry: Entry, times: CellTimes) -> None:
        """Give a stored entry other times, also one that has expired by its old ones."""
        if times != (entry.due, entry.wall):
            self.select(entry.key)
            self._cells.set_times(entry.cell, times)
            self.commit_row()

    def _is_stored_with_own_ttl(self, entry: Entry) -> bool:
        if not entry.cell.startswith(b"v:") or (entry.due, entry.wall) == NEVER:
            return False
        own = self._context.view.entry(self._step, entry.key, _own_ttl_cell(entry.cell))
        return own is not None and (own.due, own.wall) == (entry.due, entry.wall)


def without_expired(entries: Iterable[Entry], wall: int) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield key, cell and value of the entries that are state and have not expired by the clock.

    What has expired by event time was removed with the batch that brought its time.
    """
    gone: set[tuple[bytes, bytes]] = set()
    for entry in entries:
        if not is_state(entry.cell):
            continue
        parts = entry.cell.split(b":", 2)
        if entry.wall is not None and entry.wall <= wall:
            gone.add((entry.key, entry.cell))
        elif parts[0] != b"l" or (entry.key, b":".join(parts[:2])) not in gone:
            yield entry.key, entry.cell, entry.value


def _later(held: CellTimes, fresh: CellTimes) -> CellTimes:
    return held if fresh[0] is not None and held[0] is not None and held[0] > fresh[0] else fresh


def _own_ttl_cell(cell: bytes) -> bytes:
    return b"x:" + cell[2:]


def _has_times(cell: bytes) -> bool:
    """Return whether a cell has times of its own: elements of a list have those of the list."""
    return is_state(cell) and (not cell.startswith(b"l:") or cell.count(b":") == 1)
