"""Keys as columns, one for each part of the key, with the names that `key_by` gave to the parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import InvalidUse, short_repr
from millpond.rows.arrow_objects import column_to_list
from millpond.rows.arrow_tables import TableUse, strict_column
from millpond.rows.arrow_types import cast_column
from millpond.rows.rows import Keys

_KEY_USE = TableUse(
    "a key column", "a key column", "let key_by() make the key of another type with a function", is_exact=True
)


def add_key_columns(rows: pa.Table, keys: Keys, names: tuple[str, ...]) -> tuple[pa.Table, pa.Table]:
    """Return a table of rows with the columns of their keys, and a table of the distinct keys.

    A column that the rows have already must hold the key, and both tables get its type; else InvalidUse is raised.
    """
    objects = keys.objects
    parts: list[Any] = [objects] if len(names) == 1 else [[key[i] for key in objects] for i in range(len(names))]
    index, distinct = pa.array(keys.array), {}
    for name, part in zip(names, parts, strict=True):
        column = strict_column(name, part, _KEY_USE)
        if name not in rows.column_names:
            rows = rows.append_column(name, column.take(index))
        else:
            given = rows.column(name)
            if pa.types.is_dictionary(given.type):
                given = given.cast(given.type.value_type)
                rows = rows.set_column(rows.column_names.index(name), name, given)
            if name != keys.field:
                column = _as_in_rows(name, column, given, index)
        distinct[name] = column
    return rows, pa.table(distinct)


def _as_in_rows(name: str, column: Any, given: Any, index: Any) -> Any:
    """Return the distinct values of a part of the key with the type that the rows have; InvalidUse if they differ."""
    try:
        column = cast_column(column, given.type)
        if pc.all(pc.fill_null(pc.equal(column.take(index), given), False)).as_py():
            return column
        got = "other values"
    except InvalidUse:
        got = f"a column of type {given.type}"
    raise InvalidUse(
        f"expected the field {name!r} of the rows to hold the key, because key_by() has named it so, got {got}. Rename "
        "the field with map(), or give the key another name, as in key_by(other_name=function)."
    )


def find_keys(found: pa.Table, distinct: pa.Table) -> Sequence[int]:
    """Return the place of each key of a table among the distinct keys.

    InvalidUse names a key that is null, not among them, or there twice.
    """
    names = distinct.column_names
    columns = {name: _key_column(name, found.column(name), distinct.column(name).type) for name in names}
    if all(columns[name].equals(distinct.column(name)) for name in names):
        return range(len(distinct))
    known = {key: i for i, key in enumerate(_tuples(distinct))}
    keys = _tuples(pa.table(columns))
    places = [known.get(key, -1) for key in keys]
    if -1 in places:
        raise InvalidUse(
            "expected the returned states to have keys of the states that the function was given, got "
            f"{_key_text(keys[places.index(-1)])}. Return only these keys: others may be in another partition."
        )
    if len(set(places)) < len(places):
        (twice, _), *_ = Counter(keys).most_common(1)
        raise InvalidUse(
            f"expected the returned states to have one row for each key, got several for {_key_text(twice)}. "
            "Return the last state of each key, for example grouped by the key."
        )
    return places


def _key_column(name: str, column: Any, kind: Any) -> Any:
    try:
        column = cast_column(column, kind)
    except InvalidUse as error:
        raise InvalidUse(f"expected the key column {name!r} of the returned states as it was given: {error}") from error
    if column.null_count:
        raise InvalidUse(
            f"expected keys in the column {name!r} of the returned states, got null. Copy the keys of the states that "
            "the function was given, and leave out rows without a key."
        )
    return column


def _tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*map(column_to_list, table.columns), strict=True))


def _key_text(key: tuple[Any, ...]) -> str:
    return f"the key {short_repr(key[0] if len(key) == 1 else key)}"
