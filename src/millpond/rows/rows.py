"""Rows on their way: a list of them in the shape they came in, with what travels along.

Rows keep their shape until a Python function needs objects: Arrow columns from a typed source, text from
JSON lines. Beside each row travel its `order` (the place of the input row that caused it), its event
time, and, after `key_by`, its key. Keys are held once each, as bytes, with an index per row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa

from millpond.codec import Codec, copy_value, decode_keys
from millpond.errors import InvalidUse
from millpond.rows.arrow_objects import column_to_list
from millpond.sources.base import JsonLines
from millpond.timing import Times

ENDING = 1 << 62  # the order of what no row caused, but the end of a batch: it comes after all of its rows

MOST_JOINED = 200_000  # rows that go through the steps at once, where they come in smaller pieces
PART = 2000  # rows whose objects fit into a processor's own memory, about


class BadInput(Exception):
    """A row, or what should be one, that cannot be used as it is; the message says what is wrong with it.

    No function of the user's raised it. `where` says where the row came from, if whoever raises it knows.
    """

    def __init__(self, message: str, where: str | None = None) -> None:
        super().__init__(message)
        self.where = where


class MissingField(BadInput, LookupError):
    """A row lacks a field that the program names."""


Numbers = Sequence[int] | np.ndarray[Any, Any]  # whole numbers, one per row
Form = Literal["objects", "json", "arrow", "coded"]  # "coded": a column of what the codec made of them

_json = msgspec.json.Decoder()
_codec = Codec()


class Keys:
    """The keys of some rows: each distinct one once, encoded and as the user knows it, and an index per row."""

    __slots__ = ("_index", "_objects", "array", "encoded", "field")

    def __init__(
        self, encoded: list[bytes], index: Numbers, objects: list[Any] | None = None, field: str | None = None
    ) -> None:
        self.encoded, self._objects = encoded, objects
        self.field = field  # the column of text that holds them, where rows are columns and one does
        self.array = np.asarray(index, dtype=np.int64)  # per row, which of the keys is its own
        self._index: list[int] | None = None

    @property
    def index(self) -> list[int]:
        """The same as a list, which a loop is faster over."""
        if self._index is None:
            self._index = self.array.tolist()
        return self._index

    @property
    def objects(self) -> list[Any]:
        if self._objects is None:
            self._objects = decode_keys(self.encoded)
        return self._objects

    def of(self, row: int) -> Any:
        return self.objects[self.array[row]]

    def part(self, start: int, end: int) -> Keys:
        return Keys(self.encoded, self.array[start:end], self._objects, self.field)

    def pick(self, rows: Numbers) -> Keys:
        return Keys(self.encoded, self.array[np.asarray(rows, dtype=np.int64)], self._objects, self.field)


class Rows:
    """Some rows, in order."""

    __slots__ = ("data", "form", "keys", "order", "times")

    def __init__(
        self,
        data: Any,
        order: Numbers,
        *,
        form: Form = "objects",
        times: Times | None = None,
        keys: Keys | None = None,
    ) -> None:
        self.data, self.order, self.form, self.times, self.keys = data, order, form, times, keys

    def __len__(self) -> int:
        return len(self.order)

    def objects(self) -> list[Any]:
        """The rows as Python objects; they belong to the caller where the rows are not objects yet."""
        if self.form == "arrow":
            try:
                return table_to_dicts(self.data, self.keys)
            except (ValueError, OverflowError) as error:  # what can be known of rows was looked for when they were read
                raise InvalidUse(f"a row cannot be made into Python objects: {error}") from error
        if self.form == "json":
            return _json.decode_lines(b"\n".join(self.data))
        if self.form == "coded":
            return _codec.decode_many([text.encode() for text in self.data.to_pylist()])
        objects: list[Any] = self.data
        return objects

    def as_objects(self) -> Rows:
        return self if self.form == "objects" else self.with_data(self.objects())

    def with_data(self, data: list[Any]) -> Rows:
        """The same rows, changed: what travels along stays."""
        return Rows(data, self.order, times=self.times, keys=self.keys)

    def copied(self) -> Rows:
        """The same rows for another reader that may change its own."""
        if self.form != "objects":
            return self
        return self.with_data([copy_value(row) for row in self.data])

    def parts(self, size: int = PART) -> Iterator[Rows]:
        """The same rows, some at a time, so that the objects made of them are used while they are near."""
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
        """The rows at these places, in this order; a place may come more than once."""
        data: Any = self.data
        is_column = self.form in ("arrow", "coded")
        data = data.take(pa.array(rows, pa.int64())) if is_column else [data[i] for i in rows]
        return Rows(
            data,
            np.asarray(self.order, dtype=np.int64)[np.asarray(rows, dtype=np.int64)],
            form=self.form,
            times=None if self.times is None else self.times.pick(rows),
            keys=None if self.keys is None else self.keys.pick(rows),
        )


def shaped(rows: pa.Table | JsonLines | list[Any], first: int) -> Rows:
    """Rows as a source gave them, the first of them at place `first`."""
    if isinstance(rows, JsonLines):
        return Rows(rows.lines, np.arange(first, first + len(rows.lines)), form="json")
    order = np.arange(first, first + len(rows))
    return Rows(rows, order, form="arrow" if isinstance(rows, pa.Table) else "objects")


_makers: dict[tuple[str, ...], Any] = {}


def table_to_dicts(table: pa.Table, keys: Keys | None = None) -> list[dict[str, Any]]:
    """A table's rows as dicts, about as fast as Python can make them. A text that is a key is there already."""
    names = tuple(table.column_names)
    if not names:
        return [{} for _ in range(len(table))]
    make = _makers.get(names)
    if make is None:
        # One comprehension with the names in it, compiled once per schema: half the time of dict(zip()).
        variables = [f"v{i}" for i in range(len(names))]
        items = ", ".join(f"{name!r}: {v}" for name, v in zip(names, variables, strict=True))
        code = f"lambda columns: [{{{items}}} for {', '.join(variables)}, in zip(*columns)]"
        make = _makers[names] = eval(code)
    columns = [
        list(map(keys.objects.__getitem__, keys.index))
        if keys is not None and name == keys.field
        else column_to_list(column)
        for name, column in zip(names, table.columns, strict=True)
    ]
    return make(columns)  # type: ignore[no-any-return]


