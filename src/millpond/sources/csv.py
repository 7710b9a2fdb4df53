"""Reads CSV: the first line names the fields, every value is a string, quoted values may contain newlines.

No types are guessed; `type=` on the stream converts. One task per batch reads a file, because only a reader that starts
at a record knows which newline ends it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import IO, Any

from millpond.errors import InvalidUse
from millpond.sources.base import BadRow, Chunk, Split
from millpond.sources.line_plan import position_entry
from millpond.sources.lines import BLOCK, BOM, GZIP, SMALL_BLOCK, blocks, newlines_before, open_first_bytes
from millpond.sources.ranges import CHUNK_BYTES, CHUNK_ROWS


def read_csv(split: Split) -> Iterator[Chunk]:
    """Yield the records that begin in the split as dicts; records that do not fit the header become bad rows.

    Raises InvalidUse if the header names a field twice. A record that is not complete waits for the next batch; in a
    split that is `ended` it will not be completed, and the line in which it begins becomes a bad row.
    """
    path, size, start = split.detail["path"], split.detail["size"], split.start
    cap: int | None = split.detail.get("rows")
    is_ended = bool(split.detail.get("ended"))
    with open_first_bytes(path, size) as file:
        header = _Records(file, 0, size, path, SMALL_BLOCK, is_ended)
        names = _header(header, path)
        if names is None:
            yield Chunk([], header.position())
            return
        at = max(start, header.offset)
        file.seek(at)
        records = _Records(file, at, size, path, SMALL_BLOCK if cap else BLOCK, is_ended)
        taken, ended = 0, False
        while not ended and (cap is None or taken < cap):
            rows: list[Any] = []
            numbers: list[int] = []
            bad: list[BadRow] = []
            begin = records.offset
            full = CHUNK_ROWS if cap is None else min(CHUNK_ROWS, cap - taken)
            while len(rows) + len(bad) < full and records.offset - begin < CHUNK_BYTES:
                if split.stop is not None and records.offset >= split.stop:
                    ended = True
                    break
                line = records.line
                fields = records.next()
                if fields is None:
                    ended = True
                    break
                if isinstance(fields, str):
                    bad.append(BadRow(records.where(line), records.raw(), fields))
                elif len(fields) == len(names):
                    rows.append(dict(zip(names, fields, strict=True)))
                    numbers.append(line)
                elif fields:  # a blank line has no fields
                    came = f"expected {len(names)} fields ({', '.join(names)}), got {len(fields)}"
                    bad.append(BadRow(records.where(line), records.raw(), came))
            taken += len(rows) + len(bad)
            yield Chunk(rows, records.position(), _RecordLocator(path, size, at, numbers), bad)


def _header(records: _Records, path: str) -> list[str] | None:
    """Return the names of the fields, or None if the header is not complete yet."""
    while True:
        fields = records.next()
        if fields is None:
            return None
        if isinstance(fields, str):
            raise InvalidUse(
                f"{path}, line 1: expected a CSV header that names the fields, got: {fields}. Correct the file."
            )
        if fields:
            break
    twice = sorted({name for name in fields if fields.count(name) > 1})
    if twice:
        raise InvalidUse(
            f"{path}, line 1: expected each field once in the CSV header, got {twice[0]!r} twice. Rename one of them."
        )
    return fields


class _RecordLocator:
    """Says in words where row i of a chunk is. Each call reads the beginning of the file."""

    def __init__(self, path: str, size: int, start: int, numbers: list[int]) -> None:
        self._path, self._size, self._start, self._numbers = path, size, start, numbers

    def __call__(self, i: int) -> str:
        number = newlines_before(self._path, self._size, self._start) + self._numbers[i] + 1
        return f"{self._path}, line {number}"


class _Records:
    """Reads records one by one and knows the offset after the last complete one.

    csv.reader takes a further line only while a record is open, so after each record the lines that it took are exactly
    the lines of the records so far. A record whose quote is never closed would take all lines that follow: only its
    first line becomes a bad row, and the others are read again.
    """

    def __init__(self, file: IO[bytes], start: int, size: int, path: str, block: int, is_ended: bool) -> None:
        self.start = self.offset = start  # the offset after the last complete record
        self.line = 0  # lines before it, from the start
        self.exhausted = False  # whether no complete record is left
        self._is_ended = is_ended  # whether an incomplete record stays incomplete
        self._is_open = False  # the record after the last complete one has a quote that is not closed
        self._path, self._size = path, size
        self._before: int | None = None  # lines before the start, counted on demand
        self._garbled: str | None = None  # why a line of the current record is not UTF-8
        self._blocks = blocks(file, start, None, None if path.endswith(GZIP) else size, block)
        self._left: Iterator[bytes] = iter(())  # lines of the current block
        self._held: list[bytes] = []  # the raw lines of the current record
        self._reader = csv.reader(self._lines(), strict=True)

    def next(self) -> list[str] | str | None:
        """Return the fields of the next record, or what is wrong with it, or None if no complete one is left."""
        self._held.clear()
        self._garbled = problem = None
        fields: list[str] = []
        try:
            fields = next(self._reader)
        except StopIteration:
            return None
        except csv.Error as error:
            problem = str(error)
        if self.exhausted:  # the complete lines ended inside the record
            if not self._is_ended or self._ends_in_a_line():
                self._is_open = True
                return None
            problem = self._give_up("and the file ends without one")
        elif problem is not None and problem.startswith("field larger") and len(self._held) > 1:
            problem = self._give_up(f"and none came in {csv.field_size_limit()} characters")
        self.offset += sum(map(len, self._held)) + len(self._held)
        self.line += len(self._held)
        problem = self._garbled or problem
        return fields if problem is None else problem

    def _give_up(self, why: str) -> str:
        """Make the first line alone the current record, go on with the next line, and return what is wrong."""
        self._left = iter([*self._held[1:], *self._left])
        del self._held[1:]
        self._garbled, self.exhausted = None, False
        self._reader = csv.reader(self._lines(is_first=False), strict=True)
        return f"expected a second quote that closes the field, {why}"

    def position(self) -> dict[str, Any]:
        """Return the position entry: how far the file has been read."""
        entry: dict[str, Any] = position_entry(self.offset, self._path, self._size, at_end=self.exhausted)
        if self._is_open:
            entry["open"] = "line" if self._ends_in_a_line() else "record"
        elif "seen" in entry and not self._path.endswith(GZIP):
            entry["open"] = None
        return entry

    def _ends_in_a_line(self) -> bool:
        """Return whether an incomplete line follows the current record: a writer is probably about to finish it."""
        return not self._path.endswith(GZIP) and self.offset + sum(map(len, self._held)) + len(self._held) < self._size

    def raw(self) -> str:
        """Return the current record as it is in the file."""
        return b"\n".join(self._held).decode(errors="backslashreplace")

    def where(self, line: int) -> str:
        """Say in words where the record is that has `line` lines before it, counted from the start of this reader."""
        if self._before is None:
            self._before = newlines_before(self._path, self._size, self.start)
        return f"{self._path}, line {self._before + line + 1}"

    def _lines(self, is_first: bool = True) -> Iterator[str]:
        first = is_first and self.start == 0
        while True:
            for line in self._left:
                self._held.append(line)
                text = line.removeprefix(BOM) if first else line
                first = False
                try:
                    yield text.decode() + "\n"
                except UnicodeDecodeError as error:
                    self._garbled = f"expected UTF-8, got {text[error.start : error.end]!r}"
                    yield text.decode(errors="replace") + "\n"
            block = next(self._blocks, None)
            if block is None:
                self.exhausted = True
                return
            self._left = iter(block[0].split(b"\n"))
