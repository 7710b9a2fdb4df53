"""Rows as an Arrow table, one type per column; no value is converted silently."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import chain
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import InvalidUse


@dataclasses.dataclass(frozen=True)
class TableUse:
    """What a table is made for, in the words of error messages."""

    whole: str  # that needs the table
    column: str
    otherwise: str  # what to do with rows that do not fit
    is_exact: bool = False  # values must come back equal and of the same type
    takes_foreign: bool = False  # even so, values of NumPy and pandas may come back as those of Python


PARQUET = TableUse("a Parquet file", "a Parquet column", "use format='jsonl'")

_NUMBERS = {"int", "float"}
_NESTED_TYPES = (dict, list, tuple, set, frozenset)
_CHANGED_TYPES = (uuid.UUID, tuple, set, frozenset, bytearray, Enum)  # and records
_EXACT_TYPES = frozenset({type(None), bool, int, float, str, bytes, date, datetime, time, timedelta, Decimal})


def rows_to_table(rows: list[Any], use: TableUse = PARQUET) -> pa.Table:
    """Return a table with a column per field, in the order of first appearance; a field that a row lacks is null.

    Rows are dicts, dataclasses or Structs. UUIDs become strings, sets and tuples lists, and records in a field dicts;
    an exact use refuses these, and all other values that would change. Integers and floats may share a column; any
    other mixture raises InvalidUse, because Arrow would silently truncate a datetime to its date, or take bytes for
    text.

    >>> rows_to_table([{"a": 1}, {"a": 2.5, "b": "x"}]).to_pylist()
    [{'a': 1.0, 'b': None}, {'a': 2.5, 'b': 'x'}]
    """
    records = [_record(row, use) for row in rows]
    names = list(dict.fromkeys(name for record in records for name in record))
    if not names:
        raise InvalidUse(f"{use.whole} needs rows with fields, got rows without any. {_sentence(use.otherwise)}")
    for name in names:
        if not isinstance(name, str):
            raise InvalidUse(f"{use.column} needs a string as its name, got {name!r}. {_sentence(use.otherwise)}")
    return pa.table({name: strict_column(name, [record.get(name) for record in records], use) for name in names})


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _record(row: Any, use: TableUse) -> Mapping[Any, Any]:
    if isinstance(row, Mapping):
        return row
    if isinstance(row, msgspec.Struct):
        return msgspec.structs.asdict(row)
    if dataclasses.is_dataclass(row) and not isinstance(row, type):
        return {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
    raise InvalidUse(
        f"{use.whole} needs rows with fields (dicts, dataclasses or Structs), got {type(row).__name__}: "
        f"{repr(row)[:200]}. Map the rows to dicts, or {use.otherwise}."
    )


def strict_column(name: str, values: list[Any], use: TableUse) -> Any:
    """Return an Arrow array of values that all have one type; InvalidUse names the field if they do not."""
    types = set(map(type, values))
    if use.is_exact and (time in types or not types <= _EXACT_TYPES):
        _refuse_inexact(name, values, use)
    if types & {datetime, uuid.UUID} or not types.isdisjoint(_NESTED_TYPES) or any(map(_is_record, types)):
        values = [_to_plain(value, use) for value in values]
    kinds: dict[str, str] = {}
    if len(types - {type(None)}) > 1 or types & {datetime, time} or not types.isdisjoint(_NESTED_TYPES):
        for value in values:
            _check_one_type(name, value, kinds, use)
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, UnicodeError, TypeError, ValueError) as error:
        raise InvalidUse(
            f"field {name!r} cannot be {use.column}: {error}. Convert it with map(), or {use.otherwise}."
        ) from None


def _refuse_inexact(path: str, values: list[Any], use: TableUse) -> None:
    """Raise InvalidUse if Arrow would give one of these values back as another one, or as one of another type."""
    types = set(map(type, values))
    if time in types and any(type(value) is time and value.tzinfo is not None for value in values):
        raise _inexact(path, "a time of day with a time zone would come back without it", use)
    if types <= _EXACT_TYPES:
        return
    for name in sorted(cls.__name__ for cls in types if _is_changed(cls, use)):
        raise _inexact(path, f"a value of type {name} would come back as another type", use)
    dicts = [value for value in values if isinstance(value, Mapping)]
    for record in dicts:
        if record.keys() != dicts[0].keys():
            lacking = min(map(str, record.keys() ^ dicts[0].keys()))
            raise _inexact(path, f"some of its dicts lack {lacking!r}, which would come back as None", use)
    for name in dicts[0] if dicts else ():
        _refuse_inexact(f"{path}.{name}", [record[name] for record in dicts], use)
    lists = [value for value in values if isinstance(value, list)]
    if lists:
        _refuse_inexact(f"{path}[]", list(chain.from_iterable(lists)), use)


def _inexact(path: str, why: str, use: TableUse) -> InvalidUse:
    return InvalidUse(f"field {path!r} cannot be {use.column}: {why}. Convert it with map(), or {use.otherwise}.")


def _is_changed(cls: type, use: TableUse) -> bool:
    """Return whether Arrow gives values of a class back as those of another one, and the use does not take that."""
    if cls in _EXACT_TYPES or cls in (dict, list):
        return False
    return not use.takes_foreign or issubclass(cls, _CHANGED_TYPES) or _is_record(cls)


def _is_record(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct)


def _to_plain(value: Any, use: TableUse) -> Any:
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _to_plain(inner, use) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_to_plain(inner, use) for inner in value]
    if _is_record(type(value)):
        return {key: _to_plain(inner, use) for key, inner in _record(value, use).items()}
    return value


def _check_one_type(path: str, value: Any, kinds: dict[str, str], use: TableUse) -> None:
    """Raise InvalidUse if an earlier value at this path has another type, or if Arrow would drop a time's zone."""
    if value is None:
        return
    if isinstance(value, time) and value.tzinfo is not None:
        raise InvalidUse(
            f"field {path!r} cannot be {use.column}: a time of day with a time zone, {value!r}, would lose its zone. "
            f"Convert it with map(), or {use.otherwise}."
        )
    kind = type(value).__name__
    if isinstance(value, datetime):
        kind = "naive datetime" if value.tzinfo is None else "aware datetime"
    known = kinds.setdefault(path, kind)
    if known != kind and {known, kind} != _NUMBERS:
        raise InvalidUse(
            f"field {path!r}: expected one type in {use.column}, got {known} and {kind}. "
            f"Convert one of them with map(), or {use.otherwise}."
        )
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_one_type(f"{path}.{key}", inner, kinds, use)
    elif isinstance(value, list):
        for inner in value:
            _check_one_type(f"{path}[]", inner, kinds, use)


_SAMPLE_ROWS = 10_000


def repeating_columns(table: pa.Table) -> list[str]:
    """Return the columns whose values repeat within the first rows: in a Parquet file they get a dictionary.

    A dictionary of values that hardly repeat takes three times as long to write as none, and makes the file larger.

    >>> repeating_columns(pa.table({"shop": ["a"] * 9, "id": range(9)}))
    ['shop']
    """
    sample = table.slice(0, _SAMPLE_ROWS)
    return [name for name in table.column_names if 2 * _count_distinct(sample.column(name)) <= len(sample)]


def _count_distinct(column: Any) -> int:
    try:
        return int(pc.count_distinct(column).as_py())
    except pa.ArrowNotImplementedError:  # a nested column, or a type that Arrow cannot hash
        return len(column)
