"""`stateful_map`: state in, output and new state out.

def add_up(key, order, total):
    total += order["amount"]
    return {"customer": key, "total": total}, total

orders.key_by("customer").stateful_map("total", add_up, initial=0)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import NoneType
from typing import Any, ClassVar, Self

from millpond.codec import IMMUTABLE, copy_value
from millpond.codec.shapes import annotation_types
from millpond.errors import InvalidUse, MillpondError, short_repr
from millpond.log.segment import Change
from millpond.rows.rows import Outputs, Rows
from millpond.steps.base import Running, StepContext
from millpond.steps.failure import FAULTS, FailedRow, own_copy
from millpond.steps.kind import Step, StoredKey, call_for_rows
from millpond.steps.state.expiring import ExpiringCells
from millpond.steps.state.migration import SingleValueMigration
from millpond.steps.state.single import ABSENT, DROPPED, ONLY_CELL, SURELY_ENCODABLE, Packed, SingleValues, is_absent

MANY_KEYS = 500  # from here on it pays to read and write the keys of a batch in order


@dataclass(frozen=True, kw_only=True)
class StatefulMapStep(Step):
    """One value per key; `None` as the new state drops it, `None` as the output emits nothing."""

    kind: ClassVar[str] = "stateful_map"
    can_expire = True
    migration = SingleValueMigration

    f: Callable[[Any, Any, Any], tuple[Any, Any]]
    initial: Any = None  # a value, copied for each key, or a function that makes one

    def begin(self, context: StepContext) -> Running:
        return RunningMap(self, context)

    def begin_expiring(self, context: StepContext) -> Running:
        return RunningExpiringMap(self, context)

    def first_state(self) -> Any:
        """Return the state that a key starts with, a new copy each time."""
        return self.initial() if callable(self.initial) else copy_value(self.initial)

    def state_types(self) -> list[Any]:
        initial = self.initial if isinstance(self.initial, type) else type(self.initial)
        return [*self.state.types, initial, *annotation_types(self.f)]

    @classmethod
    def show(cls, stored: StoredKey, step: Self | None) -> Any:
        return stored.codec.decode(stored.cells[0][1])


class RunningMap(Running):
    """The started step where state has no TTL: states are loaded and saved for all keys of a batch at once."""

    def __init__(self, step: StatefulMapStep, context: StepContext) -> None:
        self._step, self._context = step, context
        self._values = SingleValues(step.name, context.view, context.codec)
        self._has_fixed_initial = step.initial.__class__ in IMMUTABLE

    def run(self, rows: Rows, side: int = 0) -> Iterator[Rows]:
        assert rows.keys is not None
        keys = rows.keys
        if len(keys.encoded) >= MANY_KEYS:
            keys = keys.in_order()
            rows = Rows(rows.data, rows.order, form=rows.form, times=rows.times, keys=keys)
        before = self._values.load(keys.encoded)
        states, names = list(before), keys.objects
        if self._context.may_emit_in_parts:
            yield from (self._map(part, names, states) for part in rows.parts())
        else:
            yield self._map(rows, names, states)
        self._values.save(keys.encoded, before, states)

    def _map(self, rows: Rows, names: list[Any], states: list[Any]) -> Rows:
        """Return the outputs of some rows, and update `states`, which has one of each key of the batch."""
        outputs: list[Any] = []  # one for every row, None where there is none
        objects, index = rows.keyed_objects()
        f, initial, has_fixed_initial = self._step.f, self._step.initial, self._has_fixed_initial
        given = [own_copy(row) for row in objects] if self._step.copies_rows else objects
        left = zip(index, given, strict=True)
        while True:
            result: Any = None
            try:
                # `_call` for each row, written out for states that are immutable: the calls would be half the work.
                for k, row in left:
                    old = states[k]
                    if old.__class__ in IMMUTABLE:
                        state = old
                    elif old is ABSENT and has_fixed_initial:
                        state = initial
                    else:
                        state = self._state_of(old)
                    result = f(names[k], row, state)
                    output, new = result if result.__class__ is tuple else output_and_state(result)
                    states[k] = new if new.__class__ in SURELY_ENCODABLE else self._state_to_hold(new, old)
                    outputs.append(output)
                break
            except FAULTS as raised:
                error: BaseException = raised
                if result.__class__ is tuple and len(result) != 2:  # so this row's result could not be unpacked
                    error = wrong_result(result)
                i = len(outputs)
                key, row = names[index[i]], objects[i]
                add_shape_note(error, self._step, states[index[i]], self._context.codec.decode)
                again = partial(self._call_again, key, row, index[i], states, outputs)
                failed = FailedRow(key=key, row=row, order=rows.order[i], again=again)
                self._context.failures.handle(self._step.on_error, self._step.name, error, failed)
                if len(outputs) == i:
                    outputs.append(None)
        if NoneType not in set(map(type, outputs)):  # one output per row, as most functions have it
            return rows.with_data(outputs)
        found = Outputs(rows)
        for i, output in enumerate(outputs):
            if output is not None:
                found.add(i, output)
        return found.rows()

    def _call(self, key: Any, row: Any, old: Any) -> tuple[Any, Any]:
        """Call the user's function for one row; return its output, and the new state as it is held."""
        output, new = output_and_state(self._step.f(key, row, self._state_of(old)))
        return output, self._state_to_hold(new, old)

    def _call_again(self, key: Any, row: Any, k: int, states: list[Any], outputs: list[Any]) -> None:
        """Make another attempt at a row that failed, whose key is the k-th."""
        try:
            output, states[k] = self._call(key, own_copy(row), states[k])
        except FAULTS as error:
            add_shape_note(error, self._step, states[k], self._context.codec.decode)
            raise
        outputs.append(output)

    def _state_of(self, old: Any) -> Any:
        """Return the state that the user's function gets where `old` is held."""
        if old.__class__ is Packed:
            return self._context.codec.decode(old.data)
        return self._step.first_state() if is_absent(old) else old

    def _state_to_hold(self, new: Any, old: Any) -> Any:
        """Return what is held after the user's function returned the state `new`."""
        if new is None:
            return ABSENT if old is ABSENT else DROPPED
        return self._values.pack(new, old)

    def changes(self) -> Sequence[Change]:
        return self._values.changes()


