"""Converts Arrow columns to Python objects, about as fast as Python can; rare types are left to Arrow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timezone as fixed_zone
from datetime import tzinfo
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.timing import EPOCH

FIRST, LAST = -62_135_596_800_000_000, 253_402_300_799_999_999  # the microseconds that a datetime can express
DAY = 86_400_000_000


def column_to_list(column: pa.ChunkedArray) -> list[Any]:
    """Return the same values as `column.to_pylist()`, faster."""
    kind = column.type
    values: list[Any] | None = None
    if len(column) == 0:
        values = []
    elif pa.types.is_dictionary(kind):
        values = column_to_list(decode_dictionary(column))
    elif column.null_count == 0 and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        values = column.to_numpy().tolist()
    elif pa.types.is_timestamp(kind):
        values = _to_datetimes(column, kind)
    elif pa.types.is_date32(kind):
        values = _to_dates(column)
    return column.to_pylist() if values is None else values


def decode_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the column with its values in the place of indices into a dictionary, if it has one."""
    if not pa.types.is_dictionary(column.type):
        return column
    return pa.chunked_array([chunk.dictionary_decode() for chunk in column.chunks], column.type.value_type)


_makers: dict[tuple[str, ...], Callable[[Sequence[Sequence[Any]]], list[dict[str, Any]]]] = {}


def make_dicts(names: Sequence[str], columns: Sequence[pa.ChunkedArray | list[Any]]) -> list[dict[str, Any]]:
    """Return a dict with these names for each row of the columns, about as fast as Python can."""
    key = tuple(names)
    make = _makers.get(key)
    if make is None:
        # One comprehension with the names in it, compiled once per schema: half the time of dict(zip()).
        variables = [f"v{i}" for i in range(len(names))]
        items = ", ".join(f"{name!r}: {v}" for name, v in zip(names, variables, strict=True))
        code = f"lambda columns: [{{{items}}} for {', '.join(variables)}, in zip(*columns)]"
        make = _makers[key] = eval(code)
    return make([column if isinstance(column, list) else column_to_list(column) for column in columns])


def unreadable_rows(table: pa.Table) -> dict[int, str]:
    """Return the rows that cannot become Python objects, and why. Rows are tried one by one only if there are any."""
    found: dict[int, str] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if all(map(is_readable, column.chunks)):
            continue
        for i in range(len(column)):
            try:
                column_to_list(column.slice(i, 1))
            except (ValueError, OverflowError) as error:
                found.setdefault(
                    i, f"column {name!r}: expected {_expected_type(column.type)}, got {_raw_text(column[i])}: {error}"
                )
    return found


def raw_row(table: pa.Table, i: int) -> dict[str, Any]:
    """Return a row with text in the place of values that cannot become Python objects."""
    found = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            found[name] = column_to_list(column.slice(i, 1))[0]
        except (ValueError, OverflowError):
            found[name] = _raw_text(column[i])
    return found


def is_readable(array: pa.Array) -> bool:
    """Return whether all values can surely become Python objects; if not, each must be tried."""
    kind = array.type
    if pa.types.is_nested(kind):
        if pa.types.is_map(kind):
            return is_readable(array.keys) and is_readable(array.items)
        if pa.types.is_union(kind):
            return False
        inside = array.flatten()  # the values of a list, or the columns of a struct
        return all(map(is_readable, inside)) if isinstance(inside, list) else is_readable(inside)
    if pa.types.is_dictionary(kind):
        return is_readable(array.dictionary)
    if pa.types.is_timestamp(kind):
        return _are_whole(array) and _is_within(array.cast(pa.int64()), _MICROSECONDS[kind.unit])
    if pa.types.is_date32(kind):
        return _is_within(array.cast(pa.int32()), DAY)
    if pa.types.is_date64(kind):
        return _is_within(array.cast(pa.int64()), 1000)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            return False
    return True


def _are_whole(times: pa.Array | pa.ChunkedArray) -> bool:
    """Return whether times are whole microseconds, as those of a datetime are."""
    return times.type.unit != "ns" or not (times.cast(pa.int64()).fill_null(0).to_numpy() % 1000).any()


