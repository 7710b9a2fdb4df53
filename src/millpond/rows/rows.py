"""Rows between two operators: in the form that the source gave them, with their order, times and keys.

Rows keep their form until a Python function needs objects: Arrow columns from a typed source, text from JSON lines.
Each row has an `order` (the place of the input row that caused it), an event time if its stream has one, and a key
after `key_by`. Keys are held once each, as bytes, with an index per row. `Outputs` and `KeyedRowBuilder` build rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.codec import Codec, copy_value, decode_keys
from millpond.errors import InvalidUse
from millpond.rows.arrow_objects import make_dicts
from millpond.timing import Time, Unit, as_user

ENDING = 1 << 62  # the order of outputs that the end of a batch caused: they come after those of its rows

SLICE_ROWS = 2000  # rows whose objects fit into a processor's cache, about


class BadInput(Exception):
    """A row that cannot be used as it is. The message says what is wrong with it; no user function raised it.

    `where` says where the row came from ("orders/a.jsonl, line 17"), or is None if that is not known here.
    """

    def __init__(self, message: str, where: str | None = None) -> None:
        super().__init__(message)
        self.where = where


Numbers = Sequence[int] | np.ndarray[Any, Any]  # whole numbers, one per row
Form = Literal["objects", "json", "arrow", "columns"]  # "arrow": a table, of any types; "columns": `Columns`, of dicts

_json = msgspec.json.Decoder()
_row_codec = Codec()


class Keys:
    """The keys of some rows: each distinct key once, encoded and as the user's value, and an index per row."""

    __slots__ = ("_index", "_objects", "array", "encoded", "field")

    def __init__(
        self, encoded: list[bytes], index: Numbers, objects: list[Any] | None = None, field: str | None = None
    ) -> None:
        self.encoded, self._objects = encoded, objects
        self.field = field  # the text column that the keys came from, if the rows are columns
        self.array = np.asarray(index, dtype=np.int64)  # per row, the place of its key in `encoded`
        self._index: list[int] | None = None

    @property
    def index(self) -> list[int]:
        """`array` as a list: Python loops over lists are faster."""
        if self._index is None:
            self._index = self.array.tolist()
        return self._index

    @property
    def objects(self) -> list[Any]:
        """The distinct keys as the user's values, decoded on the first call."""
        if self._objects is None:
            self._objects = decode_keys(self.encoded)
        return self._objects

    def of(self, row: int) -> Any:
        """Return the key of the row at this place, as the user's value."""
        return self.objects[self.array[row]]

    def in_order(self) -> Keys:
        """Return the same keys, the distinct ones sorted by their bytes: a store reads them so in half the time."""
        order = pc.sort_indices(pa.array(self.encoded, pa.binary())).to_numpy()  # faster than Python's sort
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        places = order.tolist()
        objects = None if self._objects is None else list(map(self._objects.__getitem__, places))
        return Keys(list(map(self.encoded.__getitem__, places)), place[self.array], objects, self.field)

    def part(self, start: int, end: int) -> Keys:
        return Keys(self.encoded, self.array[start:end], self._objects, self.field)

    def pick(self, rows: Numbers) -> Keys:
        return Keys(self.encoded, self.array[np.asarray(rows, dtype=np.int64)], self._objects, self.field)


class Times:
    """The event times of some rows, as ticks of one unit."""

    __slots__ = ("unit", "values")

    def __init__(self, values: Any, unit: Unit) -> None:
        self.values: np.ndarray[Any, Any] = np.asarray(values, dtype=np.int64)
        self.unit: Unit = unit

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, row: int) -> Time:
        return as_user(int(self.values[row]), self.unit)

    def pick(self, rows: Sequence[int] | np.ndarray[Any, Any]) -> Times:
        """Return the times of the rows at these places."""
        return Times(self.values[np.asarray(rows, dtype=np.int64)], self.unit)


