"""Rows as the columns of numbers that their consumers read, so that nothing else is sent to another task.

A task that owns a key with most of the rows would otherwise decode most of the rows. See decision record 11.
"""

from __future__ import annotations

import pyarrow as pa

from millpond.rows.number_columns import read_columns
from millpond.rows.rows import Rows


def select_columns(rows: Rows, fields: tuple[str, ...]) -> Rows:
    """Return rows that are columns with these columns only, if all are there and numeric; else the rows as they are."""
    table = rows.data
    kinds = {name: table.schema.field(name).type for name in fields if table.column_names.count(name) == 1}
    if len(kinds) < len(fields) or not all(pa.types.is_integer(k) or pa.types.is_floating(k) for k in kinds.values()):
        return rows
    names = list(fields) or table.column_names[:1]  # one column stays, to count the rows by
    return _as_table_rows(rows, table.select(names))


def to_columns(rows: Rows, fields: tuple[str, ...]) -> Rows:
    """Return lines of JSON, or dicts, as columns of these fields; the rows as they are if one is no column of numbers.

    The numbers keep their types and their order, so that windows over them are the same to the last bit.
    """
    if not fields:
        return _as_table_rows(rows, pa.table({"row": pa.nulls(len(rows))}))  # to count the rows by
    columns = read_columns(rows, fields)
    if columns is None:
        return rows
    arrays = {
        name: pa.array(values, mask=None if valid is None else ~valid) for name, (values, valid) in columns.items()
    }
    return _as_table_rows(rows, pa.table(arrays))


def _as_table_rows(rows: Rows, table: pa.Table) -> Rows:
    return Rows(table, rows.order, form="arrow", times=rows.times, keys=rows.keys)
