"""Reads Parquet: rows as Arrow tables, split by ranges of rows.

The position of a place is `{"rows": n}`, and `{"rows": n, "seen": size}` once the file is read to its end, so
that the footers of finished files are not opened again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from millpond.errors import InvalidUse
from millpond.sources.base import Chunk, Split
from millpond.sources.lines import shrunk_file_error
from millpond.sources.listing import File, other_format_error
from millpond.sources.ranges import (
    CHUNK_BYTES,
    CHUNK_ROWS,
    DEFAULT_SIZES,
    EXACT_BELOW,
    WANTED_SPLITS,
    SplitRequest,
    SplitSizes,
    cut_range,
)


@dataclass(frozen=True)
class Footer:
    """What planning needs of a file's metadata: the rows and the unpacked bytes of each row group."""

    groups: tuple[tuple[int, int], ...]

    @property
    def rows(self) -> int:
        return sum(rows for rows, _ in self.groups)


def read_footer(path: str) -> Footer:
    """Read the metadata of a file and nothing else. Raises InvalidUse if it is not a Parquet file."""
    with _open_source_file(path) as file:
        groups = (file.metadata.row_group(i) for i in range(file.metadata.num_row_groups))
        return Footer(tuple((group.num_rows, group.total_byte_size) for group in groups))


def plan_parquet(
    files: Sequence[File],
    request: SplitRequest,
    footer: Callable[[File], Footer],
    sizes: SplitSizes = DEFAULT_SIZES,
) -> list[Split]:
    """Return the next splits of these files, in their order, with at most `limit.rows` rows. Reads only footers.

    Splits end at row groups unless these are too large, because a split that begins inside a group has to decode the
    rows before it as well. With `request.end`, no row after that position is planned.
    """
    position, limit, end = request.position, request.limit, request.end
    rows_left, bytes_left = max(1, limit.rows), max(1, limit.bytes)
    taken: list[tuple[File, int, list[_RowRange]]] = []
    for file in files:
        entry = position.get(file.place)
        start = _rows_read(file, entry)
        last = None if end is None else _rows_before(file, end[file.place])
        if start is None or (last is not None and start >= last):
            continue
        known = footer(file)
        if max(start, last or 0) > known.rows:
            raise shrunk_file_error(file.path, max(start, last or 0), known.rows, "rows")
        pieces: list[_RowRange] = []
        for piece in _groups(known, start, last):
            fitting = max(1, int(bytes_left / max(piece.bytes_per_row, 1e-9))) if bytes_left > 0 else 0
            count = min(piece.stop - piece.start, rows_left, fitting)
            if count == 0:
                break
            pieces.append(_RowRange(piece.start, piece.start + count, piece.bytes_per_row))
            rows_left -= count
            bytes_left -= int(count * piece.bytes_per_row)
        if pieces or start == known.rows:
            taken.append((file, known.rows, pieces or [_RowRange(start, start, 0.0)]))
        if rows_left <= 0 or bytes_left <= 0 or (pieces and limit.rows < EXACT_BELOW):
            break
    total = sum(piece.bytes for _, _, pieces in taken for piece in pieces)
    target = min(max(total / WANTED_SPLITS, sizes.smallest), sizes.largest)
    return [
        Split(
            file.place,
            first,
            last,
            weight=max(1, int(weight)),
            detail={"format": "parquet", "path": file.path, "size": file.size, "of": rows},
            rows=last - first,
        )
        for file, rows, pieces in taken
        for first, last, weight in _group_ranges(pieces, target)
    ]