# --- blobs: rows packed for the way to another task ---

Blob = bytes

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


LeftOut = tuple[int, str] | None  # where a column was, and its name


def without_keys(rows: Rows) -> tuple[Rows, LeftOut]:
    """The rows for their way, without the column that their keys are in: those travel beside it."""
    field = None if rows.keys is None or rows.form != "arrow" else rows.keys.field
    names = rows.data.column_names if field is not None else []
    if field not in names or len(names) == 1:  # one at least, to count by
        return rows, None
    place = names.index(field)
    lean = Rows(rows.data.remove_column(place), rows.order, form="arrow", times=rows.times, keys=rows.keys)
    return lean, (place, names[place])


def _with_keys(rows: Rows, left_out: LeftOut) -> Rows:
    """The rows with the column that was left out."""
    if left_out is None:
        return rows
    keys, table = rows.keys, rows.data
    assert keys is not None
    keys.field = left_out[1]
    texts, at, chunks = pa.array(keys.objects, pa.large_string()), 0, []
    for chunk in table.column(0).chunks:  # as many rows at a time as have been one chunk before
        index = pa.array(keys.array[at : at + len(chunk)])
        chunks.append(pa.DictionaryArray.from_arrays(index, texts).dictionary_decode().cast(pa.string()))
        at += len(chunk)
    rows.data = table.add_column(*left_out, pa.chunked_array(chunks, pa.string()))
    return rows


def pack_rows(rows: Rows, codec: Codec, left_out: LeftOut = None) -> Blob:
    """Keyed rows as bytes: the rows in their form, the distinct keys, an index, orders and times."""
    assert rows.keys is not None
    if rows.form == "arrow":
        sink = pa.BufferOutputStream()
        table = rows.data.combine_chunks()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        data: Any = sink.getvalue().to_pybytes()
    elif rows.form == "json":
        data = b"\n".join(rows.data)
    else:
        data = codec.encode_lines(rows.data)
    index = rows.keys.array
    used = np.flatnonzero(np.bincount(index, minlength=len(rows.keys.encoded)))
    keys = [rows.keys.encoded[i] for i in used.tolist()]
    place = np.zeros(len(rows.keys.encoded), dtype=np.int32)
    place[used] = np.arange(len(used), dtype=np.int32)
    times = None
    if rows.times is not None:
        times = (rows.times.unit, rows.times.values.tobytes())
    return _pack(
        (
            rows.form,
            data,
            b"\n".join(keys),
            place[index].tobytes(),
            np.asarray(rows.order, dtype=np.int64).tobytes(),
            times,
            left_out,
        )
    )


