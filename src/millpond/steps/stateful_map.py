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
from millpond.log.segment import Change
from millpond.rows import Rows
from millpond.steps.base import Outputs, Step, Turn
from millpond.steps.failure import is_needed_again, own_copy
from millpond.steps.values import ABSENT, DROPPED, EASY, Packed, Values


class StatefulMap:
    """One value per key; `None` as the new state drops it, `None` as the output emits nothing."""

    def __init__(self, step: Step, turn: Turn) -> None:
        self._step, self._turn = step, turn
        self._f, self._initial = step.options["f"], step.options["initial"]
        self._values = Values(step.name, turn.view, turn.codec)

    def run(self, rows: Rows, side: int = 0) -> Iterator[Rows]:
        keys = rows.keys
        assert keys is not None
        before = self._values.load(keys.encoded)
        states, names = list(before), keys.objects
        if self._turn.in_parts:
            yield from (self._outputs(part, names, states) for part in rows.parts())
        else:
            yield self._outputs(rows, names, states)
        self._values.save(keys.encoded, before, states)

    def _outputs(self, rows: Rows, names: list[Any], states: list[Any]) -> Rows:
        """The outputs of some rows; `states` are those of all keys, and change."""
        assert rows.keys is not None
        outputs: list[Any] = []  # one for every row, None where there is none
        objects, index = rows.objects(), rows.keys.index
        f, first, pack, decode = self._f, self._first, self._values.pack, self._turn.codec.decode
        emit = outputs.append

        def once(k: int, row: Any) -> None:
            old = states[k]
            if old.__class__ is Packed:
                state = decode(old.data)
            elif old is ABSENT or old is DROPPED:
                state = first()
            else:
                state = old
            try:
                output, new = f(names[k], row, state)
            except (TypeError, ValueError) as error:
                raise clearer(error) from error
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
                        output, new = f(names[k], row, old)
                        if new.__class__ in EASY:
                            states[k] = new
                        else:
                            states[k] = DROPPED if new is None else pack(new, old)
                        emit(output)
                    else:
                        once(k, row)
                break
            except Exception as error:
                i = len(outputs)
                self._turn.failures.row(
                    self._step.on_error,
                    self._step.name,
                    clearer(error),
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

    def end(self) -> None:
        return None

    def changes(self) -> list[Change]:
        return self._values.changes()


def clearer(error: Exception) -> Exception:
    """What was raised here, when the result was taken apart, in better words; the user's own as it is."""
    trace, text = error.__traceback__, str(error)
    ours = type(error) in (TypeError, ValueError) and trace is not None and trace.tb_next is None
    if ours and "unpack" in text:
        return type(error)(f"{text}: the function of a stateful_map returns (output, state)").with_traceback(trace)
    return error
