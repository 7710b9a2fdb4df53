"""`key_by`: rows get a key, and go to the partition that owns the state of that key.

>>> import millpond as mp
>>> app = mp.App("shop")
>>> orders = app.stream("orders", mp.sources.rows([])).key_by("who")
>>> counts = orders.stateful_map("counts", lambda key, order, n: ((key, n + 1), n + 1), initial=0)
>>> out = counts.to("out", mp.sinks.memory())
>>> with mp.testing.TestDriver(app) as driver:
...     driver.send("orders", [{"who": "ann"}, {"who": "bob"}, {"who": "ann"}])
...     driver.output("out")
[('ann', 1), ('bob', 1), ('ann', 2)]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from millpond.codec import encode_key, encode_keys
from millpond.errors import InvalidUse
from millpond.rows.fields import read_field, read_json_fields
from millpond.rows.rows import BadInput, Keys, Rows
from millpond.steps.failure import FAULTS, Failed
from millpond.steps.operator import Operator, OperatorContext


@dataclass(frozen=True)
class KeyBy(Operator):
    """Gives rows their keys. They go on in the next stage, in the task of the partition that owns the key."""

    verb = "key_by"
    may_change_rows = False
    passes_rows_unchanged = True
    is_exchange = True
    starts_stage = True

    by: tuple[str | Callable[[Any], Any], ...]  # a field, or a function of the row, for each part of the key
    names: tuple[str, ...]  # of the parts

    @property
    def name(self) -> str:
        return f"key_by({', '.join(self.names)})"

    @property
    def label(self) -> str:
        return self.name

    @property
    def can_read_json_text(self) -> bool:
        return all(isinstance(by, str) for by in self.by)

    def start(self, context: OperatorContext) -> RunningKeyBy:
        return RunningKeyBy(self, context)


class RunningKeyBy:
    """A `key_by`, started in one task."""

    def __init__(self, operator: KeyBy, context: OperatorContext) -> None:
        self._operator, self._context = operator, context

    def run(self, rows: Rows, side: int = 0) -> Rows:
        return assign_keys(self._operator, rows, self._context.reporter(rows))


def assign_keys(op: KeyBy, rows: Rows, failed: Failed) -> Rows:
    """Return the rows with their keys. A row whose key cannot be made is reported to `failed` and left out."""
    if len(rows.order) == 0:
        return Rows([], [], times=rows.times, keys=Keys([], []))
    keys = _keys_of_fields(op, rows)
    if keys is not None:
        return Rows(rows.data, rows.order, form=rows.form, times=rows.times, keys=keys)
    good: list[int] = []
    encoded: list[bytes] = []

    def once(i: int, row: Any) -> None:
        key = _key_of_row(op, row)
        try:
            encoded.append(encode_key(key))
        except InvalidUse as error:
            raise BadInput(str(error)) from error
        good.append(i)

    has_function = not op.can_read_json_text  # another attempt at a field that is missing cannot help
    for i, row in enumerate(rows.objects()):
        try:
            once(i, row)
        except FAULTS as error:
            failed(i, row, error, partial(once, i, row) if has_function else None)
    rows = rows if len(good) == len(rows) else rows.pick(good)
    return Rows(rows.data, rows.order, form=rows.form, times=rows.times, keys=_index_keys(encoded))


def _key_of_row(op: KeyBy, row: Any) -> Any:
    parts = [read_field(row, by) if isinstance(by, str) else by(row) for by in op.by]
    return parts[0] if len(parts) == 1 else tuple(parts)


def _keys_of_fields(op: KeyBy, rows: Rows) -> Keys | None:
    """Return the keys of all rows at once; None if a part of the key is a function, or a row lacks a field."""
    if not op.can_read_json_text:
        return None
    fields: list[str] = list(op.by)  # type: ignore[arg-type]
    try:
        if rows.form == "arrow":
            return _keys_of_columns(rows.data, fields)
        if rows.form == "json":
            values = read_json_fields(rows.data, fields)
        elif len(fields) == 1:
            name = fields[0]
            values = [row[name] for row in rows.data]
        else:
            values = [tuple([row[name] for name in fields]) for row in rows.data]
        kinds = set(map(type, values))
        if kinds == {str} or kinds == {int}:
            order = {value: i for i, value in enumerate(dict.fromkeys(values))}
            return Keys(encode_keys(list(order)), list(map(order.__getitem__, values)), list(order))
        return _index_keys(encode_keys(values))
    except Exception:
        return None  # the slow way finds out which row it was, and why


def _keys_of_columns(table: pa.Table, fields: list[str]) -> Keys | None:
    if len(fields) > 1:
        lists = [table.column(name).to_pylist() for name in fields]
        return _index_keys(encode_keys(list(zip(*lists, strict=True))))
    column = table.column(fields[0])
    if column.null_count:
        return None
    column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        return None
    found = column.dictionary_encode()
    values = found.dictionary.to_pylist()
    field = fields[0] if pa.types.is_string(column.type) else None
    return Keys(encode_keys(values), found.indices.to_numpy(), values, field)


def _index_keys(encoded: list[bytes]) -> Keys:
    order = {key: i for i, key in enumerate(dict.fromkeys(encoded))}
    return Keys(list(order), list(map(order.__getitem__, encoded)))