def _is_within(numbers: pa.Array, factor: float) -> bool:
    """Return whether times, in units of `factor` microseconds, are within the years 1 to 9999 in any time zone."""
    ends = pc.min_max(numbers)
    lowest, highest = ends["min"].as_py(), ends["max"].as_py()
    return lowest is None or ((FIRST + DAY) / factor < lowest and highest < (LAST - DAY) / factor)


def _expected_type(kind: pa.DataType) -> str:
    return "UTF-8 text" if "string" in str(kind) else "a time between the years 1 and 9999, in whole microseconds"


def _raw_text(value: pa.Scalar) -> str:
    if isinstance(value, (pa.StringScalar, pa.LargeStringScalar, pa.StringViewScalar)):
        raw: bytes = value.as_buffer().to_pybytes()
        return raw.decode("utf-8", "backslashreplace")
    inside = getattr(value, "value", None)
    if isinstance(inside, int):
        return str(inside)
    if isinstance(value, pa.DictionaryScalar):
        return _raw_text(inside)
    return f"one that cannot be shown, of type {value.type}"


_MICROSECONDS = {"s": 1_000_000, "ms": 1000, "us": 1, "ns": 0.001}


def _to_datetimes(column: pa.ChunkedArray, kind: Any) -> list[Any] | None:
    if kind.unit == "ns":
        if not _are_whole(column):
            raise ValueError("nanoseconds that are no whole microseconds")
        return column_to_list(column.cast(pa.timestamp("us", kind.tz)))
    ticks = _to_microseconds(column, int(_MICROSECONDS[kind.unit]))
    if ticks is None:
        return None
    if kind.tz is None:
        return _with_nulls(column, ticks.view("datetime64[us]").tolist())
    zone = zone_of_name(kind.tz)
    spans = ticks.view("timedelta64[us]").tolist()
    try:
        if isinstance(zone, fixed_zone) or kind.tz == "UTC":  # zones whose offset never changes
            return _with_nulls(column, list(map(EPOCH.astimezone(zone).__add__, spans)))
        return _with_nulls(column, [moment.astimezone(zone) for moment in map(EPOCH.__add__, spans)])
    except OverflowError:  # within a day of the years 1 or 9999
        return None


def zone_of_name(name: str) -> tzinfo:
    """Return the time zone that Arrow gives the Python objects of a column with this zone."""
    zone: tzinfo = pa.lib.string_to_tzinfo(name)
    return zone


def to_datetimes_of(zone: tzinfo, column: pa.ChunkedArray) -> list[Any]:
    """Return a column of microseconds in UTC as datetimes with `zone`, which is one of the objects for UTC."""
    spans = column.cast(pa.int64()).fill_null(0).to_numpy().view("timedelta64[us]").tolist()
    return _with_nulls(column, list(map(EPOCH.replace(tzinfo=zone).__add__, spans)))


def _to_dates(column: pa.ChunkedArray) -> list[Any] | None:
    days = _to_microseconds(column.cast(pa.int32()), DAY)
    return None if days is None else _with_nulls(column, (days // DAY).astype("datetime64[D]").tolist())


def _to_microseconds(column: pa.ChunkedArray, factor: int) -> np.ndarray[Any, Any] | None:
    """Return a column of times in units of `factor` microseconds as microseconds; None if one is out of range."""
    whole = column.cast(pa.int64())
    numbers: np.ndarray[Any, Any] = (whole.fill_null(0) if whole.null_count else whole).to_numpy()
    if FIRST // factor <= numbers.min() and numbers.max() <= LAST // factor:
        return numbers if factor == 1 else numbers * factor
    return None


def _with_nulls(column: pa.ChunkedArray, values: list[Any]) -> list[Any]:
    """Return the values, with None where the column has nulls."""
    if column.null_count == 0:
        return values
    return [value if there else None for value, there in zip(values, column.is_valid().to_pylist(), strict=True)]