@dataclass(slots=True, eq=False, repr=False)
class Rows:
    """Some rows in order, in one form, with their orders, event times and keys."""

    data: Any
    order: Numbers
    _: KW_ONLY
    form: Form = "objects"
    times: Times | None = None
    keys: Keys | None = None

    def __len__(self) -> int:
        return len(self.order)

    def objects(self) -> list[Any]:
        """Return the rows as Python objects. Rows that are objects already are returned, not copied."""
        if self.form == "arrow":
            try:
                return table_to_dicts(self.data, self.keys)
            except (ValueError, OverflowError) as error:  # unreadable rows were found when the chunk was read
                raise InvalidUse(f"a row cannot be made into Python objects: {error}") from error
        if self.form == "json":
            return _json.decode_lines(b"\n".join(self.data))
        if self.form == "columns":
            return self.data.objects(_row_codec)  # type: ignore[no-any-return]
        objects: list[Any] = self.data
        return objects

    def keyed_objects(self) -> tuple[list[Any], list[int]]:
        """Return the rows as Python objects and, for each of them, the place of its key."""
        assert self.keys is not None
        return self.objects(), self.keys.index

    def as_objects(self) -> Rows:
        """Return the same rows in the form "objects"."""
        return self if self.form == "objects" else self.with_data(self.objects())

    def with_data(self, data: list[Any]) -> Rows:
        """Return rows with this data and the same orders, times and keys."""
        return Rows(data, self.order, times=self.times, keys=self.keys)

    def copy(self) -> Rows:
        """Return the same rows for another consumer, which may change its objects."""
        if self.form != "objects":
            return self
        return self.with_data([copy_value(row) for row in self.data])

    def parts(self, size: int = SLICE_ROWS) -> Iterator[Rows]:
        """Yield the rows in slices, small enough that their objects stay in the processor's cache."""
        if len(self) <= size:
            yield self
            return
        keys = self.keys
        for start in range(0, len(self), size):
            end = start + size
            yield Rows(
                self.data[start:end],
                self.order[start:end],
                form=self.form,
                times=None if self.times is None else Times(self.times.values[start:end], self.times.unit),
                keys=None if keys is None else keys.part(start, end),
            )

    def pick(self, rows: Sequence[int]) -> Rows:
        """Return the rows at these places, in this order; a place may occur more than once."""
        data: Any = self.data
        is_column = self.form in ("arrow", "columns")
        data = data.take(pa.array(rows, pa.int64())) if is_column else [data[i] for i in rows]
        return Rows(
            data,
            np.asarray(self.order, dtype=np.int64)[np.asarray(rows, dtype=np.int64)],
            form=self.form,
            times=None if self.times is None else self.times.pick(rows),
            keys=None if self.keys is None else self.keys.pick(rows),
        )


class Outputs:
    """Collects the outputs of some rows. Each output takes order, key and time of the row that caused it."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._data: list[Any] = []
        self._from: list[int] = []

    def add(self, row: int, output: Any) -> None:
        self._data.append(output)
        self._from.append(row)

    def add_all(self, row: int, outputs: Iterable[Any]) -> None:
        for output in outputs:
            self.add(row, output)

    def rows(self) -> Rows:
        rows, came = self._rows, self._from
        assert rows.keys is not None
        return Rows(
            self._data,
            np.asarray(rows.order, dtype=np.int64)[np.asarray(came, dtype=np.int64)],
            times=None if rows.times is None else rows.times.pick(came),
            keys=rows.keys.pick(came),
        )


class KeyedRowBuilder:
    """Collects outputs that no single row caused, such as panes and the outputs of timers, into keyed rows."""

    def __init__(self, unit: Unit | None) -> None:
        self._unit = unit
        self._data: list[Any] = []
        self._order: list[int] = []
        self._times: list[int] = []
        self._index: list[int] = []
        self._keys: dict[bytes, int] = {}
        self._objects: list[Any] = []

    def add(self, key: bytes, known_as: Any, output: Any, time: int | None, order: int = ENDING) -> None:
        """Add an output of a key, which is given as bytes and as the user knows it, at a time.

        Without an `order` the output comes after those of all rows of the batch.
        """
        place = self._keys.setdefault(key, len(self._keys))
        if place == len(self._objects):
            self._objects.append(known_as)
        self._index.append(place)
        self._data.append(output)
        self._order.append(order)
        if time is not None:
            self._times.append(time)

    def rows(self) -> Rows:
        timed = self._unit is not None and len(self._times) == len(self._data)
        return Rows(
            self._data,
            self._order,
            times=Times(self._times, self._unit) if timed and self._unit is not None else None,
            keys=Keys(list(self._keys), self._index, self._objects),
        )


def table_to_dicts(table: pa.Table, keys: Keys | None = None) -> list[dict[str, Any]]:
    """Return a table's rows as dicts, about as fast as Python can. The column of `keys` is not decoded again."""
    names = table.column_names
    if not names:
        return [{} for _ in range(len(table))]
    columns = [
        list(map(keys.objects.__getitem__, keys.index)) if keys is not None and name == keys.field else column
        for name, column in zip(names, table.columns, strict=True)
    ]
    return make_dicts(names, columns)


def key_fields(names: tuple[str, ...], key: Any) -> dict[str, Any]:
    """Return a key as the fields of an output row."""
    return dict(zip(names, key, strict=True)) if len(names) > 1 else {names[0]: key}
