"""`apply_batch`: a function over the rows of a partition's batch and the states of their keys, both as tables.

>>> import millpond as mp
>>> import pyarrow as pa
>>> import pyarrow.compute as pc
>>> def add_up(orders, states):  # pyarrow.Tables
...     sums = orders.group_by("customer").aggregate([("amount", "sum")])
...     both = sums.join(states, "customer")
...     total = pc.add(both["amount_sum"], pc.fill_null(both["total"], 0))
...     return None, pa.table({"customer": both["customer"], "total": total})
>>> app = mp.App("shop")
>>> orders = app.stream("orders", mp.sources.rows([])).key_by("customer")
>>> totals = orders.apply_batch("total", add_up, state={"total": int})
>>> with mp.testing.TestDriver(app) as driver:
...     driver.send("orders", [{"customer": "ann", "amount": 3}, {"customer": "ann", "amount": 4}])
...     driver.send("orders", [{"customer": "ann", "amount": 1}])
...     driver.state("total").get("ann")
{'total': 8}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import pyarrow as pa

from millpond.errors import Incompatible, InvalidUse, short_repr
from millpond.log.segment import Change
from millpond.rows.arrow_objects import unreadable_rows
from millpond.rows.arrow_tables import TableUse
from millpond.rows.frame_kinds import FrameKind
from millpond.rows.key_columns import add_key_columns, find_keys
from millpond.rows.rows import Rows
from millpond.rows.wire import can_concatenate, concatenate
from millpond.steps.base import Running, StepContext
from millpond.steps.failure import FAULTS
from millpond.steps.kind import Step, StoredKey, is_expiring
from millpond.steps.state.batch_states import BatchStates, ExpiringStates, PlainStates
from millpond.steps.state.migration import ColumnsMigration
from millpond.steps.state.state_columns import ReturnedStates, StateColumns
from millpond.steps.state.state_texts import StateTexts
from millpond.steps.verbs.table_calls import (
    call_with_retries,
    check_names,
    checked_table,
    keys_of_outputs,
    panics_as_errors,
    table_of,
)

_ROWS_TO_APPLY = TableUse("apply_batch", "a column", "use stateful_map() instead of apply_batch()", is_exact=True)


@dataclass(frozen=True, kw_only=True)
class ApplyBatchStep(Step):
    """One value per key: a dict of the columns of its state."""

    kind: ClassVar[str] = "apply_batch"
    can_expire = True
    migration = ColumnsMigration

    f: Callable[[Any, Any], tuple[Any, Any]]
    frames: FrameKind  # what the function takes and returns
    columns: StateColumns
    key_names: tuple[str, ...]  # of the parts of the key: the names of their columns

    def begin(self, context: StepContext) -> Running:
        return RunningApplyBatch(self, context)

    @property
    def detail(self) -> dict[str, Any]:
        return {**super().detail, "columns": self.columns.type_names}

    def check_detail(self, app: str, stored: Mapping[str, Any]) -> None:
        """Refuse state whose columns have other types; columns may come and go."""
        before, version = stored.get("columns", {}), self.state.version
        for name, kind in self.columns.type_names.items():
            if before.get(name, kind) != kind:
                raise Incompatible(
                    f"app {app!r}: step {self.name!r}: expected the column {name!r} of its state as {before[name]}, as "
                    f"it is stored, got {kind}. Say version={version + 1} and migrate={{{version}: function}}, with a "
                    "function of the dict of a key's columns that returns the new one, or give the column another "
                    "name; nothing was changed."
                )

    @classmethod
    def show(cls, stored: StoredKey, step: Self | None) -> Any:
        return stored.codec.decode(stored.cells[0][1])


class _Returned(NamedTuple):
    """What a call has returned, checked."""

    outputs: pa.Table | None  # one for each row, in their order; None if there are none
    places: Sequence[int]  # of the keys whose states were returned, among those of the batch
    states: ReturnedStates | None  # their new states; None if there are none


class RunningApplyBatch(Running):
    """The started step: it keeps its rows until all of the batch have come, and then calls the function once."""

    def __init__(self, step: ApplyBatchStep, context: StepContext) -> None:
        self._step, self._context = step, context
        self._waiting: list[Rows] = []
        self._texts = StateTexts(step.columns.types, context.codec)
        store = ExpiringStates if is_expiring(step, context) else PlainStates
        self._states: BatchStates = store(step, context, self._texts)

    def run(self, rows: Rows, side: int = 0) -> Rows:
        self._waiting.append(rows)
        return Rows([], [])

    def end(self) -> list[Rows]:
        parts, self._waiting = [rows for rows in self._waiting if len(rows)], []
        outputs = self._apply(parts) if parts else []
        self._states.expire()
        return outputs

    def _apply(self, parts: list[Rows]) -> list[Rows]:
        step, failures = self._step, self._context.failures
        rows = _join_parts(parts)
        assert rows.keys is not None
        states = step.columns.to_arrays(step.name, rows.keys, self._states.load(parts, rows.keys))
        try:
            found = call_with_retries(step.on_error, failures.clock, partial(self._call, rows, states))
            if found.states is not None:
                self._states.save(found.places, self._encode(found.states))
        except FAULTS as error:
            failures.handle_together(step.on_error, step.name, error, rows)
            return []
        return [] if found.outputs is None else list(_output_rows(parts, rows, found.outputs))

    def _encode(self, states: ReturnedStates) -> list[bytes | None]:
        texts: list[bytes | None] = [*self._texts.encode(states.values)]
        for place in states.gone:
            texts[place] = None
        return texts

    def _call(self, rows: Rows, states: dict[str, Any]) -> _Returned:
        step, frames, keys = self._step, self._step.frames, rows.keys
        assert keys is not None
        given, distinct = add_key_columns(table_of(rows, _ROWS_TO_APPLY), keys, step.key_names)
        held = pa.table({**dict(zip(distinct.column_names, distinct.columns, strict=True)), **states})
        with panics_as_errors():
            result = step.f(frames.from_arrow(given), frames.from_arrow(held))
            outputs, changed = (None if part is None else frames.to_arrow(part) for part in _outputs_and_states(result))
        places, new = ((), None) if changed is None else self._read_states(changed, distinct)
        return _Returned(None if outputs is None else _check_outputs(outputs, len(rows)), places, new)

    def _read_states(self, table: pa.Table, distinct: pa.Table) -> tuple[Sequence[int], ReturnedStates]:
        check_names(table)
        expected = [*distinct.column_names, *self._step.columns.types]
        if set(table.column_names) != set(expected):
            raise InvalidUse(
                f"expected the function to return states with the columns {', '.join(map(repr, expected))}, got "
                f"{', '.join(map(repr, table.column_names))}. Select these columns in the function, or name the "
                "columns of the state in state=."
            )
        return find_keys(table, distinct), self._step.columns.read_returned(table)

    def changes(self) -> Sequence[Change]:
        return self._states.changes()


def _outputs_and_states(result: Any) -> tuple[Any, Any]:
    if isinstance(result, tuple) and len(result) == 2:
        return result
    raise InvalidUse(
        f"expected (outputs, states), a tuple of two, and the function returned {short_repr(result)}. Return None for "
        "outputs or for states if there are none."
    )


def _check_outputs(table: pa.Table, count: int) -> pa.Table | None:
    """Return the outputs; None if there are none. InvalidUse says what is wrong with them."""
    if len(table) == 0:
        return None
    table = checked_table(table)
    if len(table) != count:
        raise InvalidUse(
            f"expected the function to return an output for each of the {count} rows that it was given, in their "
            f"order, because each of them has its key, or no output at all; got {len(table)}. Return a column that "
            "says which rows to leave out, and use filter() after apply_batch()."
        )
    for why in unreadable_rows(table).values():
        raise InvalidUse(f"the function returned an output with {why}")
    return table


def _join_parts(parts: list[Rows]) -> Rows:
    """Return the rows of a batch together, without their times, which may be of several units."""
    bare = [Rows(part.data, part.order, form=part.form, keys=part.keys) for part in parts]
    if len(bare) > 1 and (bare[0].form == "columns" or not all(can_concatenate(bare[0], part) for part in bare)):
        bare = [part.as_objects() for part in bare]
    return concatenate(bare)


def _output_rows(parts: list[Rows], rows: Rows, table: pa.Table) -> Iterator[Rows]:
    """Yield the outputs of each part of the batch, with the order, the keys and the times of its rows."""
    keys, start = keys_of_outputs(rows.keys), 0
    assert keys is not None
    for part in parts:
        end = start + len(part)
        own = table.slice(start, len(part)) if len(parts) > 1 else table
        yield Rows(own, part.order, form="arrow", times=part.times, keys=keys.part(start, end))
        start = end