class RunningExpiringMap(Running):
    """The started step where state has a TTL. Every call is a write, also of the same state, and refreshes it."""

    def __init__(self, step: StatefulMapStep, context: StepContext) -> None:
        self._step, self._context = step, context
        self._cells = ExpiringCells(step, context)

    def run(self, rows: Rows, side: int = 0) -> Rows:
        found, keys, cells, times = Outputs(rows), rows.keys, self._cells, rows.times
        assert keys is not None
        ticks, unit = (None, None) if times is None else (times.values.tolist(), times.unit)

        def once(i: int, k: int, row: Any) -> None:
            cells.select(keys.encoded[k])
            cells.now.move(None if ticks is None else ticks[i], unit)
            held = cells.value(ONLY_CELL)
            state = self._step.first_state() if is_absent(held) else held
            try:
                output, new = output_and_state(self._step.f(keys.objects[k], row, state))
                if new is None:
                    cells.drop(ONLY_CELL)
                else:
                    cells.put(ONLY_CELL, new)
            except BaseException as error:
                cells.undo_row()
                add_shape_note(error, self._step, held, self._context.codec.decode)
                raise
            cells.commit_row()
            if output is not None:
                found.add(i, output)

        call_for_rows(self._step, self._context, rows, once)
        return found.rows()

    def end(self) -> None:
        self._cells.expire()

    def changes(self) -> list[Change]:
        return self._cells.changes()


def output_and_state(result: Any) -> tuple[Any, Any]:
    """Return what the user's function returned if it is a tuple of two.

    A dict or a text of two can be unpacked, too, but only by mistake.
    """
    if result.__class__ is tuple and len(result) == 2:
        return result
    raise wrong_result(result)


def wrong_result(result: Any) -> InvalidUse:
    return InvalidUse(f"expected (output, state), a tuple of two, and the function returned {short_repr(result)}")


def add_shape_note(error: BaseException, step: StatefulMapStep, state: Any, decode: Callable[[bytes], Any]) -> None:
    """Add a note to what a function raised if its state has another shape than `initial`. The traceback shows it.

    Such a state is allowed, so nothing is checked before. But it may come from an earlier version of the program.
    A note at `initial` is added if the function seems to have failed on the None that a key starts with.
    """
    if isinstance(error, MillpondError):
        return
    if is_absent(state):
        if step.initial is None and isinstance(error, TypeError | AttributeError) and "NoneType" in str(error):
            error.add_note(
                f"The state of this key is None, because step {step.name!r} has no initial=. Give the state that a key "
                "starts with, such as initial=0, or let the function handle None."
            )
        return
    with contextlib.suppress(Exception):  # `initial` is a function of the user's
        found = decode(state.data) if isinstance(state, Packed) else state
        difference = _shape_difference(found, step.first_state())
        if difference is not None:
            error.add_note(
                f"The state of this key is {short_repr(found)}, {difference}. If an earlier version of the program has "
                f"written it, give step {step.name!r} a version= and a function in migrate= that converts it."
            )


def _shape_difference(state: Any, first: Any) -> str | None:
    """Say how a state differs from the one that a key starts with: in its type, or in the keys that a dict lacks."""
    if first is None or (isinstance(state, int | float) and isinstance(first, int | float)):
        return None
    if type(state) is not type(first):
        return f"of type {type(state).__name__}, where initial= is of type {type(first).__name__}"
    missing = [key for key in first if key not in state] if isinstance(first, dict) else []
    return f"without {', '.join(map(repr, missing))}, which initial= has" if missing else None
