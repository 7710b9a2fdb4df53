"""Planning for files of lines: which bytes of which files the next batch reads.

The position of a place is `{"offset": n}`: the bytes below n are read, and n is the start of a line. If the file ends
in the middle of a line, it is `{"offset": n, "seen": size}`: a file of that size has no further complete line, so
nothing is planned until its size changes. For a gzip file the offset counts unpacked bytes, and `seen` means that it
was read to the end.

If a CSV file ends in the middle of a record, `open` says whether a quote is open there, which a writer may be about to
close: None, "record", or "line" if the last line is not complete either. A "record" waits until the file has not
changed for a while, and is then a bad row. A "line" waits for its newline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from millpond.sources.base import Split
from millpond.sources.lines import GZIP, shrunk_file_error
from millpond.sources.listing import File, other_format_error
from millpond.sources.ranges import (
    DEFAULT_SIZES,
    EXACT_BELOW,
    WANTED_SPLITS,
    SplitRequest,
    SplitSizes,
    cut_range,
)

SETTLED_SECONDS = 10.0  # without a change, after which no writer is expected to finish a record
GZIP_RATIO = 8  # how much larger JSON lines are unpacked; only for estimates
SHORTEST_ROW = 2  # bytes, with the newline: a blank line is not a row
PLANNED_SHARE = 0.95  # of the limit of rows, if their length is an estimate: so the limit is seldom exceeded


def offset_of(file: File, entry: Any) -> int:
    """Return the offset in a position entry of a file; 0 for None."""
    if entry is None:
        return 0
    if not isinstance(entry, Mapping) or "offset" not in entry:
        raise other_format_error(file, "a file of lines such as {'offset': 42}", entry)
    return int(entry["offset"])


def unread_offset(file: File, entry: Any) -> int | None:
    """Return the offset at which reading goes on, or None if all complete lines of the file are read.

    Raises InvalidUse if the file is shorter than what was read of it.
    """
    if entry is None:
        return 0 if file.size else None
    offset, seen = offset_of(file, entry), entry.get("seen")
    floor = (seen or 0) if file.path.endswith(GZIP) else offset
    if file.size < floor:
        raise shrunk_file_error(file.path, floor, file.size)
    if seen == file.size or (offset == file.size and not file.path.endswith(GZIP)):
        return None
    return offset


def is_settled(file: File, now: float) -> bool:
    """Return whether the file has not changed for a while, so that no writer is expected to finish its last record."""
    return not file.is_cut and now - file.changed / 1e9 >= SETTLED_SECONDS


def open_record_offset(file: File, entry: Any) -> int | None:
    """Return the offset of the last record of a CSV file if its quote may never be closed, or else None."""
    if not isinstance(entry, Mapping) or entry.get("seen") != file.size or file.is_cut:
        return None
    unknown = (
        "record" if not file.path.endswith(GZIP) and entry["offset"] < file.size else None
    )  # positions of older versions have no "open"
    return int(entry["offset"]) if entry.get("open", unknown) == "record" else None


def position_entry(offset: int, path: str, size: int, *, at_end: bool) -> dict[str, int]:
    """Return the position entry after reading up to `offset`; `at_end` if no complete line is left in the file."""
    if at_end and (offset < size or path.endswith(GZIP)):
        return {"offset": offset, "seen": size}
    return {"offset": offset}


def plan_lines(
    files: Sequence[File],
    request: SplitRequest,
    bytes_per_row: float,
    format: str,
    sizes: SplitSizes = DEFAULT_SIZES,
) -> list[Split]:
    """Return the next splits of these files, in their order. Reads no file.

    Files of JSON lines are cut into ranges that tasks share; CSV and gzip files stay whole. A file is planned only if
    the files before it are planned to their ends, so that batches of any size read the rows in the same order. A limit
    below EXACT_BELOW rows gives one split that counts rows. With `request.end`, no line after that position is planned.
    """
    position, limit, end = request.position, request.limit, request.end
    exact = limit.rows < EXACT_BELOW
    room = max(1, limit.bytes if exact else min(limit.bytes, int(limit.rows * PLANNED_SHARE * bytes_per_row)))
    taken: list[tuple[File, int, int | None, dict[str, int]]] = []
    for file in files:
        last = None if end is None else offset_of(file, end[file.place])
        start = (
            unread_offset(file, position.get(file.place)) if last is None else offset_of(file, position.get(file.place))
        )
        more = {}
        if format == "csv" and (last is not None or is_settled(file, request.now)):
            more = {"ended": 1}
            start = open_record_offset(file, position.get(file.place)) if start is None else start
        if start is None or (last is not None and start >= last):
            continue
        if last is not None and not file.path.endswith(GZIP):
            if file.size < last:
                raise shrunk_file_error(file.path, last, file.size)
            file = replace(file, size=last)  # the first bytes of a file that has grown are a file, too
        if exact:
            stop = start + room if file.path.endswith(GZIP) else min(file.size, start + room)
            stop = stop if last is None else min(stop, last)
            weight = max(1, min(stop - start, int(limit.rows * bytes_per_row)))
            return [_split(file, format, start, stop, start, weight, rows=limit.rows, **more)]
        if file.path.endswith(GZIP):
            guess = file.size * GZIP_RATIO
            until = None if guess <= room else start + room
            taken.append((file, start, until if last is None else min(last, until or last), more))
            room -= guess
        else:
            taken.append((file, start, min(file.size, start + room), more))
            room -= file.size - start
        if room <= 0:
            break

    total = sum(_weight(*piece[:3]) for piece in taken)
    splits: list[Split] = []
    for file, start, until, more in taken:
        if until is None or format != "jsonl" or file.path.endswith(GZIP):
            splits.append(_split(file, format, start, until, start, _weight(file, start, until), **more))
            continue
        pieces = _pieces_for(until - start, total)
        for begin, stop in cut_range(start, until, pieces=pieces, smallest=sizes.smallest, largest=sizes.largest):
            splits.append(_split(file, format, begin, stop, start, stop - begin))
    return splits


def _pieces_for(part: int, total: int) -> int:
    """Return how many of a plan's pieces go to a file that has `part` of its `total`, at least one.

    >>> _pieces_for(3, 9), _pieces_for(1, 100), _pieces_for(9, 9)
    (2, 1, 4)
    """
    return max(1, -(-WANTED_SPLITS * part // max(total, 1)))


def _weight(file: File, start: int, stop: int | None) -> int:
    return file.size * GZIP_RATIO if stop is None else stop - start


def _split(file: File, format: str, start: int, stop: int | None, base: int, weight: int, **more: int) -> Split:
    # base: a start of a line at or before every split that this plan makes of the file
    detail = {"format": format, "path": file.path, "size": file.size, "base": base, **more}
    rows = more.get("rows")
    if rows is None and stop is not None and not file.path.endswith(GZIP):
        rows = (stop - start + 1) // SHORTEST_ROW
    return Split(file.place, start, stop, weight=weight, detail=detail, rows=rows)
