"""`stateful_map`: state in, output and new state out.

def add_up(key, order, total):
    total += order["amount"]
    return {"customer": key, "total": total}, total

orders.key_by("customer").stateful_map("total", add_up, initial=0)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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

    def run(self, rows: Rows, side: int = 0) -> Iterator[Rows]:
        keys = rows.keys
        assert keys is not None
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
        pack, decode = self._values.pack, self._context.codec.decode
        f, first_state = self._step.f, self._step.first_state
        emit = outputs.append

        def once(k: int, row: Any) -> None:
            old = states[k]
            if old.__class__ is Packed:
                state = decode(old.data)
            elif old is ABSENT or old is DROPPED:
                state = first_state()
            else:
                state = old
            output, new = output_and_state(f(names[k], row, state))
            if new is None:
                states[k] = ABSENT if old is ABSENT else DROPPED
            else:
                states[k] = pack(new, old)
            emit(output)

        def once_again(i: int, k: int) -> None:
            try:
                once(k, own_copy(objects[i]))
            except FAULTS as error:
                add_shape_note(error, self._step, states[k], decode)
                raise

        # The loop spells `once` out for the common case, a state that cannot be changed in place:
        # the call would be a third of the work.
        given = [own_copy(row) for row in objects] if self._step.copies_rows else objects
        left = zip(index, given, strict=True)
        while True:
            try:
                for k, row in left:
                    old = states[k]
                    if old.__class__ in IMMUTABLE:
                        result = f(names[k], row, old)
                        if result.__class__ is not tuple or len(result) != 2:
                            output_and_state(result)
                        output, new = result
                        if new.__class__ in SURELY_ENCODABLE:
                            states[k] = new
                        else:
                            states[k] = DROPPED if new is None else pack(new, old)
                        emit(output)
                    else:
                        once(k, row)
                break
            except FAULTS as error:
                i = len(outputs)
                add_shape_note(error, self._step, states[k], decode)
                self._context.failures.handle(
                    self._step.on_error,
                    self._step.name,
                    error,
                    FailedRow(
                        key=names[k],
                        row=objects[i],
                        order=rows.order[i],
                        again=lambda i=i, k=k: once_again(i, k),  # type: ignore[misc]
                    ),
                )
                if len(outputs) == i:
                    emit(None)
        if NoneType not in set(map(type, outputs)):  # one output per row, as most functions have it
            return rows.with_data(outputs)
        found = Outputs(rows)
        for i, output in enumerate(outputs):
            if output is not None:
                found.add(i, output)
        return found.rows()

    def end(self) -> None:
        return None

    def changes(self) -> list[Change]:
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
    raise InvalidUse(f"expected (output, state), a tuple of two, and the function returned {short_repr(result)}")


def add_shape_note(error: BaseException, step: StatefulMapStep, state: Any, decode: Callable[[bytes], Any]) -> None:
    """Add a note to what a function raised if its state has another shape than `initial`. The traceback shows it.

    Such a state is allowed, so nothing is checked before. But it may come from an earlier version of the program.
    """
    if is_absent(state) or isinstance(error, MillpondError):
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
