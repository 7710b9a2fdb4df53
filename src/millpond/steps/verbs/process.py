"""`process`: state and timers, with a method for rows and one for timers.

class Reminder:
    def on_row(self, key, row, state, timers):
        state.set("basket", row)
        timers.set("remind", after="30m")

    def on_timer(self, key, timer, state, timers):
        return {"customer": key, "forgot": state.get("basket")}

baskets.key_by("customer").process("reminders", Reminder)

A timer is a cell: `t:<name>`, found by its event time, or `c:<name>`, found by its wall-clock time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

from millpond.codec import decode_key
from millpond.errors import InvalidUse
from millpond.log.segment import Change
from millpond.rows.rows import ENDING, KeyedRowBuilder, Outputs, Rows
from millpond.steps.base import Running, StepContext
from millpond.steps.failure import FAULTS, FailedRow, stop_for_error
from millpond.steps.kind import Step, StoredKey, call_for_rows
from millpond.steps.state.expiring import ExpiringCells
from millpond.steps.state.handle import State, values_by_name
from millpond.steps.state.migration import NamedValuesMigration
from millpond.steps.state.timers import CLOCK, EVENT, Timers, read_timer
from millpond.timing import MAX_TICKS, as_user
from millpond.user_functions import check_function

MOST_AT_ONCE = 10_000  # times that one timer may fire for one time: one that keeps setting itself never ends


class Processor(Protocol):
    """What `process` takes. `on_row` is called for every row, and `on_timer` for every timer that it sets."""

    def on_row(self, key: Any, row: Any, state: State, timers: Timers, /) -> Any:
        """Return or yield outputs, or return `None`."""
        ...


def processor_factory(processor: Any, where: str) -> Callable[[], Any]:
    """Return what makes the processor of a batch: the user's factory, or one that returns the user's instance."""
    if not inspect.isclass(processor) and callable(getattr(processor, "on_row", None)):
        _check_methods(processor, where)
        return lambda: processor
    if callable(processor) and (not inspect.isclass(processor) or callable(getattr(processor, "on_row", None))):
        if inspect.isclass(processor):
            _check_methods(processor, where, "self")
        return check_function(processor, where)  # type: ignore[no-any-return]
    raise InvalidUse(
        f"{where}: expected an object with a method on_row(key, row, state, timers), its class, or a function that "
        f"makes one, got {processor!r}"
    )


def _check_methods(processor: Any, where: str, *bound: str) -> None:
    """Raise InvalidUse if `on_row` or `on_timer` takes other arguments; for a class, `bound` is what they get first."""
    for name, given in (("on_row", "row"), ("on_timer", "timer")):
        method = getattr(processor, name, None)
        if inspect.isfunction(inspect.getattr_static(processor, name, None)) or (not bound and method is not None):
            check_function(method, f"{where}, {name}", *bound, "key", given, "state", "timers")


def outputs_of(result: Any) -> Iterable[Any]:
    """Return the outputs in what a method returned: those of a list or a generator, else the one; none of None, ()."""
    if result is None or result == ():
        return ()
    if isinstance(result, list | Iterator):
        return [output for output in result if output is not None]
    return (result,)


@dataclass(frozen=True, kw_only=True)
class ProcessStep(Step):
    """Named state and timers per key."""

    kind: ClassVar[str] = "process"
    can_expire = True
    migration = NamedValuesMigration

    make: Callable[[], Any]  # makes the processor of a batch

    def begin(self, context: StepContext) -> Running:
        return RunningProcessor(self, context)

    @classmethod
    def show(cls, stored: StoredKey, step: Self | None) -> dict[str, Any]:
        return values_by_name(stored.cells, stored.codec)


class RunningProcessor(Running):
    """The started step. A row or a timer whose method raises has written no state and set no timer."""

    def __init__(self, step: ProcessStep, context: StepContext) -> None:
        self._step, self._context = step, context
        try:
            self._processor = step.make()
        except FAULTS as error:
            raise stop_for_error(step.name, error, context.failures.batch) from error
        if not callable(getattr(self._processor, "on_row", None)):
            raise InvalidUse(
                f"process({step.name!r}): expected what the function makes to have a method "
                f"on_row(key, row, state, timers), got {self._processor!r}"
            )
        self._cells = ExpiringCells(step, context)
        self._state = State(self._cells, context.tables)
        self._timers = Timers(self._cells, context, step.name, hasattr(self._processor, "on_timer"))

    def run(self, rows: Rows, side: int = 0) -> Rows:
        found, keys, times = Outputs(rows), rows.keys, rows.times
        assert keys is not None
        ticks, unit = (None, None) if times is None else (times.values.tolist(), times.unit)

        def once(i: int, k: int, row: Any) -> None:
            key = self._go_to(keys.encoded[k], keys.objects[k])
            self._state.time = None if times is None else times[i]
            self._cells.now.move(None if ticks is None else ticks[i], unit)
            found.add_all(i, self._call(self._processor.on_row, key, row))

        call_for_rows(self._step, self._context, rows, once)
        return found.rows()

    def _go_to(self, encoded: bytes, key: Any) -> Any:
        self._cells.select(encoded)
        self._state.key, self._state.watermark = key, self._context.time.shown_watermark
        return key

    def _call(self, method: Callable[..., Any], key: Any, about: Any) -> Iterable[Any]:
        try:
            outputs = outputs_of(method(key, about, self._state, self._timers))
        except BaseException:
            self._cells.undo_row()
            raise
        self._cells.commit_row()
        return outputs

    # --- timers ---

    def end(self) -> Rows | None:
        """Fire the timers that are due, in the order of time; then remove the state that has expired."""
        time, outputs = self._context.time, KeyedRowBuilder(self._context.time.unit)
        fired: dict[tuple[int, bytes, bytes], int] = {}  # how often, of the timers that this batch has set
        while True:
            until = time.expiry_watermark
            due = None if until is None else self._cells.pop_due(until, beginning=EVENT)
            due = due or self._cells.pop_due(time.wall, wall=True, beginning=CLOCK)
            if due is None:
                break
            if self._cells.changed_times(*due[1:]) is not None:
                fired[due] = fired.get(due, 0) + 1
            self._fire(*due, outputs, is_endless=fired.get(due, 0) > MOST_AT_ONCE)
        if time.is_final:
            # Every timer that is set fires now, once. Those that are set by these stay: there may be no end of them.
            for at, key, cell in self._cells.all_due(MAX_TICKS, beginning=EVENT):
                self._cells.select(key)
                if self._cells.times(cell)[0] == at:
                    self._fire(at, key, cell, outputs)
        self._cells.expire()
        rows = outputs.rows()
        return rows if len(rows) else None

    def _fire(self, at: int, encoded: bytes, cell: bytes, outputs: KeyedRowBuilder, is_endless: bool = False) -> None:
        """Call `on_timer`. The timer is used up, also if that fails and `on_error` lets the batch go on."""
        key, is_done, unit = decode_key(encoded), False, self._context.time.unit
        time = at if cell.startswith(EVENT) else self._context.time.expiry_watermark

        def once() -> None:
            nonlocal is_done
            self._go_to(encoded, key)
            self._cells.now.move(time, unit)
            self._state.time = None if time is None or unit is None else as_user(time, unit)
            timer = read_timer(self._cells, cell)
            if is_endless:
                raise InvalidUse(
                    f"expected on_timer to set a timer for a time to come, got one for the same moment "
                    f"{MOST_AT_ONCE} times; set it for a later one"
                )
            self._cells.drop(cell)
            for output in self._call(self._processor.on_timer, key, timer):
                outputs.add(encoded, key, output, time)
            is_done = True

        try:
            once()
        except FAULTS as error:
            timer = read_timer(self._cells, cell)
            assert timer is not None
            row = {"timer": timer.name, "at": timer.at, "payload": timer.payload}
            step, again = self._step, None if is_endless else once
            self._context.failures.handle(
                step.on_error, step.name, error, FailedRow(key=key, row=row, order=ENDING, again=again)
            )
            if not is_done:
                self._go_to(encoded, key)
                self._cells.drop(cell)
                self._cells.commit_row()

    def changes(self) -> list[Change]:
        return self._cells.changes()
