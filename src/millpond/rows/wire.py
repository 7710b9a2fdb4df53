"""Rows packed as bytes for another task, and unpacked there in the order of the input rows that caused them.

Blobs exist for the time of one batch: between a task that reads a source and the task that owns a key, or between two
keyed stages. Nothing of them is stored for later versions to read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from millpond.codec import Codec, partitions_of
from millpond.rows.rows import Form, Keys, Rows, Times
from millpond.timing import Unit

MAX_ROWS_JOINED = 200_000  # rows of small blobs that go through the steps together


Blob = bytes


LeftOut = tuple[int, str] | None  # the place and the name of the column that was dropped


class _BlobHead(msgspec.Struct, array_like=True):
    """What a blob has besides its parts: the rows, the distinct keys, an index, orders and times."""

    form: Form
    unit: Unit | None  # of the times; None if there are none
    left_out: LeftOut
    sizes: list[int]  # bytes of each part


_MOST_TEXT = (1 << 31) - 1  # bytes in one array of strings
_ORDER = 3  # the place of the orders among the parts
_ALIGNMENT = 16  # bytes, as objects of Python are aligned
_to_msgpack = msgspec.msgpack.Encoder().encode
_read_head = msgspec.msgpack.Decoder(_BlobHead).decode


def drop_key_column(rows: Rows) -> tuple[Rows, LeftOut]:
    """Return the rows without the column that their keys came from, and the column's place and name.

    The keys travel beside the rows, each distinct key once, so the column would be sent twice.
    """
    field = None if rows.keys is None or rows.form != "arrow" else rows.keys.field
    names = rows.data.column_names if field is not None else []
    if field not in names or len(names) == 1:  # a table without columns has lost its number of rows
        return rows, None
    place = names.index(field)
    lean = Rows(rows.data.remove_column(place), rows.order, form="arrow", times=rows.times, keys=rows.keys)
    return lean, (place, names[place])


def _restore_key_column(rows: Rows, left_out: LeftOut) -> Rows:
    """Put the column that `drop_key_column` removed back, made from the keys."""
    if left_out is None:
        return rows
    keys, table = rows.keys, rows.data
    assert keys is not None
    keys.field = left_out[1]
    longest = max(map(len, keys.encoded))
    kind = pa.string() if longest * len(table) <= _MOST_TEXT else pa.large_string()
    texts, at, chunks = pa.array(keys.objects, kind), 0, []
    for chunk in table.column(0).chunks:  # in the same chunks as before
        index = pa.array(keys.array[at : at + len(chunk)])
        chunks.append(texts.take(index).cast(pa.string()))
        at += len(chunk)
    rows.data = table.add_column(*left_out, pa.chunked_array(chunks, pa.string()))
    return rows


def pack_for_partitions(rows: Rows, codec: Codec, partitions: int) -> dict[int, Blob]:
    """Pack keyed rows for the partitions that own their keys, a blob for each that owns any."""
    lean, left_out = drop_key_column(rows)
    return {p: pack_rows(part, codec, left_out) for p, part in rows_for_partitions(lean, partitions).items()}


def rows_for_partitions(rows: Rows, partitions: int) -> dict[int, Rows]:
    """Return the keyed rows of each partition that owns any of their keys, in their order."""
    assert rows.keys is not None
    if partitions == 1:
        return {0: rows} if len(rows.order) else {}
    owner = partitions_of(rows.keys.encoded, partitions)
    if len(owner) == 0:
        return {}
    index, order = rows.keys.array, np.asarray(rows.order, dtype=np.int64)
    per_row = np.asarray(owner)[index]
    found: dict[int, Rows] = {}
    for partition in range(partitions):
        mine = np.flatnonzero(per_row == partition)
        if len(mine) == 0:
            continue
        data = rows.data
        data = data.take(pa.array(mine)) if rows.form == "arrow" else [data[i] for i in mine.tolist()]
        times = None if rows.times is None else rows.times.pick(mine)
        found[partition] = Rows(data, order[mine], form=rows.form, times=times, keys=rows.keys.pick(mine))
    return found


def pack_rows(rows: Rows, codec: Codec, left_out: LeftOut = None) -> Blob:
    """Pack keyed rows: the rows in their form, the distinct keys, an index, orders and times."""
    assert rows.keys is not None
    if rows.form == "arrow":
        sink = pa.BufferOutputStream()
        table = rows.data.combine_chunks()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        data: Any = sink.getvalue()
    elif rows.form == "json":
        data = b"\n".join(rows.data)
    else:
        data = codec.encode_lines(rows.data)
    index = rows.keys.array
    used = np.flatnonzero(np.bincount(index, minlength=len(rows.keys.encoded)))
    keys = [rows.keys.encoded[i] for i in used.tolist()]
    place = np.zeros(len(rows.keys.encoded), dtype=np.int32)
    place[used] = np.arange(len(used), dtype=np.int32)
    order, times = np.ascontiguousarray(rows.order, dtype=np.int64), rows.times
    ticks: Any = b"" if times is None else np.ascontiguousarray(times.values)
    whole: tuple[Any, ...] = (data, b"\n".join(keys), place[index], order, ticks)
    parts = [memoryview(part).cast("B") for part in whole]
    head = _BlobHead(rows.form, None if times is None else times.unit, left_out, [part.nbytes for part in parts])
    return _join_parts(_to_msgpack(head), parts)


def _join_parts(head: bytes, parts: Sequence[memoryview]) -> Blob:
    """Return the head and the parts one after the other, each at a place where arrays of any type may begin.

    Parts are copied once here, and not at all when they are read.
    """
    pieces: list[bytes | memoryview] = [len(head).to_bytes(_ALIGNMENT, "little")]
    for piece in (memoryview(head), *parts):
        pieces += (piece, bytes(-len(piece) % _ALIGNMENT))
    return b"".join(pieces)


def _cut_parts(blob: Blob) -> tuple[_BlobHead, list[memoryview]]:
    whole, at = memoryview(blob), _ALIGNMENT
    length = int.from_bytes(whole[:at], "little")
    head = _read_head(whole[at : at + length])
    found = []
    for size in head.sizes:
        at += length + -length % _ALIGNMENT
        found.append(whole[at : at + size])
        length = size
    return head, found


def unpack_rows(blob: Blob, codec: Codec) -> Rows:
    """Return the rows of a blob. They belong to the caller."""
    head, parts = _cut_parts(blob)
    return _restore_key_column(_rows_of(head, parts, codec), head.left_out)


def _rows_of(head: _BlobHead, parts: list[memoryview], codec: Codec) -> Rows:
    packed, keys, index, order, ticks = parts
    if head.form == "arrow":
        data: Any = pa.ipc.open_stream(packed).read_all()
    elif head.form == "json":
        data = bytes(packed).split(b"\n")
    else:
        data = codec.decode_lines(bytes(packed))
    return Rows(
        data,
        np.frombuffer(order, np.int64),
        form=head.form,
        times=None if head.unit is None else Times(np.frombuffer(ticks, np.int64), head.unit),
        keys=Keys(bytes(keys).split(b"\n"), np.frombuffer(index, np.int32)),
    )


def unpack_in_order(blobs: Sequence[Blob], codec: Codec) -> Iterator[Rows]:
    """Yield the rows of some blobs in the order of the input rows that caused them.

    Most blobs are in that order already and are unpacked some at a time, up to `MAX_ROWS_JOINED` rows. If rows come
    from several partitions of an earlier stage, or from branches that meet again, all blobs are unpacked and sorted.
    """
    unpacked = [_cut_parts(blob) for blob in blobs]
    orders = [np.frombuffer(parts[_ORDER], np.int64) for _, parts in unpacked]
    ordered = all((np.diff(order) >= 0).all() for order in orders)
    if ordered and all(one[-1] <= other[0] for one, other in pairwise(orders)):
        together: list[Rows] = []
        left_out: LeftOut = None
        for head, cut in unpacked:
            rows = _rows_of(head, cut, codec)
            if together and not (left_out == head.left_out and _can_join(together, rows)):
                yield _restore_key_column(concatenate(together), left_out)
                together = []
            left_out = head.left_out
            together.append(rows)
        if together:
            yield _restore_key_column(concatenate(together), left_out)
        return
    parts = [_restore_key_column(_rows_of(head, cut, codec), head.left_out) for head, cut in unpacked]
    if len({None if part.times is None else part.times.unit for part in parts}) > 1:  # as a union may bring them
        yield from parts
    else:
        yield _merge_by_order(parts)


def _merge_by_order(parts: list[Rows]) -> Rows:
    together = concatenate([part.as_objects() for part in parts])
    return together.pick(np.argsort(np.asarray(together.order), kind="stable").tolist())


def _can_join(together: list[Rows], other: Rows) -> bool:
    """Return whether rows fit each other and are not too many together."""
    return can_concatenate(together[0], other) and sum(map(len, together)) + len(other) <= MAX_ROWS_JOINED


def can_concatenate(one: Rows, other: Rows) -> bool:
    """Return whether rows have one form, one schema and one unit of time, so that they need not become objects."""
    units = {None if rows.times is None else rows.times.unit for rows in (one, other)}
    is_same = one.form == other.form and (one.form != "arrow" or one.data.schema == other.data.schema)
    return is_same and len(units) == 1


def concatenate(parts: list[Rows]) -> Rows:
    """Concatenate rows that fit each other; a key that several parts have becomes one key."""
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