def read_parquet(split: Split) -> Iterator[Chunk]:
    """Yield the rows of the split as tables. Reads only the row groups that have them."""
    path, start, stop = split.detail["path"], split.start, split.stop
    with _open_source_file(path) as file:
        known = file.metadata.num_rows
        if known < stop:
            raise shrunk_file_error(path, stop, known, "rows")
        at = 0  # the first row of the current group
        wanted: list[int] = []
        skip = size = rows = 0
        for i in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(i)
            if at < stop and at + group.num_rows > start:
                if not wanted:
                    skip = start - at
                wanted.append(i)
                size, rows = size + group.total_byte_size, rows + group.num_rows
            at += group.num_rows
        done = start
        schema = pa.schema([field.with_type(_without_dictionaries(field.type)) for field in file.schema_arrow])
        if wanted:
            batch_rows = max(1, min(CHUNK_ROWS, CHUNK_BYTES * rows // max(size, 1)))
            for batch in file.iter_batches(batch_rows, row_groups=wanted, use_threads=False):
                if skip >= batch.num_rows:
                    skip -= batch.num_rows
                    continue
                part = batch.slice(skip, min(batch.num_rows - skip, stop - done))
                skip = 0
                table = pa.Table.from_batches([part])
                if table.schema != schema:
                    table = table.cast(schema)
                first, done = done, done + part.num_rows
                yield Chunk(table, _parquet_entry(split, done), partial(_describe_row, path, first))
                if done == stop:
                    return
        if done == start:
            yield Chunk(schema.empty_table(), _parquet_entry(split, done))


@dataclass(frozen=True)
class _RowRange:
    """A run of rows inside one row group."""

    start: int
    stop: int
    bytes_per_row: float

    @property
    def bytes(self) -> float:
        return (self.stop - self.start) * self.bytes_per_row


def _groups(footer: Footer, start: int, last: int | None = None) -> Iterator[_RowRange]:
    """Yield the unread part of each row group, up to the row `last`."""
    at = 0
    for rows, size in footer.groups:
        stop = at + rows if last is None else min(at + rows, last)
        if stop > max(at, start):
            yield _RowRange(max(at, start), stop, size / rows)
        at += rows


def _group_ranges(pieces: list[_RowRange], target: float) -> Iterator[tuple[int, int, float]]:
    """Yield ranges of about `target` bytes: small row groups together, large ones cut."""
    first, weight = pieces[0].start, 0.0
    for piece in pieces:
        if piece.bytes > 1.5 * target:
            if piece.start > first:
                yield first, piece.start, weight
            rows = piece.stop - piece.start
            count = min(rows, round(piece.bytes / target))
            for begin, end in cut_range(piece.start, piece.stop, pieces=count, smallest=1, largest=rows):
                yield begin, end, (end - begin) * piece.bytes_per_row
            first, weight = piece.stop, 0.0
            continue
        weight += piece.bytes
        if weight >= target:
            yield first, piece.stop, weight
            first, weight = piece.stop, 0.0
    if pieces[-1].stop > first or pieces[-1].stop == pieces[0].start:
        yield first, pieces[-1].stop, weight


def _rows_read(file: File, entry: Any) -> int | None:
    """Return how many rows are read, or None if all are and the file has not changed since."""
    if entry is None:
        return 0
    if not isinstance(entry, Mapping) or "rows" not in entry:
        raise other_format_error(file, "a Parquet file such as {'rows': 42}", entry)
    return None if entry.get("seen") == file.size else int(entry["rows"])


def _rows_before(file: File, entry: Any) -> int:
    """Return the number of rows before a position."""
    return _rows_read(File(file.place, file.path, -1), entry) or 0


def _parquet_entry(split: Split, rows: int) -> dict[str, int]:
    if rows == split.detail["of"]:
        return {"rows": rows, "seen": split.detail["size"]}
    return {"rows": rows}


def _describe_row(path: str, first: int, i: int) -> str:
    return f"{path}, row {first + i + 1}"


def _open_source_file(path: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, memory_map=False, pre_buffer=False)
    except FileNotFoundError:
        raise InvalidUse(f"{path}: expected a Parquet file, but it is gone. Put it back.") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise InvalidUse(
            f"{path}: expected a Parquet file, got: {error} Remove it, or give its format. A writer "
            "should write under a name that begins with '.' and rename the file at the end."
        ) from None


def _without_dictionaries(kind: pa.DataType) -> pa.DataType:
    """Return the type without dictionaries, which differ from file to file."""
    if pa.types.is_dictionary(kind):
        return _without_dictionaries(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_dictionaries(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_dictionaries(kind.value_type)))
    return kind
