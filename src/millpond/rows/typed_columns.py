"""Uniform rows as typed columns, and back: the rows come back equal, of the same types, with their fields in order.

Rows are uniform if all are dicts, or all of one dataclass or Struct, with the same fields in the same order, and each
field has values of one kind (`KINDS`), or None. `columns_of_rows` returns None for all other rows: those are stored as
text. Whole columns are checked by loops in C.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, tzinfo
from itertools import chain
from operator import attrgetter, countOf, itemgetter
from types import NoneType
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from millpond.codec import Codec
from millpond.codec.tags import find_zone
from millpond.codec.user_types import DataclassRecord, StructRecord, record_type_of, remember_type
from millpond.rows.arrow_objects import (
    decode_dictionary,
    is_readable,
    make_dicts,
    to_datetimes_of,
    zone_of_name,
)
from millpond.rows.rows import Rows

KINDS: dict[str, pa.DataType] = {
    "none": pa.null(),
    "str": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "datetime": pa.timestamp("us"),  # without a time zone
    "datetime UTC": pa.timestamp("us", "UTC"),  # with the zone `datetime.UTC`
    "datetime ZoneInfo": pa.timestamp("us", "UTC"),  # with the zone `ZoneInfo("UTC")`, as Arrow returns times
}
"""What the values of a field are, and the type of their column. The words are part of the file format."""

_KIND_OF_TYPE: dict[type, str] = {cls: cls.__name__ for cls in (str, int, float, bool, bytes, date)}
_ZONES: dict[str, tzinfo] = {"datetime UTC": UTC, "datetime ZoneInfo": find_zone("UTC") or UTC}
_MISFITS = (pa.ArrowException, OverflowError, UnicodeError)  # what Arrow raises for a value that no column can hold


class RowLayout(msgspec.Struct, frozen=True, omit_defaults=True):
    """What uniform rows have in common. It is stored with them, as JSON."""

    fields: tuple[tuple[str, str], ...]  # name and kind, in the order of the row's fields
    type: str | None = None  # the stored name of their class; None for dicts

    def merge(self, other: RowLayout) -> RowLayout | None:
        """Return the layout of rows of both, or None if they do not fit. A field that is always None fits any kind.

        >>> RowLayout((("n", "int"), ("at", "none"))).merge(RowLayout((("n", "int"), ("at", "date")))).fields
        (('n', 'int'), ('at', 'date'))
        """
        if self == other:
            return self
        if self.type != other.type or [name for name, _ in self.fields] != [name for name, _ in other.fields]:
            return None
        fields = []
        for (name, one), (_, more) in zip(self.fields, other.fields, strict=True):
            if one != more and "none" not in (one, more):
                return None
            fields.append((name, one if more == "none" else more))
        return RowLayout(tuple(fields), self.type)

    @property
    def schema(self) -> pa.Schema:
        """The schema of a table of such rows."""
        return pa.schema([pa.field(name, KINDS[kind]) for name, kind in self.fields])


@dataclass(frozen=True)
class Columns:
    """Uniform rows as a table, whose columns have the types of their layout."""

    layout: RowLayout
    table: pa.Table

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, part: slice) -> Columns:
        return Columns(self.layout, self.table[part])

    def take(self, rows: pa.Array) -> Columns:
        """Return the rows at these places."""
        return Columns(self.layout, self.table.take(rows))

    def with_layout(self, layout: RowLayout) -> Columns:
        """Return the same rows for a layout that theirs was merged into."""
        if layout == self.layout:
            return self
        columns = [
            column if column.type == field.type else pa.nulls(len(column), field.type)
            for column, field in zip(self.table.columns, layout.schema, strict=True)
        ]
        return Columns(layout, pa.Table.from_arrays(columns, schema=layout.schema))

    def objects(self, codec: Codec) -> list[Any]:
        """Return the rows as the objects that they were made of."""
        columns = [
            to_datetimes_of(_ZONES[kind], column) if kind in _ZONES else column
            for (_, kind), column in zip(self.layout.fields, self.table.columns, strict=True)
        ]
        rows = make_dicts(self.table.column_names, columns)
        return rows if self.layout.type is None else codec.build_records(self.layout.type, rows)


def merge_columns(parts: Sequence[Columns]) -> Columns | None:
    """Return the rows of all parts, one after the other; None if their layouts do not fit."""
    layout: RowLayout | None = parts[0].layout
    for part in parts[1:]:
        layout = layout and layout.merge(part.layout)
    if layout is None:
        return None
    return Columns(layout, pa.concat_tables([part.with_layout(layout).table for part in parts]))


def fit_parts(parts: Mapping[int, Columns]) -> dict[int, Columns]:
    """Return the parts that fit the layout of most rows, in one layout. Parts are called by numbers."""
    rows: Counter[RowLayout] = Counter()
    for part in parts.values():
        rows[part.layout] += part.table.num_rows
    (chosen, _), *others = rows.most_common()
    for layout, _ in others:
        chosen = chosen.merge(layout) or chosen
    return {i: part.with_layout(chosen) for i, part in parts.items() if chosen.merge(part.layout) == chosen}


def columns_of_rows(rows: Rows) -> Columns | None:
    """Return rows of any form as columns, or None if they are not uniform."""
    if rows.form == "columns":
        columns: Columns = rows.data
        return columns
    if rows.form == "arrow":
        return columns_of_table(rows.data)
    return columns_of_objects(rows.data if rows.form == "objects" else rows.objects())


# --- of objects ---


def columns_of_objects(rows: Sequence[Any]) -> Columns | None:
    """Return rows that are Python objects as columns, or None if they are not uniform.

    >>> columns_of_objects([{"n": 1, "who": "ann"}, {"n": 2, "who": None}]).layout.fields
    (('n', 'int'), ('who', 'str'))
    >>> columns_of_objects([{"n": 1}, {"n": 2.5}])
    """
    cls = _only_type(rows)
    if cls is None:
        return None
    found = _dict_columns(rows) if cls is dict else _record_columns(cls, rows)
    if found is None:
        return None
    names, values = found
    columns = []
    for column in map(typed_column, values):
        if column is None:
            return None
        columns.append(column)
    return columns_of_arrays(names, columns, None if cls is dict else remember_type(cls))


class TypedColumn(NamedTuple):
    """The values of a field, and what they are."""

    kind: str
    values: pa.Array | pa.ChunkedArray


def typed_column(values: Sequence[Any]) -> TypedColumn | None:
    """Return values of one kind as a column; None if there is no such kind.

    >>> typed_column([1, None]).kind
    'int'
    >>> typed_column([1, True])
    """
    kind = _kind_of(values)
    try:
        array = None if kind is None else pa.array(values, KINDS[kind])
    except _MISFITS:
        return None
    if kind is None or not isinstance(array, pa.Array):  # several arrays: more text than one can hold
        return None
    return TypedColumn(kind, array)


def columns_of_arrays(names: Sequence[str], columns: Sequence[TypedColumn], type: str | None = None) -> Columns | None:
    """Return rows with these fields; None if Arrow does not take a name."""
    layout = RowLayout(tuple((name, column.kind) for name, column in zip(names, columns, strict=True)), type)
    try:
        return Columns(layout, pa.Table.from_arrays([column.values for column in columns], schema=layout.schema))
    except _MISFITS:  # a name with a lone surrogate
        return None


_FieldValues = tuple[tuple[str, ...], list[list[Any]]]  # the names of the fields, and the values of each


def _dict_columns(rows: Sequence[dict[Any, Any]]) -> _FieldValues | None:
    """Return the fields of dicts; None if they have not all the same names in the same order."""
    names = tuple(rows[0])
    every = list(chain.from_iterable(rows))
    # No dict has a name twice, so rows whose names are `names` again and again, as many times, all have just these.
    if not names or every != list(names) * len(rows) or _only_type(every) is not str:
        return None
    return names, [list(map(itemgetter(name), rows)) for name in names]


def _record_columns(cls: type, rows: Sequence[Any]) -> _FieldValues | None:
    """Return the fields of dataclasses or Structs; None if a row has more or less than its fields."""
    record = record_type_of(cls)
    if not isinstance(record, DataclassRecord | StructRecord) or not record.names:
        return None
    columns = record.take_columns(rows)
    return None if columns is None else (record.names, columns)


def _only_type(values: Sequence[Any]) -> type | None:
    """Return the exact type of all values; None if they have several, or if there are none."""
    if not values:
        return None
    cls = type(values[0])
    return cls if countOf(map(type, values), cls) == len(values) else None


def _kind_of(values: Sequence[Any]) -> str | None:
    """Return what the values of a column are; None if they are of several kinds, or of one that has no column."""
    cls = _only_type(values)
    if cls is None:  # the usual reason is that some are None
        types = set(map(type, values)) - {NoneType}
        cls = types.pop() if len(types) == 1 else None
    elif cls is NoneType:
        return "none"
    if cls is datetime:
        return _datetime_kind(list(filter(None, values)))
    return None if cls is None else _KIND_OF_TYPE.get(cls)


def _datetime_kind(times: list[datetime]) -> str | None:
    """The kind of times that all have one zone object, or none, and none of which is the second in a repeated hour."""
    zone = times[0].tzinfo
    if set(map(id, map(attrgetter("tzinfo"), times))) != {id(zone)} or any(map(attrgetter("fold"), times)):
        return None
    return "datetime" if zone is None else _zone_kind(zone)


def _zone_kind(zone: tzinfo) -> str | None:
    return next((kind for kind, known in _ZONES.items() if known is zone), None)


# --- of tables ---


def columns_of_table(table: pa.Table) -> Columns | None:
    """Return rows that are a table as columns, or None if their objects would not be uniform.

    The columns are those that `columns_of_objects` makes of the objects of the rows.
    """
    names = table.column_names
    if not names or len(set(names)) < len(names) or not len(table):
        return None
    columns = []
    for given in table.columns:
        column = decode_dictionary(given)
        kind = _kind_of_type(column)
        if kind is None:
            return None
        try:
            values = pa.nulls(len(column)) if kind == "none" else column.cast(KINDS[kind])
        except _MISFITS:
            return None
        columns.append(TypedColumn(kind, values))
    return columns_of_arrays(names, columns)


def _kind_of_type(column: pa.ChunkedArray) -> str | None:
    """Return what the Python values of a column are; None if there is no such kind."""
    if column.null_count == len(column):
        return "none"
    kind = next((kind for is_kind, kind in _KIND_OF_ARROW_TYPE if is_kind(column.type)), None)
    if kind in ("date", "datetime") and not all(map(is_readable, column.chunks)):
        return None
    if kind == "datetime" and column.type.tz is not None:
        return _zone_kind(zone_of_name(column.type.tz))
    return kind


_KIND_OF_ARROW_TYPE: list[tuple[Callable[[pa.DataType], bool], str]] = [
    (pa.types.is_string, "str"),
    (pa.types.is_large_string, "str"),
    (pa.types.is_string_view, "str"),
    (pa.types.is_integer, "int"),
    (pa.types.is_floating, "float"),
    (pa.types.is_boolean, "bool"),
    (pa.types.is_timestamp, "datetime"),
    (pa.types.is_date, "date"),
    (pa.types.is_binary, "bytes"),
    (pa.types.is_large_binary, "bytes"),
    (pa.types.is_binary_view, "bytes"),
    (pa.types.is_fixed_size_binary, "bytes"),
]
