"""Segments: immutable Parquet files of state changes and of outputs, readable without Millpond.

A state segment has a row per changed cell, sorted by key and cell:

    key      the key, as tagged JSON text
    cell     which part of the key's state: "" where a step keeps one value per key, else the kind and
             name of the part ("v:total", "l:items:0000000000000003", "m:seen:\"a\"")
    value    the new value, as tagged JSON text; null when deleted
    deleted  whether the cell is gone
    due      the event time at which something is to happen to the cell: microseconds since the epoch, or
             whatever whole number the stream's times are; null when nothing is
    wall     the same by the clock, in microseconds since the epoch

An output segment has a row per output:

    order    the place of the input row that caused it
    row      the output as tagged JSON text; null if it is in `fields`
    fields   the output as a struct with a typed column per field; null if it is in `row`

The column `fields` is there if some outputs are uniform (`rows.typed_columns`): then the segment has format 2, and
`millpond.rows` in its metadata says what its rows have in common. Otherwise it has format 1, as all state segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias, overload

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millpond.codec import Codec
from millpond.errors import Incompatible
from millpond.log.checked import Pointer, write_file
from millpond.rows.arrow_tables import repeating_columns
from millpond.rows.typed_columns import Columns, RowLayout, fit_parts
from millpond.storage import Storage

SEGMENT_FORMAT = "1"
COLUMNAR_FORMAT = "2"  # of output segments with the column `fields`
SEGMENT_FORMATS = (SEGMENT_FORMAT, COLUMNAR_FORMAT)
LAYOUT = "millpond.rows"
MOST_TEXT = (1 << 31) - 1  # bytes in one Arrow array of strings: its offsets have 32 bits

STATE = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("cell", pa.string(), nullable=False),
        pa.field("value", pa.string()),
        pa.field("deleted", pa.bool_(), nullable=False),
        pa.field("due", pa.int64()),
        pa.field("wall", pa.int64()),
    ]
)
# The same in memory where much comes together, as in a merge: offsets of 64 bits.
LARGE_STATE = pa.schema(
    [pa.field(f.name, pa.large_string(), f.nullable) if f.type == pa.string() else f for f in STATE]
)


OUTPUT = pa.schema([pa.field("order", pa.int64(), nullable=False), pa.field("row", pa.string(), nullable=False)])
OutputBlock: TypeAlias = bytes | Columns  # encoded rows, lines of text with their ends; or columns


class Change(NamedTuple):
    """One change of one cell; `value` None is a deletion. It is applied in the same way live and on replay.

    >>> import millpond as mp
    >>> mp.lowlevel.Change(b'"ann"', b"", None).due is None
    True
    """

    key: bytes
    cell: bytes
    value: bytes | None
    due: int | None = None
    wall: int | None = None


make_change = partial(tuple.__new__, Change)  # of a tuple of five, without a Python call


@dataclass(frozen=True, eq=False)
class SingleCellChanges(Sequence[Change]):
    """Changes of the unnamed cell of many keys, without times, sorted by key.

    It is the sequence that a list of `Change` would be, held as two columns: a tuple is made only when it is asked for.
    """

    keys: list[bytes]
    values: list[bytes | None]

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, place: int) -> Change: ...
    @overload
    def __getitem__(self, place: slice) -> SingleCellChanges: ...
    def __getitem__(self, place: int | slice) -> Change | SingleCellChanges:
        if isinstance(place, slice):
            return SingleCellChanges(self.keys[place], self.values[place])
        return Change(self.keys[place], b"", self.values[place])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as a list has none

    def __iter__(self) -> Iterator[Change]:
        return map(make_change, zip(self.keys, repeat(b""), self.values, repeat(None), repeat(None), strict=False))


@dataclass(frozen=True)
class SegmentOrigin:
    """The metadata of a segment, for people and tools that read it without the ledger."""

    app: str
    of: str  # the step or the sink
    partition: int
    batch: int

    def metadata(self) -> dict[str, str]:
        return {
            "millpond.format": SEGMENT_FORMAT,
            "millpond.app": self.app,
            "millpond.of": self.of,
            "millpond.partition": str(self.partition),
            "millpond.batch": str(self.batch),
        }


def _to_parquet(table: pa.Table, metadata: dict[str, str], **how: Any) -> memoryview:
    table = table.replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    how = {"compression": "lz4", "use_dictionary": False, "write_statistics": table.column_names[:1], **how}
    pq.write_table(table, sink, **how)
    return memoryview(sink.getvalue())


def _text_array(values: Sequence[bytes | None]) -> Any:
    # Every value comes from the codec, so it is UTF-8.
    found = pa.array(values, pa.binary())
    if isinstance(found, pa.ChunkedArray):  # more than two gigabytes of them
        return pa.chunked_array([chunk.view(pa.string()) for chunk in found.chunks], pa.string())
    return found.view(pa.string())


def changes_table(changes: Sequence[Change]) -> pa.Table:
    """Return changes, sorted by key and cell, as a table."""
    whole = pa.int64()
    if isinstance(changes, SingleCellChanges):
        count, keys, values = len(changes), changes.keys, changes.values
        cells, dues, walls = pa.repeat("", count), pa.nulls(count, whole), pa.nulls(count, whole)
    else:
        keys, names, values, *times = map(list, zip(*changes, strict=True)) if changes else ([], [], [], [], [])
        cells = _text_array(names)
        dues, walls = (pa.array(column, whole) for column in times)
    written = _text_array(values)
    columns = [_text_array(keys), cells, written, written.is_null(), dues, walls]
    return pa.Table.from_arrays(columns, schema=STATE)


def pack_state(changes: Sequence[Change], origin: SegmentOrigin) -> memoryview:
    """Encode changes, sorted by key and cell, as a Parquet file."""
    return _to_parquet(changes_table(changes), origin.metadata())


def write_state(storage: Storage, path: str, changes: Sequence[Change], origin: SegmentOrigin) -> Pointer:
    """Write changes, sorted by key and cell, to a file; return the pointer for the record."""
    return write_file(storage, path, pack_state(changes, origin), len(changes))


def state_table(data: bytes) -> pa.Table:
    """Decode a state segment as a table."""
    return _segment_file(data).read(use_threads=False)


def _segment_file(data: bytes) -> pq.ParquetFile:
    # `pq.read_table` opens a dataset, whose threads have aborted processes at their exit.
    file = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False)
    found = (file.metadata.metadata or {}).get(b"millpond.format", b"1").decode()
    if found not in SEGMENT_FORMATS:
        raise Incompatible(
            f"a segment has format {found}, and this version of Millpond reads formats {SEGMENT_FORMATS[0]} to "
            f"{SEGMENT_FORMATS[-1]}: upgrade Millpond."
        )
    return file


def pack_table(table: pa.Table, origin: SegmentOrigin) -> memoryview:
    """Encode a table of state, sorted by key and cell, as a Parquet file."""
    return _to_parquet(_with_file_types(table), origin.metadata())


def text_bytes(table: pa.Table) -> np.ndarray[Any, Any]:
    """Return the number of bytes of text in each row of a table of state."""
    found = np.zeros(len(table), np.int64)
    for name in ("key", "cell", "value"):
        found += pc.fill_null(pc.binary_length(table.column(name)), 0).to_numpy()
    return found


def _with_file_types(table: pa.Table) -> pa.Table:
    """Return a table of state with the types of segments, in as many chunks as these need."""
    if table.schema.types == STATE.types:
        return table
    ends = _cut_points(np.cumsum(text_bytes(table)))
    starts = [0, *ends[:-1]]
    parts = [_cast(table.slice(start, end - start)) for start, end in zip(starts, ends, strict=True)]
    return pa.concat_tables(parts) if parts else STATE.empty_table()


def _cast(table: pa.Table) -> pa.Table:
    try:
        return table.cast(STATE)
    except pa.ArrowInvalid:  # a slice of a larger array, whose offsets do not begin at 0: copy it
        return table.take(pa.array(np.arange(len(table)))).cast(STATE)


def _cut_points(sizes: np.ndarray[Any, Any]) -> list[int]:
    """Return where to cut rows so that no part has more than `MOST_TEXT` bytes. `sizes` are cumulated bytes."""
    ends, done = [], 0
    while done < len(sizes):
        before = int(sizes[done - 1]) if done else 0
        done = max(done + 1, int(np.searchsorted(sizes, before + MOST_TEXT, side="right")))
        ends.append(done)
    return ends


def unpack_state(data: bytes) -> Sequence[Change]:
    """Decode the changes of a state segment, in order."""
    return read_changes(state_table(data))


def read_changes(table: pa.Table) -> Sequence[Change]:
    """Return the rows of a table of state as changes."""
    has_times = any(table.column(name).null_count < len(table) for name in ("due", "wall"))
    if not has_times and not pc.any(pc.not_equal(table.column("cell"), "")).as_py():
        keys: list[Any] = _column_bytes(table.column("key"))
        return SingleCellChanges(keys, _column_bytes(table.column("value")))
    columns: list[list[Any]] = [_column_bytes(table.column(name)) for name in ("key", "cell", "value")]
    for name in ("due", "wall"):
        column = table.column(name)
        columns.append([None] * len(column) if column.null_count == len(column) else column.to_pylist())
    return list(map(Change._make, zip(*columns, strict=True)))


@dataclass(frozen=True)
class OutputRows:
    """The rows of an output segment, in order. Those that are not in `columns` are text."""

    orders: np.ndarray[Any, Any]
    texts: pa.ChunkedArray  # null where a row is in the columns
    columns: Columns | None

    @property
    def uniform(self) -> Columns | None:
        """All rows as columns; None if some are text."""
        return self.columns if self.texts.null_count == len(self.texts) else None

    def objects(self, codec: Codec) -> list[Any]:
        """Return the rows as Python objects."""
        if self.columns is None:
            return codec.decode_many(_column_bytes(self.texts))
        rows = self.columns.objects(codec)
        if len(rows) == len(self.orders):
            return rows
        texts, typed = iter(codec.decode_many(_column_bytes(self.texts.drop_null()))), iter(rows)
        return [next(texts) if is_text else next(typed) for is_text in self.texts.is_valid().to_pylist()]


def pack_outputs(
    orders: Iterable[int] | np.ndarray[Any, Any], blocks: Sequence[OutputBlock], origin: SegmentOrigin, codec: Codec
) -> memoryview:
    """Encode outputs as a Parquet file; `orders` are the places of the rows that caused them.

    A segment has one layout, and columns that do not fit it become text. So do columns of more than two gigabytes,
    because Parquet cannot return structs of that size.
    """
    order = pa.array(orders, pa.int64())
    parts = {i: block for i, block in enumerate(blocks) if isinstance(block, Columns)}
    if sum(part.table.nbytes for part in parts.values()) > MOST_TEXT:
        parts = {}
    if len(parts) > 1:
        parts = fit_parts(parts)
    structs = {i: part.table.to_struct_array() for i, part in parts.items()}
    layout, kind = next(((part.layout, structs[i].type) for i, part in parts.items()), (None, None))
    texts: list[pa.Array] = []
    fields: list[pa.Array] = []
    for i, block in enumerate(blocks):
        if i in structs:
            texts.append(pa.nulls(len(structs[i]), pa.string()))
            fields += structs[i].chunks
        else:
            lines = text_columns(codec.encode_lines(block.objects(codec)) if isinstance(block, Columns) else block)
            texts += lines
            fields += [] if kind is None else [pa.nulls(len(column), kind) for column in lines]
    text = pa.chunked_array(texts, pa.string())
    encoding = {"order": "DELTA_BINARY_PACKED"}  # most outputs follow each other
    if layout is None:
        table = pa.Table.from_arrays([order, text], schema=OUTPUT)
        return _to_parquet(table, origin.metadata(), column_encoding=encoding)
    schema = pa.schema([OUTPUT.field("order"), pa.field("row", pa.string()), pa.field("fields", kind)])
    table = pa.Table.from_arrays([order, text, pa.chunked_array(fields, kind)], schema=schema)
    own = {"millpond.format": COLUMNAR_FORMAT, LAYOUT: msgspec.json.encode(layout).decode()}
    repeating = [f"fields.{name}" for name in repeating_columns(next(iter(parts.values())).table)]
    return _to_parquet(table, origin.metadata() | own, use_dictionary=repeating, column_encoding=encoding)


def text_columns(lines: bytes) -> list[pa.StringArray]:
    """Return lines of text as columns, without a Python object for each; more than one if one cannot hold them."""
    if len(lines) <= MOST_TEXT:
        return [_text_column(lines)]
    ends = np.flatnonzero(np.frombuffer(lines, np.uint8) == ord("\n")) + 1
    stops = [int(ends[stop - 1]) for stop in _cut_points(ends)]
    starts = [0, *stops[:-1]]
    return [_text_column(lines[start:stop]) for start, stop in zip(starts, stops, strict=True)]


def _text_column(lines: bytes) -> pa.StringArray:
    ends = np.flatnonzero(np.frombuffer(lines, np.uint8) == ord("\n"))
    places = np.zeros(len(ends) + 1, np.int32)
    places[1:] = ends - np.arange(len(ends))
    text = lines.replace(b"\n", b"")
    return pa.StringArray.from_buffers(len(ends), pa.py_buffer(places), pa.py_buffer(text))


def unpack_outputs(data: bytes) -> OutputRows:
    """Decode an output segment."""
    table = _segment_file(data).read(use_threads=False)
    columns = None
    if "fields" in table.column_names:
        layout = msgspec.json.decode(table.schema.metadata[LAYOUT.encode()], type=RowLayout)
        columns = Columns(layout, pa.Table.from_struct_array(table.column("fields").drop_null()))
    return OutputRows(table.column("order").to_numpy(), table.column("row"), columns)


def _column_bytes(column: pa.ChunkedArray) -> list[Any]:
    kind = pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary()
    values: list[Any] = column.cast(kind).to_pylist()
    return values


def unpack_key(data: bytes, key: bytes) -> Sequence[Change]:
    """Decode the changes of one key in a state segment."""
    file, wanted = _segment_file(data), key.decode()
    groups = [i for i in range(file.metadata.num_row_groups) if _may_hold(file.metadata.row_group(i), wanted)]
    table = file.read_row_groups(groups, use_threads=False)
    return read_changes(table.filter(pc.equal(table.column("key"), wanted)))


def _may_hold(group: Any, key: str) -> bool:
    known = group.column(0).statistics
    return known is None or not known.has_min_max or known.min <= key <= known.max
