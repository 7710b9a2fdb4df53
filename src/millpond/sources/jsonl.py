"""Reads JSON lines: one JSON value per line, passed on as bytes and decoded where a row is needed.

A split [start, stop) has the lines that begin in it. The line that `start` cuts belongs to the split before, which
reads it to its end. So a split begins at the first line start at or after its `start` and ends at the first line start
at or after its `stop`; the neighbouring split computes the same place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from millpond.sources.base import Chunk, JsonLines, Split
from millpond.sources.line_plan import position_entry
from millpond.sources.lines import (
    BLOCK,
    BOM,
    GZIP,
    OVERSHOOT,
    SMALL_BLOCK,
    blocks,
    newlines_before,
    open_first_bytes,
)
from millpond.sources.ranges import CHUNK_ROWS


def read_jsonl(split: Split) -> Iterator[Chunk]:
    """Yield the lines of the split without blank ones. The last chunk may be empty and only advance the position."""
    path, size, base = split.detail["path"], split.detail["size"], split.detail["base"]
    left: int | None = split.detail.get("rows")
    with open_first_bytes(path, size) as file:
        begin = split.start if path.endswith(GZIP) else _first_line_from(file, split.start, base, size)
        done = begin
        at_end = False
        last_position = -1  # the last offset that a chunk carried
        if split.stop is None or begin < split.stop:
            file.seek(begin)
            bound = None if path.endswith(GZIP) else size
            for body, end in blocks(file, begin, split.stop, bound, SMALL_BLOCK if left else BLOCK):
                returns = b"\r" in body
                for part, first, after in _chunks_of(body.split(b"\n"), done, end):
                    rows = _clean(part, first, returns)
                    if left is not None and len(rows) >= left:
                        rows, after = _first_rows(part, rows, first, left)
                    done = last_position = after
                    position = position_entry(after, path, size, at_end=False)
                    yield Chunk(JsonLines(rows), position, LineLocator(path, size, first, len(rows)))
                    if left is not None:
                        left -= len(rows)
                        if left == 0:
                            return
            at_end = split.stop is None or done < split.stop
        if at_end or last_position < 0:
            yield Chunk(JsonLines([]), position_entry(done, path, size, at_end=at_end))


def _first_line_from(file: IO[bytes], offset: int, base: int, size: int) -> int:
    """Return where the first line at or after `offset` begins or, if there is none, where the last one ends.

    `base` is an offset at or before `offset` that is known to be the start of a line. The two splits
    that meet at `offset` both call this and get the same answer, so that every line is read once.
    """
    if offset <= base:
        return base
    at = offset - 1
    file.seek(at)
    while at < size:
        data = file.read(min(OVERSHOOT, size - at))
        if not data:
            break
        found = data.find(b"\n")
        if found >= 0:
            return at + found + 1
        at += len(data)
    at = offset - 1
    while at > base:  # no line ends after `offset`: look for the start of the unfinished one before it
        below = max(base, at - OVERSHOOT)
        file.seek(below)
        found = file.read(at - below).rfind(b"\n")
        if found >= 0:
            return below + found + 1
        at = below
    return base


def _chunks_of(lines: list[bytes], start: int, end: int) -> Iterator[tuple[list[bytes], int, int]]:
    """Yield the lines in runs of at most CHUNK_ROWS, each with the offsets before and after it."""
    if len(lines) <= CHUNK_ROWS:
        yield lines, start, end
        return
    for i in range(0, len(lines), CHUNK_ROWS):
        part = lines[i : i + CHUNK_ROWS]
        after = start + sum(map(len, part)) + len(part)
        yield part, start, after
        start = after


def _clean(lines: list[bytes], first: int, returns: bool) -> list[bytes]:
    """Return the lines without a byte order mark, carriage returns and blank lines."""
    if first == 0 and lines[0].startswith(BOM):
        lines = [lines[0][len(BOM) :], *lines[1:]]
    if returns:
        lines = [line.rstrip(b"\r") for line in lines]
    # If any line is empty or begins with a blank, the smallest one does: one pass in C, since such lines are rare.
    if min(lines)[:1] <= b" ":
        lines = [line for line in lines if line.strip()]
    return lines


def _first_rows(lines: list[bytes], rows: list[bytes], first: int, count: int) -> tuple[list[bytes], int]:
    """Return the first `count` rows and the offset after the last of them."""
    found, at = 0, first
    for line in lines:
        at += len(line) + 1
        found += not _is_blank(line, at == len(line) + 1)
        if found == count:
            break
    return rows[:count], at


def _is_blank(line: bytes, first: bool) -> bool:
    return not (line.removeprefix(BOM) if first else line).strip()


class LineLocator:
    """Says in words where row i of a chunk is. Reads the chunk again at the first call."""

    def __init__(self, path: str, size: int, first: int, rows: int) -> None:
        self._path, self._size, self._first, self._rows = path, size, first, rows
        self._numbers: list[int] | None = None

    def __call__(self, i: int) -> str:
        if self._numbers is None:
            self._numbers = self._lines()
        return f"{self._path}, line {self._numbers[i]}" if i < len(self._numbers) else self._path

    def _lines(self) -> list[int]:
        """Return the line number of each row."""
        number, found = newlines_before(self._path, self._size, self._first), []
        bound = None if self._path.endswith(GZIP) else self._size
        with open_first_bytes(self._path, self._size) as file:
            file.seek(self._first)
            for body, _ in blocks(file, self._first, None, bound, SMALL_BLOCK):
                for line in body.split(b"\n"):
                    number += 1
                    if not _is_blank(line, number == 1):
                        found.append(number)
                if len(found) >= self._rows:
                    break
        return found
