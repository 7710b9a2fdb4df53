"""`stateful_map`: state in, output and new state out.

def add_up(key, order, total):
    total += order["amount"]
    return {"customer": key, "total": total}, total

orders.key_by("customer").stateful_map("total", add_up, initial=0)
"""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType
from typing import Any

from millpond.codec import IMMUTABLE, copy_value
from millpond.codec.refusal import short
from millpond.errors import InvalidUse
from millpond.log.segment import Change
from millpond.rows.rows import Rows
from millpond.steps.base import Outputs, Running, Step, StepContext
from millpond.steps.failure import FAULTS, is_needed_again, own_copy
from millpond.steps.state.single import ABSENT, DROPPED, EASY, Packed, Values


class StatefulMap(Running):
    """One value per key; `None` as the new state drops it, `None` as the output emits nothing."""

    def __init__(self, step: Step, context: StepContext) -> None:
        self._step, self._context = step, context
        self._f, self._initial = step.options["f"], step.options["initial"]
        self._values = Values(step.name, context.view, context.codec)

    def run(self, rows: Rows, side: int = 0) -> Iterator[Rows]:
        keys = rows.keys
        assert keys is not None
        before = self._values.load(keys.encoded)
        states, names = list(before), keys.objects
        if self._context.may_emit_in_parts:
            yield from (self._outputs(part, names, states) for part in rows.parts())
        else:
            yield self._outputs(rows, names, states)
        self._values.save(keys.encoded, before, states)

    def _outputs(self, rows: Rows, names: list[Any], states: list[Any]) -> Rows:
        """The outputs of some rows; `states` are those of all keys, and change."""
        assert rows.keys is not None
        outputs: list[Any] = []  # one for every row, None where there is none
        objects, index = rows.objects(), rows.keys.index
        f, first, pack, decode = self._f, self._first, self._values.pack, self._context.codec.decode
        emit = outputs.append

        def once(k: int, row: Any) -> None:
            old = states[k]
            if old.__class__ is Packed:
                state = decode(old.data)
            elif old is ABSENT or old is DROPPED:
                state = first()
            else:
                state = old
            output, new = pair(f(names[k], row, state))
            if new is None:
                states[k] = ABSENT if old is ABSENT else DROPPED
            else:
                states[k] = pack(new, old)
            emit(output)

        # The loop spells `once` out for the common case, a state that cannot be changed in place:
        # the call would be a third of the work.
        given = [own_copy(row) for row in objects] if is_needed_again(self._step.on_error) else objects
        left = zip(index, given, strict=True)
        while True:
            try:
                for k, row in left:
                    old = states[k]
                    if old.__class__ in IMMUTABLE:
                        result = f(names[k], row, old)
                        if result.__class__ is not tuple or len(result) != 2:
                            pair(result)
                        output, new = result
                        if new.__class__ in EASY:
                            states[k] = new
                        else:
                            states[k] = DROPPED if new is None else pack(new, old)
                        emit(output)
                    else:
                        once(k, row)
                break
            except FAULTS as error:
                i = len(outputs)
                self._context.failures.row(
                    self._step.on_error,
                    self._step.name,
                    error,
                    key=names[k],
                    row=objects[i],
                    order=rows.order[i],
                    again=lambda i=i, k=k: once(k, own_copy(objects[i])),  # type: ignore[misc]
                )
                if len(outputs) == i:
                    emit(None)
        if NoneType not in set(map(type, outputs)):  # one output per row, as most functions have it
            return rows.with_data(outputs)
        came = [i for i, output in enumerate(outputs) if output is not None]
        found = Outputs(rows)
        for i in came:
            found.add(i, outputs[i])
        return found.rows()

    def _first(self) -> Any:
        return self._initial() if callable(self._initial) else copy_value(self._initial)

    def changes(self) -> list[Change]:
        return self._values.changes()


def pair(result: Any) -> tuple[Any, Any]:
    """What a function returned, if it is a tuple of two. A dict or a text of two can be unpacked, too, by mistake."""
    if result.__class__ is tuple and len(result) == 2:
        return result
    raise InvalidUse(f"expected (output, state), a tuple of two, and the function returned {short(result)}")
