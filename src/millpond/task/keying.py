"""Keys: which rows belong to which key, and which partition owns it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from millpond.codec import encode_key, encode_keys, partitions_of
from millpond.errors import InvalidUse
from millpond.pipeline.graph import KeyBy
from millpond.rows.fields import read_field, read_json_fields
from millpond.rows.rows import BadInput, Keys, Rows
from millpond.steps.failure import FAULTS, Failed


def keyed(op: KeyBy, rows: Rows, failed: Failed) -> Rows:
    """The rows with their keys; rows that have none are reported and left out."""
    if len(rows) == 0:
        return Rows([], [], times=rows.times, keys=Keys([], []))
    keys = _quick(op, rows)
    if keys is not None:
        return Rows(rows.data, rows.order, form=rows.form, times=rows.times, keys=keys)
    good: list[int] = []
    encoded: list[bytes] = []
    may_help = any(not isinstance(by, str) for by in op.by)  # a field that is not there will not come

    def once(i: int, row: Any) -> None:
        key = _key(op, row)
        try:
            encoded.append(encode_key(key))
        except InvalidUse as error:
            raise BadInput(str(error)) from error
        good.append(i)

    for i, row in enumerate(rows.objects()):
        try:
            once(i, row)
        except FAULTS as error:
            failed(i, row, error, (lambda i=i, row=row: once(i, row)) if may_help else None)  # type: ignore[misc]
    rows = rows if len(good) == len(rows) else rows.pick(good)
    return Rows(rows.data, rows.order, form=rows.form, times=rows.times, keys=_distinct(encoded))


def _key(op: KeyBy, row: Any) -> Any:
    parts = [read_field(row, by) if isinstance(by, str) else by(row) for by in op.by]
    return parts[0] if len(parts) == 1 else tuple(parts)


def _quick(op: KeyBy, rows: Rows) -> Keys | None:
    """The keys of all rows at once, where fields alone make them and every row has them; else nothing."""
    if not all(isinstance(by, str) for by in op.by):
        return None
    fields: list[str] = list(op.by)  # type: ignore[arg-type]
    try:
        if rows.form == "arrow":
            return _of_columns(rows.data, fields)
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
        return _distinct(encode_keys(values))
    except Exception:
        return None  # which row it was, and why, is found one by one


def _of_columns(table: pa.Table, fields: list[str]) -> Keys | None:
    if len(fields) > 1:
        lists = [table.column(name).to_pylist() for name in fields]
        return _distinct(encode_keys(list(zip(*lists, strict=True))))
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


def _distinct(encoded: list[bytes]) -> Keys:
    order = {key: i for i, key in enumerate(dict.fromkeys(encoded))}
    return Keys(list(order), list(map(order.__getitem__, encoded)))


def parted(rows: Rows, partitions: int) -> dict[int, Rows]:
    """Keyed rows by the partition that owns their key, in their order."""
    assert rows.keys is not None
    if partitions == 1:
        return {0: rows} if len(rows) else {}
    owner = partitions_of(rows.keys.encoded, partitions)
    if len(owner) == 0:
        return {}
    index, order = rows.keys.array, np.asarray(rows.order, dtype=np.int64)
    per_row = np.asarray(owner)[index]
    found: dict[int, Rows] = {}
    for partition in range(partitions):
        mine = np.flatnonzero(per_row == partition)
        if len(mine) == 0:
            continue
        data = rows.data
        data = data.take(pa.array(mine)) if rows.form == "arrow" else [data[i] for i in mine.tolist()]
        times = None if rows.times is None else rows.times.pick(mine)
        found[partition] = Rows(data, order[mine], form=rows.form, times=times, keys=rows.keys.pick(mine))
    return found
