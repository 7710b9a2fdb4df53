"""JSON lines: one JSON value per line, handed on as bytes and decoded where a row is needed.

A split [start, stop) owns the lines that begin in it. The line that `start` cuts belongs to the split
before, which reads it to its end; so a split begins at the first line start at or after its start, ends
at the first line start at or after its stop, and its neighbour computes the same place.
"""

from __future__ import annotations

from collections.abc import Iterator

from millpond.sources.base import Chunk, JsonLines, Split
from millpond.sources.line_plan import entry_at
from millpond.sources.lines import (
    BLOCK,
    BOM,
    SMALL_BLOCK,
    blocks,
    compressed,
    first_line_from,
    newlines_before,
    opened,
)
from millpond.sources.ranges import CHUNK_ROWS


def read(split: Split) -> Iterator[Chunk]:
    """The lines of the split, blank ones left out. The last chunk may be empty and only move the position."""
    path, size, base = split.detail["path"], split.detail["size"], split.detail["base"]
    left: int | None = split.detail.get("rows")
    with opened(path, size) as file:
        begin = split.start if compressed(path) else first_line_from(file, split.start, base, size)
        done = begin
        at_end = False
        told = -1  # the last offset that a chunk carried
        if split.stop is None or begin < split.stop:
            file.seek(begin)
            bound = None if compressed(path) else size
            for body, end in blocks(file, begin, split.stop, bound, SMALL_BLOCK if left else BLOCK):
                returns = b"\r" in body
                for part, first, after in _parts(body.split(b"\n"), done, end):
                    rows = _clean(part, first, returns)
                    if left is not None and len(rows) >= left:
                        rows, after = _head(part, rows, first, left)
                    done = told = after
                    position = entry_at(after, path, size, at_end=False)
                    yield Chunk(JsonLines(rows), position, Where(path, size, first, len(rows)))
                    if left is not None:
                        left -= len(rows)
                        if left == 0:
                            return
            at_end = split.stop is None or done < split.stop
        if at_end or told < 0:
            yield Chunk(JsonLines([]), entry_at(done, path, size, at_end=at_end))


def _parts(lines: list[bytes], start: int, end: int) -> Iterator[tuple[list[bytes], int, int]]:
    """The lines in runs that fit a chunk, each with the offsets before and after it."""
    if len(lines) <= CHUNK_ROWS:
        yield lines, start, end
        return
    for i in range(0, len(lines), CHUNK_ROWS):
        part = lines[i : i + CHUNK_ROWS]
        after = start + sum(map(len, part)) + len(part)
        yield part, start, after
        start = after


def _clean(lines: list[bytes], first: int, returns: bool) -> list[bytes]:
    if first == 0 and lines[0].startswith(BOM):
        lines = [lines[0][len(BOM) :], *lines[1:]]
    if returns:
        lines = [line.rstrip(b"\r") for line in lines]
    # The smallest line begins with a blank, or is empty, if any line does: one pass in C over lines that
    # hardly ever need a second look.
    if min(lines)[:1] <= b" ":
        lines = [line for line in lines if line.strip()]
    return lines


def _head(lines: list[bytes], rows: list[bytes], first: int, count: int) -> tuple[list[bytes], int]:
    """The first `count` rows, and the offset after the last of them."""
    found, at = 0, first
    for line in lines:
        at += len(line) + 1
        found += not _blank(line, at == len(line) + 1)
        if found == count:
            break
    return rows[:count], at


def _blank(line: bytes, first: bool) -> bool:
    return not (line.removeprefix(BOM) if first else line).strip()


class Where:
    """In words, where row i of a chunk stands. Reads the chunk again when it is first asked."""

    def __init__(self, path: str, size: int, first: int, rows: int) -> None:
        self._path, self._size, self._first, self._rows = path, size, first, rows
        self._numbers: list[int] | None = None

    def __call__(self, i: int) -> str:
        if self._numbers is None:
            self._numbers = self._lines()
        return f"{self._path}, line {self._numbers[i]}" if i < len(self._numbers) else self._path

    def _lines(self) -> list[int]:
        """The number of each row's line."""
        number, found = newlines_before(self._path, self._size, self._first), []
        bound = None if compressed(self._path) else self._size
        with opened(self._path, self._size) as file:
            file.seek(self._first)
            for body, _ in blocks(file, self._first, None, bound, SMALL_BLOCK):
                for line in body.split(b"\n"):
                    number += 1
                    if not _blank(line, number == 1):
                        found.append(number)
                if len(found) >= self._rows:
                    break
        return found
