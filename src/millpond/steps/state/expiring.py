"""NamedCells that may be over: what the `State` handle reads and writes where entries live for a while only.

An entry is a value, a list as a whole, or an element of a map. When it is over it is not there any more
for whoever reads, and `expire` takes it out of storage, found by the index of its time.

    v:name      the value            its own time
    l:name      the list's bounds    the time of the whole list; its elements have none
    m:name:key  an element           its own time
    x:name      a TTL that was given with the value itself, beside it; has the same time

What a TTL was when the entries were written is known from the record: if it has changed since, all entries
are given new times, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from millpond.errors import InvalidUse
from millpond.replica import Entry
from millpond.steps.base import StepContext
from millpond.steps.kind import Step
from millpond.steps.state.named import NamedCells
from millpond.steps.state.single import ABSENT, DROPPED, is_absent
from millpond.steps.state.ttl import TTL, Times
from millpond.timing import Unit, span

_NEVER: Times = (None, None)
TIMERS = (b"t:", b"c:")  # cells that are no state, but timers


class Now:
    """The time that the row, or the timer, at hand has, for what lives on and for what is over."""

    def __init__(self, context: StepContext, step: str) -> None:
        self._context, self._step = context, step
        self.time: int | None = None  # its own
        self.event = context.time.start_watermark  # as far as event time has come for it
        self.wall = context.time.wall
        self.unit: Unit | None = context.time.unit

    def move(self, time: int | None, unit: Unit | None) -> None:
        """Go on to another row, of that event time if it has one."""
        began = self._context.time.start_watermark
        self.time = time
        self.event = began if time is None else time if began is None or time > began else began
        self.unit = unit or self._context.time.unit

    def over(self, times: Times) -> bool:
        """Whether an entry with such times has ceased to be."""
        due, wall = times
        return (due is not None and self.event is not None and due <= self.event) or (
            wall is not None and wall <= self.wall
        )

    def fresh(self, ttl: TTL) -> Times:
        """When an entry is over that is refreshed now."""
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


class ExpiringCells(NamedCells):
    """The cells of a step, as they are at the time of the row at hand."""

    def __init__(self, step: Step, context: StepContext) -> None:
        super().__init__(step.name, context.view, context.codec)
        self._context = context
        self._ttl = step.state.ttl
        self._reads = self._ttl is not None and self._ttl.refresh == "read"
        self.now = Now(context, step.name)
        before, after = (context.previous_detail or {}).get("ttl"), step.detail.get("ttl")
        if context.previous_detail is not None and before != after:
            self._adopt(before, after)

    def read(self, cell: bytes) -> Any:
        found = super().read(cell)
        if self._is_timed and not is_absent(found) and not cell.startswith(TIMERS):
            times = self._known(cell)
            if times is not None and self.now.over(times):
                return ABSENT
        return found

    def value(self, cell: bytes) -> Any:
        found = super().value(cell)
        if self._reads and not is_absent(found) and _has_life(cell):
            self._refresh(cell)
        return found

    def put(self, cell: bytes, value: Any, ttl: TTL | None = None) -> None:
        """Write an entry; it lives as long as its own TTL says, or else the step's."""
        if ttl is None and self._ttl is None:
            self.write(cell, value)
            return
        times = self._times_to_be(cell, ttl or self._ttl)  # type: ignore[arg-type]
        self.write(cell, value, *times)
        if ttl is not None:
            self.write(_own(cell), ttl.detail, *times)

    def drop(self, cell: bytes) -> None:
        """Drop a cell, also one that is over: a row of an earlier time would find it again."""
        if not is_absent(super().read(cell)):
            self._pending[cell], self._pending_times[cell] = DROPPED, _NEVER

    def clear(self) -> None:
        """Drop all of the key's state; its timers stay."""
        for cell in super().scan():
            if not cell.startswith(TIMERS):
                self.drop(cell)

    def touch(self, cell: bytes) -> None:
        """A list's elements were changed, or read: it lives on, if that is what lets it."""
        if self._ttl is not None and not is_absent(self.read(cell)):
            self.retime(cell, *self._times_to_be(cell, self._ttl))

    def begin_list(self, cell: bytes) -> None:
        """Before a list is written to: if it was over, what is left of it goes, so that it begins anew."""
        if is_absent(self.read(cell)) and not is_absent(super().read(cell)):
            self._remove(cell)

    def scan(self, beginning: bytes = b"") -> Iterator[bytes]:
        over = self.now.over
        live = {e.cell for e in self._view.entries(self._step, self.key, beginning) if not over((e.due, e.wall))}
        times = self._times.get(self.key, {})
        for layer, known in ((self._held.get(self.key, {}), times), (self._pending, self._pending_times)):
            for cell, value in layer.items():
                if cell.startswith(beginning):
                    gone = is_absent(value) or over(known.get(cell, _NEVER))
                    (live.discard if gone else live.add)(cell)
        return iter(sorted(live))

    def expire(self) -> None:
        """Take out of storage what is over by the end of the batch."""
        for wall, upto in ((False, self._context.time.expiry_watermark), (True, self._context.time.wall)):
            for _, key, cell in () if upto is None else self.all_due(upto, wall=wall):
                self.turn_to(key)
                self._remove(cell)
                self.keep()

    def _known(self, cell: bytes) -> Times | None:
        if cell in self._pending:
            return self._pending_times.get(cell)
        times = self._times.get(self.key)
        return None if times is None else times.get(cell)

    def _refresh(self, cell: bytes) -> None:
        assert self._ttl is not None
        times = self._known(cell) or _NEVER
        if not self._is_own(cell, times):
            fresh = self._later(times, self.now.fresh(self._ttl))
            if fresh != times:
                self.retime(cell, *fresh)

    def _times_to_be(self, cell: bytes, ttl: TTL) -> Times:
        held = self.times(cell) if not is_absent(self.read(cell)) else _NEVER
        if ttl.refresh == "never" and held != _NEVER:
            was_own = self._is_own(cell, held)
            if was_own is (ttl is not self._ttl):
                return held
            if was_own:  # it has the step's TTL from now on
                self.drop(_own(cell))
            return self.now.fresh(ttl)
        fresh = self.now.fresh(ttl)
        later = self._later(held, fresh)
        # A row that comes late shortens nobody's life; only a TTL that an entry was given itself may end sooner.
        return fresh if later != fresh and (ttl is not self._ttl or self._is_own(cell, held)) else later

    def _later(self, held: Times, fresh: Times) -> Times:
        return held if fresh[0] is not None and held[0] is not None and held[0] > fresh[0] else fresh

    def _is_own(self, cell: bytes, times: Times) -> bool:
        """Whether a value has these times by a TTL of its own."""
        if not cell.startswith(b"v:") or times == _NEVER:
            return False
        own = _own(cell)
        return not is_absent(super().read(own)) and self.times(own) == times

    def _remove(self, cell: bytes) -> None:
        cells = [cell]
        if cell.startswith(b"l:") and cell.count(b":") == 1:
            cells.extend(super().scan(cell + b":"))
        for each in cells:
            self._pending[each], self._pending_times[each] = DROPPED, _NEVER

    # --- another TTL than the one that the entries were written under ---

    def _adopt(self, before: dict[str, Any] | None, after: dict[str, Any] | None) -> None:
        new = None if after is None else self._ttl
        basis = (
            self._context.time.start_watermark
            if self._context.time.start_watermark is not None
            else self._context.time.expiry_watermark
        )
        by_event = new is not None and new.clock != "processing" and self._context.time.unit is not None
        for entry in self._view.entries(self._step):
            if not _has_life(entry.cell) or self._has_own(entry):
                continue
            times: Times = (entry.due, entry.wall)
            if new is None:
                times = _NEVER
            elif by_event:
                assert self._context.time.unit is not None
                length = span(new.after, self._context.time.unit, f"step {self._step!r}, ttl")
                if entry.due is not None and before is not None and before["unit"] == self._context.time.unit:
                    times = entry.due + length - before["after"], None
                elif basis is not None:
                    times = basis + length, None
            elif new.clock != "event":
                length = span(new.after, "instant", f"step {self._step!r}, ttl")
                if entry.wall is not None and before is not None and before["unit"] == "instant":
                    times = None, entry.wall + length - before["after"]
                else:
                    times = None, self._context.time.wall + length
            self.set_times(entry, times)

    def set_times(self, entry: Entry, times: Times) -> None:
        """Leave a stored entry as it is, though it may be over, and give it other times."""
        if times != (entry.due, entry.wall):
            self.turn_to(entry.key)
            super().read(entry.cell)
            self._pending[entry.cell] = self._held[entry.key][entry.cell]
            self._pending_times[entry.cell] = times
            self._is_timed = True
            self.keep()

    def _has_own(self, entry: Entry) -> bool:
        if not entry.cell.startswith(b"v:") or (entry.due, entry.wall) == _NEVER:
            return False
        own = self._view.entry(self._step, entry.key, _own(entry.cell))
        return own is not None and (own.due, own.wall) == (entry.due, entry.wall)


def living(entries: Iterable[Entry], wall: int) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Key, cell and value of what some entries hold of state that is not over by the clock; timers are not state.

    What is over by event time has left with the batch that brought its time.
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


def is_state(cell: bytes) -> bool:
    """Whether a cell holds state, and not a timer, a TTL or a version."""
    return not cell.startswith((*TIMERS, b"x:", b"~"))


def _own(cell: bytes) -> bytes:
    return b"x:" + cell[2:]


def _has_life(cell: bytes) -> bool:
    """Whether a cell has times of its own: elements of a list have those of the list."""
    return is_state(cell) and (not cell.startswith(b"l:") or cell.count(b":") == 1)