def unpack_rows(blob: Blob, codec: Codec) -> Rows:
    """The rows of a blob; nothing else shares them."""
    parts = _unpack(blob)
    return _with_keys(_rows(parts, codec), parts[-1])


def _rows(parts: Any, codec: Codec) -> Rows:
    form, data, keys, index, order, times, _ = parts
    if form == "arrow":
        data = pa.ipc.open_stream(data).read_all()
    elif form == "json":
        data = data.split(b"\n")
    else:
        data = codec.decode_lines(data)
    return Rows(
        data,
        np.frombuffer(order, np.int64),
        form=form,
        times=None if times is None else Times(np.frombuffer(times[1], np.int64), times[0]),
        keys=Keys(keys.split(b"\n"), np.frombuffer(index, np.int32)),
    )


def in_order(blobs: Sequence[Blob], codec: Codec) -> Iterator[Rows]:
    """The rows of some blobs in the order of the input rows that caused them.

    Blobs that lie in that order, as most do, are unpacked some at a time. They do not where rows come from several
    partitions of an earlier stage, or have taken the ways of a branch and met again.
    """
    unpacked = [_unpack(blob) for blob in blobs]
    orders = [np.frombuffer(parts[4], np.int64) for parts in unpacked]
    ordered = all((np.diff(order) >= 0).all() for order in orders)
    if ordered and all(one[-1] <= other[0] for one, other in pairwise(orders)):
        together: list[Rows] = []
        left_out: LeftOut = None
        for one in unpacked:
            rows = _rows(one, codec)
            fits = left_out == one[-1] and sum(map(len, together)) + len(rows) <= MOST_JOINED
            if together and not (fits and _are_alike(together[0], rows)):
                yield _with_keys(_joined(together), left_out)
                together = []
            left_out = one[-1]
            together.append(rows)
        if together:
            yield _with_keys(_joined(together), left_out)
        return
    parts = [_with_keys(_rows(one, codec), one[-1]) for one in unpacked]
    if len({None if part.times is None else part.times.unit for part in parts}) > 1:  # as a union may bring them
        yield from parts
    else:
        yield _merged(parts)


def _merged(parts: list[Rows]) -> Rows:
    together = _joined([part.as_objects() for part in parts])
    return together.pick(np.argsort(np.asarray(together.order), kind="stable").tolist())


def _are_alike(one: Rows, other: Rows) -> bool:
    """Whether rows can be put behind each other without being made into objects."""
    units = {None if rows.times is None else rows.times.unit for rows in (one, other)}
    is_same = one.form == other.form and (one.form != "arrow" or one.data.schema == other.data.schema)
    return is_same and len(units) == 1


def _joined(parts: list[Rows]) -> Rows:
    """Rows that are alike, one part after the other; a key that is in several of them is one key again."""
    if len(parts) == 1:
        return parts[0]
    each = [part.keys for part in parts if part.keys is not None]
    found = pa.array([key for keys in each for key in keys.encoded], pa.binary()).dictionary_encode()
    place, starts = found.indices.to_numpy(), np.cumsum([0, *(len(keys.encoded) for keys in each)])
    index = [place[start + keys.array] for start, keys in zip(starts[:-1], each, strict=True)]
    timed = [part.times for part in parts if part.times is not None]
    form = parts[0].form
    return Rows(
        pa.concat_tables([part.data for part in parts])
        if form == "arrow"
        else [row for part in parts for row in part.data],
        np.concatenate([np.asarray(part.order, dtype=np.int64) for part in parts]),
        form=form,
        times=Times(np.concatenate([times.values for times in timed]), timed[0].unit) if timed else None,
        keys=Keys(found.dictionary.to_pylist(), np.concatenate(index)),
    )
