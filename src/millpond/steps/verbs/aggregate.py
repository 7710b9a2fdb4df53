"""`aggregate`: running aggregates per key, with an output per row.

orders.key_by("customer").aggregate("spend", n=mp.count(), spent=mp.sum("amount"))

Rows are added by columns if all aggregations count, add up or compare fields that are numbers. From the first rows of a
batch that do not fit columns on, its rows are added one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from millpond.aggregations import Aggregation, result_of
from millpond.log.segment import Change
from millpond.rows.rows import Outputs, Rows, key_fields
from millpond.steps.base import Running, StepContext
from millpond.steps.kind import Step, StoredKey, call_for_rows, is_expiring
from millpond.steps.state.accumulator_changes import BASE, GrowingAccumulators, fold_cells, folded_keys
from millpond.steps.state.expiring import ExpiringCells
from millpond.steps.state.single import Packed, SingleValues, is_absent
from millpond.steps.verbs.aggregate_columns import ColumnarAggregate, fields_to_read

CHANGES = "changes"  # in the detail of a step: its state may have cells of changes


@dataclass(frozen=True, kw_only=True)
class AggregateStep(Step):
    """One value per key: the accumulators by name, each with the kind of its aggregation.

    An aggregation that is new, or of another kind than the one that stored the accumulator, starts from its initial
    value and leaves the others alone. If one of them grows, each batch adds a cell with what it changed:
    `steps/state/accumulator_changes.py`. With a TTL the accumulators are always one value, which expires as a whole.
    """

    kind: ClassVar[str] = "aggregate"
    can_expire = True
    emits_own_rows = True
    shows_results = True

    aggregations: dict[str, Aggregation]
    takes_back: bool  # some of the rows that come may take earlier ones back
    key_names: tuple[str, ...]

    @property
    def can_use_columns(self) -> bool:
        """Whether rows may be added by columns, if they fit."""
        return not self.takes_back and fields_to_read(self.aggregations) is not None

    @property
    def stores_changes(self) -> bool:
        """Whether batches store what they change, and not the whole accumulators."""
        return self.state.ttl is None and any(a.change is not None for a in self.aggregations.values())

    @property
    def detail(self) -> dict[str, Any]:
        return {**super().detail, CHANGES: True} if self.stores_changes else super().detail

    def begin(self, context: StepContext) -> Running:
        return RunningAggregate(self, context)

    @classmethod
    def show(cls, stored: StoredKey, step: Self | None) -> dict[str, Any]:
        aggregations = {} if step is None else step.aggregations
        where = "" if step is None else f"step {step.name!r}"
        return results_by_name(fold_cells(stored.cells, stored.codec, aggregations, where), aggregations)


class RunningAggregate(Running):
    """The started step."""

    def __init__(self, step: AggregateStep, context: StepContext) -> None:
        self._step, self._context = step, context
        self._aggregations, self._key_names = list(step.aggregations.items()), step.key_names
        self._cells = ExpiringCells(step, context) if is_expiring(step, context) else None
        self._values = SingleValues(step.name, context.view, context.codec)
        self._folded: list[Change] = []  # deletions of cells that this batch has made part of the values
        self._columns: ColumnarAggregate | None = None  # None: rows are added one by one
        self._growing: GrowingAccumulators | None = None
        if self._cells is None and step.stores_changes:
            self._growing = GrowingAccumulators(
                step.name, step.aggregations, context.view, context.codec, context.arrival
            )
        elif (context.previous_detail or {}).get(CHANGES):
            self._fold_changes()
        if step.can_use_columns and self._cells is None:
            self._columns = ColumnarAggregate(step.aggregations, step.key_names, self._values, context.codec)

    def _fold_changes(self) -> None:
        """Make one value of the accumulators of every key: the program no longer stores their changes."""
        found = folded_keys(self._step.name, self._step.aggregations, self._context.view, self._context.codec)
        if self._cells is not None:
            for key, accumulators, changes in found:
                self._cells.select(key)
                self._cells.write(BASE, accumulators, *self._cells.times(BASE))
                for cell in changes:
                    self._cells.drop(cell)
                self._cells.commit_row()
            return
        keys = [key for key, _, _ in found]
        values = [Packed(self._context.codec.encode(accumulators)) for _, accumulators, _ in found]
        self._values.save(keys, self._values.load(keys), values)
        self._folded = [Change(key, cell, None) for key, _, changes in found for cell in changes]

    def run(self, rows: Rows, side: int = 0) -> Rows:
        if self._cells is not None:
            return self._run_expiring(rows, self._cells)
        if self._growing is not None:
            return self._run_growing(rows, self._growing)
        outputs = self._columns.run(rows) if self._columns is not None else None
        if outputs is not None:
            return outputs
        self._columns = None
        return self._run_plain(rows)

    def _run_plain(self, rows: Rows) -> Rows:
        keys = rows.keys
        assert keys is not None
        before = self._values.load(keys.encoded)
        states = list(before)
        found = Outputs(rows)

        def once(i: int, k: int, row: Any) -> None:
            old = states[k]
            accumulators = self._context.codec.decode(old.data) if old.__class__ is Packed else {}
            output = self._update(accumulators, keys.objects[k], row, None if rows.times is None else rows.times[i])
            states[k] = self._values.pack(accumulators, old)
            found.add(i, output)

        call_for_rows(self._step, self._context, rows, once)
        self._values.save(keys.encoded, before, states)
        return found.rows()

    def _run_growing(self, rows: Rows, growing: GrowingAccumulators) -> Rows:
        found, keys, times = Outputs(rows), rows.keys, rows.times
        assert keys is not None
        growing.load(keys.encoded)

        def once(i: int, k: int, row: Any) -> None:
            results = growing.add(keys.encoded[k], row, None if times is None else times[i])
            found.add(i, {**key_fields(self._key_names, keys.objects[k]), **results})

        call_for_rows(self._step, self._context, rows, once)
        return found.rows()

    def _run_expiring(self, rows: Rows, cells: ExpiringCells) -> Rows:
        found, keys, times = Outputs(rows), rows.keys, rows.times
        assert keys is not None

        def once(i: int, k: int, row: Any) -> None:
            cells.select(keys.encoded[k])
            cells.now.move(*((None, None) if times is None else (int(times.values[i]), times.unit)))
            accumulators = cells.value(b"")
            accumulators = {} if is_absent(accumulators) else accumulators
            try:
                output = self._update(accumulators, keys.objects[k], row, None if times is None else times[i])
                cells.put(b"", accumulators)
            except BaseException:
                cells.undo_row()
                raise
            cells.commit_row()
            found.add(i, output)

        call_for_rows(self._step, self._context, rows, once)
        return found.rows()

    def _update(self, accumulators: dict[str, Any], key: Any, row: Any, time: Any) -> dict[str, Any]:
        """Add a row to the accumulators, and return the output for it."""
        output = key_fields(self._key_names, key)
        for name, a in self._aggregations:
            kind, accumulator = accumulators.get(name, (None, None))[:2]
            if kind != a.kind:
                accumulator = a.initial()
            accumulator = a.update(accumulator, row, time)
            accumulators[name] = [a.kind, accumulator]
            output[name] = a.result(accumulator)
        return output

    def end(self) -> None:
        if self._cells is not None:
            self._cells.expire()

    def changes(self) -> Sequence[Change]:
        if self._cells is not None:
            return self._cells.changes()
        if self._growing is not None:
            return self._growing.changes()
        return sorted([*self._values.changes(), *self._folded]) if self._folded else self._values.changes()


def results_by_name(accumulators: dict[str, Any], aggregations: dict[str, Aggregation]) -> dict[str, Any]:
    """Return the results of one key's accumulators, with the program's aggregations or without them.

    Where changes cannot be applied because the aggregation is not there, the result is `{"value": …, "changes": […]}`.
    """
    found = {}
    for name, (kind, acc, *unapplied) in accumulators.items():
        own = aggregations.get(name)
        found[name] = own.result(acc) if own is not None and own.kind == kind else result_of(kind, acc)
        if unapplied:
            found[name] = {"value": found[name], "changes": unapplied[1]}
    return found
