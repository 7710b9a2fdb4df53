"""Planning for files of lines: which bytes of which files the next batch reads.

A place's position is `{"offset": n}`: the bytes below n are read, and n is the start of a line. Where
a file ends in the middle of a line it is `{"offset": n, "seen": size}`: there is no further complete
line in a file of that size, so nothing is planned until it has another. For a gzip file the offset
counts unpacked bytes, and `seen` says that it was read to the end.

Where a CSV file ends in the middle of a record, the position also says whether a quote is `open` there, which may be
closed by what a writer is about to append: None, "record", or "line" if the last line is not complete either. A
"record" waits until the file has not changed for a while, and is then a bad row. A "line" waits for its newline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from millpond.errors import Incompatible
from millpond.sources.base import Limit, Split
from millpond.sources.lines import compressed, shrank
from millpond.sources.listing import File
from millpond.sources.ranges import EXACT_BELOW, LARGEST_SPLIT, SMALLEST_SPLIT, cut, share

SETTLED = 10.0  # seconds without a change after which a writer is not expected to finish what it has begun
GZIP_RATIO = 8  # what JSON lines unpack to, about; used only to guess
SHORTEST_ROW = 2  # bytes: a blank line is no row
AIM = 0.95  # the part of a limit of rows that is planned where their length is an estimate, so that it is seldom passed


def offset_of(file: File, entry: Any) -> int:
    """The offset in a position of a file."""
    if entry is None:
        return 0
    if not isinstance(entry, Mapping) or "offset" not in entry:
        raise Incompatible(
            f"{file.path}: expected a position of a file of lines such as {{'offset': 42}}, got {entry!r}. "
            "The stream was read in another format before: give it a new name, or the old format back."
        )
    return int(entry["offset"])


def unread(file: File, entry: Any) -> int | None:
    """The offset to go on at, or None when all complete lines of the file are read.

    Raises InvalidUse when the file holds less than was read of it.
    """
    if entry is None:
        return 0 if file.size else None
    offset, seen = offset_of(file, entry), entry.get("seen")
    floor = (seen or 0) if compressed(file.path) else offset
    if file.size < floor:
        raise shrank(file.path, floor, file.size)
    if seen == file.size or (offset == file.size and not compressed(file.path)):
        return None
    return offset


def is_settled(file: File, now: float) -> bool:
    """Whether nobody seems to be writing to a file any more."""
    return not file.is_cut and now - file.changed / 1e9 >= SETTLED


def open_at(file: File, entry: Any) -> int | None:
    """The offset of the record at the end of a CSV file that may have a quote without an end; None if it has none."""
    if not isinstance(entry, Mapping) or entry.get("seen") != file.size or file.is_cut:
        return None
    unknown = "record" if not compressed(file.path) and entry["offset"] < file.size else None  # old ones do not tell
    return int(entry["offset"]) if entry.get("open", unknown) == "record" else None


def entry_at(offset: int, path: str, size: int, *, at_end: bool) -> dict[str, int]:
    """The position after reading up to `offset`; `at_end` when no complete line of the file is left."""
    if at_end and (offset < size or compressed(path)):
        return {"offset": offset, "seen": size}
    return {"offset": offset}


def plan(
    files: Sequence[File],
    position: Mapping[str, Any],
    limit: Limit,
    bytes_per_row: float,
    format: str,
    *,
    end: Mapping[str, Any] | None = None,
    now: float = 0.0,
    smallest: int = SMALLEST_SPLIT,
    largest: int = LARGEST_SPLIT,
) -> list[Split]:
    """The next splits of these files, in their order. Reads nothing.

    JSON lines are cut into ranges for tasks to share; CSV and gzip files stay whole. A file is begun only
    when the ones before it are planned to their ends, so that batches of any size read the rows in the
    same order. A limit below EXACT_BELOW rows makes one split that counts rows. With `end` no line after that position
    is planned.
    """
    exact = limit.rows < EXACT_BELOW
    room = max(1, limit.bytes if exact else min(limit.bytes, int(limit.rows * AIM * bytes_per_row)))
    taken: list[tuple[File, int, int | None, dict[str, int]]] = []
    for file in files:
        last = None if end is None else offset_of(file, end[file.place])
        start = unread(file, position.get(file.place)) if last is None else offset_of(file, position.get(file.place))
        more = {}
        if format == "csv" and (last is not None or is_settled(file, now)):
            more = {"ended": 1}
            start = open_at(file, position.get(file.place)) if start is None else start
        if start is None or (last is not None and start >= last):
            continue
        if last is not None and not compressed(file.path):
            if file.size < last:
                raise shrank(file.path, last, file.size)
            file = replace(file, size=last)  # the first bytes of a file that has grown are a file, too
        if exact:
            stop = start + room if compressed(file.path) else min(file.size, start + room)
            stop = stop if last is None else min(stop, last)
            weight = max(1, min(stop - start, int(limit.rows * bytes_per_row)))
            return [_split(file, format, start, stop, start, weight, rows=limit.rows, **more)]
        if compressed(file.path):
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
        if until is None or format != "jsonl" or compressed(file.path):
            splits.append(_split(file, format, start, until, start, _weight(file, start, until), **more))
            continue
        pieces = share(until - start, total)
        for begin, stop in cut(start, until, pieces=pieces, smallest=smallest, largest=largest):
            splits.append(_split(file, format, begin, stop, start, stop - begin))
    return splits


def _weight(file: File, start: int, stop: int | None) -> int:
    return file.size * GZIP_RATIO if stop is None else stop - start


def _split(file: File, format: str, start: int, stop: int | None, base: int, weight: int, **more: int) -> Split:
    # base: a start of a line at or before every split that this plan makes of the file
    detail = {"format": format, "path": file.path, "size": file.size, "base": base, **more}
    rows = more.get("rows")
    if rows is None and stop is not None and not compressed(file.path):
        rows = (stop - start + 1) // SHORTEST_ROW
    return Split(file.place, start, stop, weight=weight, detail=detail, rows=rows)
