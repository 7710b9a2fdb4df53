"""`aggregate`: running aggregates per key, with an output per row.

orders.key_by("customer").aggregate("spend", n=mp.count(), spent=mp.sum("amount"))
"""

from __future__ import annotations

from typing import Any

from millpond.aggregations import Aggregation, result_of
from millpond.log.segment import Change
from millpond.rows.rows import Rows
from millpond.steps.base import Outputs, Running, Step, StepContext, each_row
from millpond.steps.state.expiring import Entries
from millpond.steps.state.single import Packed, Values, is_absent
from millpond.steps.state.ttl import is_mortal


class Aggregate(Running):
    """One value per key: the accumulators by name, each beside the kind that it belongs to.

    An aggregation that is new, or of another kind than the one that kept the accumulator, begins anew and
    leaves the others alone.
    """

    def __init__(self, step: Step, context: StepContext) -> None:
        self._step, self._context = step, context
        self._aggregations: dict[str, Aggregation] = step.options["aggregations"]
        self._names: tuple[str, ...] = step.options["key_names"]
        self._cells = Entries(step, context) if is_mortal(step, context) else None
        self._values = Values(step.name, context.view, context.codec)

    def run(self, rows: Rows, side: int = 0) -> Rows:
        return self._run_lasting(rows) if self._cells is None else self._run_mortal(rows, self._cells)

    def _run_lasting(self, rows: Rows) -> Rows:
        keys = rows.keys
        assert keys is not None
        before = self._values.load(keys.encoded)
        states = list(before)
        found = Outputs(rows)

        def once(i: int, k: int, row: Any) -> None:
            old = states[k]
            kept = self._context.codec.decode(old.data) if old.__class__ is Packed else {}
            output = self._update(kept, keys.objects[k], row, None if rows.times is None else rows.times[i])
            states[k] = self._values.pack(kept, old)
            found.add(i, output)

        each_row(self._step, self._context, rows, once)
        self._values.save(keys.encoded, before, states)
        return found.rows()

    def _run_mortal(self, rows: Rows, cells: Entries) -> Rows:
        found, keys, times = Outputs(rows), rows.keys, rows.times
        assert keys is not None

        def once(i: int, k: int, row: Any) -> None:
            cells.turn_to(keys.encoded[k])
            cells.now.move(*((None, None) if times is None else (int(times.values[i]), times.unit)))
            kept = cells.value(b"")
            kept = {} if is_absent(kept) else kept
            try:
                output = self._update(kept, keys.objects[k], row, None if times is None else times[i])
                cells.put(b"", kept)
            except BaseException:
                cells.undo()
                raise
            cells.keep()
            found.add(i, output)

        each_row(self._step, self._context, rows, once)
        return found.rows()

    def _update(self, kept: dict[str, Any], key: Any, row: Any, time: Any) -> dict[str, Any]:
        """One more row in the accumulators, and the output that is due to it."""
        output = key_fields(self._names, key)
        for name, a in self._aggregations.items():
            kind, accumulator = kept.get(name, (None, None))
            if kind != a.kind:
                accumulator = a.initial()
            accumulator = a.update(accumulator, row, time)
            kept[name] = [a.kind, accumulator]
            output[name] = a.result(accumulator)
        return output

    def end(self) -> None:
        if self._cells is not None:
            self._cells.expire()

    def changes(self) -> list[Change]:
        return self._values.changes() if self._cells is None else self._cells.changes()


def key_fields(names: tuple[str, ...], key: Any) -> dict[str, Any]:
    """A key as the fields of an output row."""
    return dict(zip(names, key, strict=True)) if len(names) > 1 else {names[0]: key}


def results(kept: dict[str, Any], aggregations: dict[str, Aggregation]) -> dict[str, Any]:
    """What the accumulators of one key come to, with the program's aggregations or without them."""
    return {
        name: aggregations[name].result(acc)
        if name in aggregations and aggregations[name].kind == kind
        else result_of(kind, acc)
        for name, (kind, acc) in kept.items()
    }
