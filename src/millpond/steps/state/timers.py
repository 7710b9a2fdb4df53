"""The `Timers` handle: what a processor sees of one key's timers.

A timer is a cell of the key's state with its time and its payload. The index by time finds it: `t:<name>` by event
time, `c:<name>` by wall-clock time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millpond.errors import InvalidUse
from millpond.steps.base import StepContext
from millpond.steps.state.expiring import ExpiringCells
from millpond.steps.state.named import cell_for, cell_name
from millpond.steps.state.single import is_absent
from millpond.timing import Time, Unit, as_time, as_user, duration, span, ticks, unit_of

EVENT, CLOCK = b"t:", b"c:"


@dataclass(frozen=True)
class Timer:
    """A timer that was set: its name, its time, and its payload.

    `at` is an event time of the stream's kind, or a datetime for a timer that goes by the clock.

    >>> import millpond as mp
    >>> mp.Timer("remind", at=120, payload={"basket": 7}).name
    'remind'
    """

    name: str
    at: Time
    payload: Any = None


class Timers:
    """The timers of one key, valid for the length of one call. Setting a timer again replaces the one of that name.

    >>> import millpond as mp
    >>> class Silence:
    ...     def on_row(self, key, row, state, timers):
    ...         timers.set("silent", after=60)
    ...     def on_timer(self, key, timer, state, timers):
    ...         return {"host": key, "silent_since": timer.at - 60}
    >>> app = mp.App("hosts")
    >>> beats = app.stream("beats", mp.sources.rows([]), timestamp="at").key_by("host")
    >>> silent = beats.process("silence", Silence).to("out", mp.sinks.memory())
    >>> with mp.testing.TestDriver(app) as driver:
    ...     driver.send("beats", [{"host": "a", "at": 10}, {"host": "b", "at": 20}, {"host": "b", "at": 75}])
    ...     driver.output("out")
    [{'host': 'a', 'silent_since': 10}]
    """

    __slots__ = ("_cells", "_context", "_has_on_timer", "_step")

    def __init__(self, cells: ExpiringCells, context: StepContext, step: str, has_on_timer: bool) -> None:
        self._cells, self._context, self._step, self._has_on_timer = cells, context, step, has_on_timer

    def set(self, name: str, at: Any = None, after: Any = None, payload: Any = None) -> None:
        """Set a timer for an event time: `at` that time, or `after` a duration from the time of the row or timer.

        It fires when the watermark reaches that time. A timer that is set for a time in the past fires at the end of
        the same batch.

        >>> def on_row(self, key, row, state, timers):
        ...     timers.set("remind", after="30m", payload={"basket": row["basket"]})
        ...     timers.set("close", at=row["closes_at"])
        """
        where = f"step {self._step!r}, timers.set({name!r})"
        if (at is None) is (after is None):
            raise InvalidUse(f"{where}: expected one of at= and after=, got {'both' if at is not None else 'neither'}")
        now, unit = self._cells.now, self._cells.now.unit
        if unit is None:
            raise InvalidUse(
                f"{where}: the rows have no event time; give the stream timestamp=…, or set the timer by the clock "
                "with timers.set_wall"
            )
        if after is not None:
            if now.time is None:
                raise InvalidUse(f"{where}: after= needs a row or timer with an event time, and this one has none")
            when = now.time + span(duration(after, f"{where}, after"), unit, f"{where}, after")
        else:
            when = _event_ticks(at, unit, where)
        self._put(EVENT, name, as_user(when, unit), payload, due=when)

    def set_wall(self, name: str, after: Any, payload: Any = None) -> None:
        """Set a timer that goes by the clock, a duration after the time of the batch.

        It fires in the first batch that begins then or later. If no row comes, a batch begins for it.

        >>> def on_row(self, key, row, state, timers):
        ...     timers.set_wall("ask-again", after="10s")
        """
        where = f"step {self._step!r}, timers.set_wall({name!r}, after)"
        found = duration(after, where)
        when = self._context.time.wall + span(found, "instant", where)
        self._put(CLOCK, name, as_user(when, "instant"), payload, wall=when)

    def cancel(self, name: str) -> None:
        """Remove a timer. Nothing happens if there is none of that name.

        >>> def on_row(self, key, row, state, timers):
        ...     timers.cancel("remind")
        """
        for kind in (EVENT, CLOCK):
            self._cells.drop(_timer_cell(kind, name))

    def get(self, name: str) -> Timer | None:
        """Return the timer of that name, or None if none is set.

        >>> def on_row(self, key, row, state, timers):
        ...     if timers.get("remind") is None:
        ...         timers.set("remind", after="30m")
        """
        for kind in (EVENT, CLOCK):
            found = read_timer(self._cells, _timer_cell(kind, name))
            if found is not None:
                return found
        return None

    def _put(
        self, kind: bytes, name: str, at: Time, payload: Any, due: int | None = None, wall: int | None = None
    ) -> None:
        if not self._has_on_timer:
            raise InvalidUse(
                f"step {self._step!r}: a timer was set, and the processor has no method "
                "on_timer(key, timer, state, timers); give it one"
            )
        if not isinstance(name, str):
            raise InvalidUse(f"step {self._step!r}: expected a timer's name, a text, got {name!r}")
        self._cells.write(_timer_cell(kind, name), {"at": at, "payload": payload}, due, wall)
        self._cells.drop(_timer_cell(CLOCK if kind == EVENT else EVENT, name))


def _timer_cell(kind: bytes, name: str) -> bytes:
    return cell_for(kind[:1].decode(), name)


def _event_ticks(at: Any, unit: Unit, where: str) -> int:
    try:
        time = as_time(at)
        found = ticks(time)
    except ValueError as error:
        raise InvalidUse(f"{where}, at: {error}") from None
    if unit_of(time) != unit:
        wanted = "whole numbers" if unit == "number" else "datetimes"
        raise InvalidUse(f"{where}, at: the stream's times are {wanted}, got {at!r}")
    return found


def read_timer(cells: ExpiringCells, cell: bytes) -> Timer | None:
    """Return the timer that a cell of the key at hand holds; None if it holds none."""
    found = cells.value(cell)
    return None if is_absent(found) else Timer(cell_name(cell), found["at"], found["payload"])
