"""Reads Parquet: rows as Arrow tables, split by ranges of rows.

The position of a place is `{"rows": n}`, and `{"rows": n, "seen": size}` once the file is read to its end, so
that the footers of finished files are not opened again.
"""

from __future__ import annotations

import os
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
    DEFAULT_SIZES,
    EXACT_BELOW,
    TABLE_ROWS,
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
    rows before it as well; the splits of one task are joined. With `request.end`, no row after that position is
    planned.
    """
    position, limit, end = request.position, request.limit, request.end
    rows_left, bytes_left = max(1, limit.rows), max(1, limit.bytes)
    taken: list[tuple[File, int, list[_RowRange]]] = []
    is_cut = False  # a row group is larger than what is left: what follows it must wait
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
            if count < piece.stop - piece.start:
                is_cut = True
                break
        if pieces or start == known.rows:
            taken.append((file, known.rows, pieces or [_RowRange(start, start, 0.0)]))
        if is_cut or rows_left <= 0 or bytes_left <= 0 or (pieces and limit.rows < EXACT_BELOW):
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
            may_join=True,
        )
        for file, rows, pieces in taken
        for first, last, weight in _group_ranges(pieces, target)
    ]


def read_parquet(split: Split) -> Iterator[Chunk]:
    """Yield the rows of the split as tables. Reads only the row groups that have them.

    If the split ends inside a row group, the reader is kept in this process for the next split of the group.
    """
    path, start, stop = split.detail["path"], split.start, split.stop
    reader = _take_reader(path)
    if reader.rows < stop:
        raise shrunk_file_error(path, stop, reader.rows, "rows")
    if start == stop:
        yield Chunk(reader.schema.empty_table(), _parquet_entry(split, start))
    for batch in reader.read(start, stop):
        table = pa.Table.from_batches([batch])
        if table.schema != reader.schema:
            table = table.cast(reader.schema)
        first, start = start, start + len(table)
        yield Chunk(table, _parquet_entry(split, start), partial(_describe_row, path, first))
    _keep_reader(path, reader)


class _RowReader:
    """Reads ranges of rows of one Parquet file, and goes on from where it stopped if a range begins there or later.

    Parquet cannot be decoded from the middle of a row group: a new reader has to decode the rows before a range, too.
    """

    def __init__(self, path: str) -> None:
        self.identity = _file_identity(path)
        self._file = _open_source_file(path)
        self.rows: int = self._file.metadata.num_rows
        self.schema = pa.schema([f.with_type(_without_dictionaries(f.type)) for f in self._file.schema_arrow])
        self._batches: Iterator[pa.RecordBatch] = iter(())  # of the row groups that are being decoded
        self._rest: pa.RecordBatch | None = None  # the part of the last batch that is not read
        self._at = self._end = 0  # the next row that is decoded, and the end of these row groups
        self._group_bytes = 0

    @property
    def kept_bytes(self) -> int:
        """About how many bytes it holds in memory: none if it has not stopped inside a row group."""
        return self._group_bytes if self._at < self._end else 0

    def read(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows from `start` to `stop`, in order."""
        while start < stop:
            if not self._at <= start < self._end:
                self._open_groups(start, stop)
            while self._at < start:
                self._next(start - self._at)
            part = self._next(stop - start)
            start += len(part)
            yield part

    def _next(self, most: int) -> pa.RecordBatch:
        """Return the next rows, at most as many."""
        batch = next(self._batches) if self._rest is None else self._rest
        part = batch.slice(0, most)
        self._rest = batch.slice(len(part)) if len(part) < len(batch) else None
        self._at += len(part)
        return part

    def _open_groups(self, start: int, stop: int) -> None:
        """Begin to decode the row groups that have these rows."""
        wanted: list[int] = []
        first = end = size = 0
        for i in range(self._file.metadata.num_row_groups):
            group = self._file.metadata.row_group(i)
            if end < stop and end + group.num_rows > start:
                first = first if wanted else end
                wanted.append(i)
                size, self._group_bytes = size + group.total_byte_size, group.total_byte_size
            elif wanted:
                break
            end += group.num_rows
        batch_rows = max(1, min(TABLE_ROWS, CHUNK_BYTES * (end - first) // max(size, 1)))
        self._batches = self._file.iter_batches(batch_rows, row_groups=wanted, use_threads=False)
        self._rest, self._at, self._end = None, first, end


_MOST_KEPT_BYTES = 128 << 20  # in one process
_kept: dict[str, _RowReader] = {}  # path → a reader that has stopped inside a row group; the newest comes last


def _take_reader(path: str) -> _RowReader:
    """Return the reader that is kept for a file, if the file has not changed since, or else a new one."""
    reader = _kept.pop(path, None)
    return _RowReader(path) if reader is None or reader.identity != _file_identity(path) else reader


def _keep_reader(path: str, reader: _RowReader) -> None:
    """Keep a reader that has stopped inside a row group. The oldest make room for it."""
    if 0 < reader.kept_bytes <= _MOST_KEPT_BYTES:
        _kept[path] = reader
        while sum(each.kept_bytes for each in list(_kept.values())) > _MOST_KEPT_BYTES:
            _kept.pop(next(iter(_kept)))


def _file_identity(path: str) -> tuple[int, ...] | None:
    """Return what changes if a file is replaced or written to; None if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return os.getpid(), found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


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
