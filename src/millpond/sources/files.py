"""A source of files in a folder, which may grow."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Literal, get_args

from millpond.errors import InvalidUse
from millpond.sources import csv, jsonl, line_plan, parquet
from millpond.sources.base import Chunk, Limit, Split
from millpond.sources.lines import bytes_per_line, newlines_before
from millpond.sources.listing import File, Location
from millpond.sources.parquet import Footer
from millpond.sources.ranges import SplitRequest

log = logging.getLogger("millpond")

SourceFormat = Literal["jsonl", "csv", "parquet"]

FORMATS: tuple[SourceFormat, ...] = get_args(SourceFormat)
EXTENSIONS: dict[str, SourceFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
}
READERS: dict[SourceFormat, Callable[[Split], Iterator[Chunk]]] = {
    "jsonl": jsonl.read_jsonl,
    "csv": csv.read_csv,
    "parquet": parquet.read_parquet,
}
FIRST_GUESS = 100.0  # bytes per row, if not even one line is complete


class FileSource:
    """Made by `millpond.sources.files`; reads the files in the order of their names.

    Positions name files by their path below the folder, so the folder as a whole may be moved. Files may be added and
    may grow; the bytes that are there must stay. Planning lists the folder, and reads the footers of Parquet files. Of
    other files it reads a few lines to learn how long rows are, until a batch has reported it.

    >>> from millpond.sources import files
    >>> files("/data/orders/", format="jsonl")
    files('/data/orders', format='jsonl')
    """

    def __init__(self, path: str | os.PathLike[str], format: SourceFormat | None = None) -> None:
        self._location = Location.of(path)
        if format is not None and format not in FORMATS:
            raise InvalidUse(f"{self._location.path}: expected format= one of {FORMATS}, got {format!r}")
        self._format = format
        self._bytes_per_row: float | None = None  # of the last batch
        self._footers: dict[str, tuple[File, Footer]] = {}
        self._sizes: dict[str, int] | None = None  # of the files to plan, by place; None means all
        self._is_empty = False  # whether a plan found no file: it is logged once

    def plan(self, position: Mapping[str, Any], limit: Limit, now: float) -> Sequence[Split]:
        """Plan the next rows; an empty list if all complete rows of all files are read.

        Raises InvalidUse if the path does not exist, if the names do not show the format, or if a file is shorter than
        what was read of it.
        """
        files = self._location.list()
        if self._sizes is not None:
            files = [file for file in files if file.place in self._sizes]
        if not files:
            if not position and not self._is_empty:
                log.warning("files(%r): there is no file to read yet", self._location.path)
            self._is_empty = True
            return []
        format = self._format or format_of(files)
        if format == "parquet":
            return parquet.plan_parquet(files, SplitRequest(position, limit), self._footer)
        if self._sizes is not None:  # a file that has grown is read as it was then
            files = [_cut_file(file, self._sizes[file.place]) for file in files]
        return line_plan.plan_lines(
            files, SplitRequest(position, limit, now=now), self._row_length(files, position), format
        )

    def is_waiting(self, position: Mapping[str, Any], now: float) -> bool:
        """Return whether a CSV file ends in a quoted field that a writer may be about to finish.

        Raises InvalidUse if it ends in the middle of a line there and has not changed for a while.
        """
        files = self._location.list()
        if not files or (self._format or format_of(files)) != "csv":
            return False
        if self._sizes is not None:
            files = [_cut_file(file, self._sizes[file.place]) for file in files if file.place in self._sizes]
        found = False
        for file in files:
            entry, is_settled = position.get(file.place) or {}, line_plan.is_settled(file, now)
            is_in_line = entry.get("open") == "line" and entry.get("seen") == file.size and not file.is_cut
            if is_in_line and is_settled:
                number = newlines_before(file.path, file.size, entry["offset"]) + 1
                raise InvalidUse(
                    f"{file.path}, line {number}: expected a second quote that closes the field, but the file ends in "
                    "the middle of a line without one. Close the quote and end the file with a newline; or run again "
                    "when the writer has done so."
                )
            found = found or (not is_settled and (is_in_line or line_plan.open_record_offset(file, entry) is not None))
        return found

    def as_of(self, now: float) -> FileSource:
        """Return the same source without files that are added, and bytes that are appended, from now on."""
        made = copy(self)
        made._sizes = {file.place: file.size for file in self._location.list()}
        return made

    def plan_to(self, position: Mapping[str, Any], end: Mapping[str, Any], limit: Limit, now: float) -> Sequence[Split]:
        """Plan the next rows before `end`.

        Raises InvalidUse if a file is gone or shorter than what was read of it.
        """
        wanted = {place for place, until in end.items() if position.get(place) != until}
        files = [file for file in self._location.list() if file.place in wanted]
        gone = sorted(wanted - {file.place for file in files})
        if gone:
            raise InvalidUse(
                f"{self._location.path}: the input no longer reaches back far enough: {len(gone)} of the {len(end)} "
                f"files that were read are gone, the first of them {gone[0]!r}. Put them back."
            )
        if not files:
            return []
        format = self._format or format_of(files)
        if format == "parquet":
            return parquet.plan_parquet(files, SplitRequest(position, limit, end), self._footer)
        return line_plan.plan_lines(
            files, SplitRequest(position, limit, end), self._row_length(files, position), format
        )

    def read(self, split: Split) -> Iterator[Chunk]:
        """Yield the rows of the split. Raises InvalidUse if the file is gone or shorter than the plan saw it."""
        return READERS[split.detail["format"]](split)

    def learned(self, rows: int, bytes: int) -> None:
        """Take note of the rows and bytes of a batch: the next plan estimates the length of a row by them."""
        if rows > 0 and bytes > 0:
            self._bytes_per_row = max(1.0, bytes / rows)

    def _row_length(self, files: Sequence[File], position: Mapping[str, Any]) -> float:
        """Return about how many bytes a row has: as in the last batch, or as in the first unread lines."""
        if self._bytes_per_row is not None:
            return self._bytes_per_row
        for file in files:
            start = line_plan.unread_offset(file, position.get(file.place))
            if start is not None:
                return bytes_per_line(file.path, file.size, start) or FIRST_GUESS
        return FIRST_GUESS

    def _footer(self, file: File) -> Footer:
        known = self._footers.get(file.place)
        if known is None or known[0] != file:
            known = self._footers[file.place] = (file, parquet.read_footer(file.path))
        return known[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_footers": {}, "_sizes": None}  # a task does not plan

    def __repr__(self) -> str:
        return f"files({self._location.path!r}, format={self._format!r})"


def _cut_file(file: File, size: int) -> File:
    """Return the file as it was when it had no more than `size` bytes."""
    return file if file.size <= size else replace(file, size=size, is_cut=True)


def format_of(files: Sequence[File]) -> SourceFormat:
    """Return the format that the names of the files show. Raises InvalidUse if they show none or several.

    >>> format_of([File("a.jsonl", "/data/a.jsonl", 10), File("b.jsonl.gz", "/data/b.jsonl.gz", 10)])
    'jsonl'
    """
    found: dict[SourceFormat, File] = {}
    for file in files:
        extension = os.path.splitext(file.place.removesuffix(".gz"))[1].lower()
        if extension not in EXTENSIONS:
            raise InvalidUse(
                f"{file.path}: expected a name that shows its format ({', '.join(EXTENSIONS)}), got "
                f"{os.path.basename(file.place)!r}. Give it, as in files(path, format='jsonl'), or give a "
                "glob that leaves the file out."
            )
        found.setdefault(EXTENSIONS[extension], file)
    if len(found) > 1:
        one, other = sorted(found.values(), key=lambda file: file.place)[:2]
        raise InvalidUse(
            f"files: expected one format, got {one.path} and {other.path}. Give a glob such as "
            f"'*{os.path.splitext(one.place)[1]}', or make a stream for each format and combine them with union."
        )
    return next(iter(found))
