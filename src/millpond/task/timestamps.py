"""The times of rows as they are read: a whole chunk at once where that can be done, and else one by one."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from millpond.pipeline.epoch import Epoch, MessageTime
from millpond.rows.fields import read_field, read_json_fields
from millpond.rows.rows import BadInput, Rows, Times
from millpond.timing import RANGE, Unit, as_time, ticks, unit_of


class TimeReader:
    """Reads what `timestamp=` says: a field, `mp.epoch_ms(field)`, or a function of the row."""

    def __init__(self, timestamp: Any) -> None:
        self._timestamp = timestamp
        self.is_of_message = isinstance(timestamp, MessageTime)
        self._factor = timestamp.microseconds if isinstance(timestamp, Epoch) else None
        self.field: str | None = timestamp.field if isinstance(timestamp, Epoch) else None
        if isinstance(timestamp, str):
            self.field = timestamp

    def one(self, row: Any, like: Unit | None) -> Times:
        """Return the time of one row, of the unit that those before it had; BadInput if it has none.

        What a function of the user's raises is its own.
        """
        is_own = not isinstance(self._timestamp, (str, Epoch))
        found = self._timestamp(row) if is_own else None
        try:
            if not is_own:
                found = read_field(row, self._timestamp) if isinstance(self._timestamp, str) else self._timestamp(row)
            time = as_time(found)
            unit = unit_of(time)
            if like is not None and unit != like:
                words = {"instant": "a datetime", "number": "a whole number"}
                raise ValueError(f"expected {words[like]}, as in the rows before, got {words[unit]}, {found!r}")
            return Times([ticks(time)], unit)
        except (BadInput, ValueError, OverflowError) as error:
            raise BadInput(f"timestamp: {error}") from error

    def all(self, rows: Rows) -> Times | None:
        """Return the times of all rows at once, or None if they have to be read one by one."""
        if self.field is None or len(rows) == 0:
            return None
        try:
            if rows.form == "arrow":
                return self._of_column(rows.data.column(self.field))
            if rows.form == "json":
                return self._of_values(read_json_fields(rows.data, [self.field]))
            name = self.field
            return self._of_values([row[name] for row in rows.data])
        except Exception:
            return None

    def _of_column(self, column: pa.ChunkedArray) -> Times | None:
        kind = column.type
        if column.null_count:
            return None
        if pa.types.is_timestamp(kind):
            if kind.tz is None or self._factor is not None:
                return None
            return Times(column.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64()).to_numpy(), "instant")
        if pa.types.is_integer(kind):
            return self._of_numbers(column.cast(pa.int64()).to_numpy())
        return self._of_values(column.to_pylist())

    def _of_values(self, values: list[Any]) -> Times | None:
        kinds = set(map(type, values))
        if kinds == {int}:
            return self._of_numbers(np.array(values, dtype=np.int64))
        if self._factor is not None:
            return None
        if kinds == {str}:
            values = list(map(datetime.fromisoformat, values))
        elif kinds != {datetime}:
            return None
        if any(value.tzinfo is None for value in values):
            return None
        return Times([ticks(value) for value in values], "instant")

    def _of_numbers(self, values: np.ndarray[Any, Any]) -> Times | None:
        factor = self._factor or 1
        if len(values) and int(np.abs(values).max()) * factor >= RANGE:
            return None
        return Times(values * factor, "number" if self._factor is None else "instant")
