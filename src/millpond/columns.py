"""Arrow columns as Python objects, about as fast as Python can make them; what is rare is left to Arrow."""

from __future__ import annotations

from datetime import UTC, datetime
from datetime import timezone as fixed_zone
from typing import Any

import numpy as np
import pyarrow as pa

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST, LAST = -62_135_596_800_000_000, 253_402_300_799_999_999  # the microseconds that a datetime can tell
DAY = 86_400_000_000


def column_to_list(column: pa.ChunkedArray) -> list[Any]:
    """A column's values, the same as its `to_pylist` has."""
    kind = column.type
    values: list[Any] | None = None
    if len(column) == 0:
        values = []
    elif pa.types.is_dictionary(kind):
        values = column_to_list(pa.chunked_array([c.dictionary_decode() for c in column.chunks], kind.value_type))
    elif column.null_count == 0 and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        values = column.to_numpy().tolist()
    elif pa.types.is_timestamp(kind) and kind.unit != "ns":
        values = _moments(column, kind)
    elif pa.types.is_date32(kind):
        values = _dates(column)
    return column.to_pylist() if values is None else values


def _moments(column: pa.ChunkedArray, kind: Any) -> list[Any] | None:
    ticks = _numbers(column, {"s": 1_000_000, "ms": 1000, "us": 1}[kind.unit])
    if ticks is None:
        return None
    if kind.tz is None:
        return _where(column, ticks.view("datetime64[us]").tolist())
    zone = pa.lib.string_to_tzinfo(kind.tz)
    spans = ticks.view("timedelta64[us]").tolist()
    try:
        if isinstance(zone, fixed_zone) or kind.tz == "UTC":  # where the clock is never put forward or back
            return _where(column, list(map(EPOCH.astimezone(zone).__add__, spans)))
        return _where(column, [moment.astimezone(zone) for moment in map(EPOCH.__add__, spans)])
    except OverflowError:  # at the very ends of time, where a zone makes a difference
        return None


def _dates(column: pa.ChunkedArray) -> list[Any] | None:
    days = _numbers(column.cast(pa.int32()), DAY)
    return None if days is None else _where(column, (days // DAY).astype("datetime64[D]").tolist())


def _numbers(column: pa.ChunkedArray, factor: int) -> np.ndarray[Any, Any] | None:
    """Microseconds, of so many each; nothing if one of them is no time that Python knows."""
    numbers = column.cast(pa.int64()).fill_null(0).to_numpy()
    if FIRST // factor <= numbers.min() and numbers.max() <= LAST // factor:
        return numbers * factor  # type: ignore[no-any-return]
    return None


def _where(column: pa.ChunkedArray, values: list[Any]) -> list[Any]:
    """The values that are there."""
    if column.null_count == 0:
        return values
    return [value if there else None for value, there in zip(values, column.is_valid().to_pylist(), strict=True)]
