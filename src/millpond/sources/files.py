"""Files in a folder that may keep growing, as a source."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Literal, get_args

from millpond.errors import InvalidUse
from millpond.sources import csv, jsonl, parquet
from millpond.sources import line_plan as text
from millpond.sources.base import Chunk, Limit, Split
from millpond.sources.lines import bytes_per_line, newlines_before
from millpond.sources.listing import File, Location
from millpond.sources.parquet import Footer

Format = Literal["jsonl", "csv", "parquet"]

FORMATS: tuple[Format, ...] = get_args(Format)
EXTENSIONS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
}
READERS: dict[Format, Callable[[Split], Iterator[Chunk]]] = {
    "jsonl": jsonl.read,
    "csv": csv.read,
    "parquet": parquet.read,
}
FIRST_GUESS = 100.0  # bytes per row, where not even one line is complete


class FileSource:
    """Made by `millpond.sources.files`; the path's files in the order of their names.

    Positions name files by their path below the folder, so the folder may be moved as a whole. Files may
    be added and may grow; the bytes that are there must stay. Planning lists the folder, and for Parquet
    reads footers. Of other files it reads a few lines, to know how long rows are, until a batch has told.

    >>> from millpond.sources import files
    >>> files("/data/orders/", format="jsonl")
    files('/data/orders', format='jsonl')
    """

    def __init__(self, path: str | os.PathLike[str], format: Format | None = None) -> None:
        self._location = Location.of(path)
        if format is not None and format not in FORMATS:
            raise InvalidUse(f"{self._location.path}: expected format= one of {FORMATS}, got {format!r}")
        self._format = format
        self._bytes_per_row: float | None = None  # of the last batch
        self._footers: dict[str, tuple[File, Footer]] = {}
        self._sizes: dict[str, int] | None = None  # of the files to plan, by place; None means all

    def plan(self, position: Mapping[str, Any], limit: Limit, now: float) -> Sequence[Split]:
        """What to read next; nothing when all complete rows of all files are read.

        Raises InvalidUse when the path is missing, when the format is not plain from the names, or when a
        file holds less than was read of it.
        """
        files = self._location.list()
        if self._sizes is not None:
            files = [file for file in files if file.place in self._sizes]
        if not files:
            return []
        format = self._format or format_of(files)
        if format == "parquet":
            return parquet.plan(files, position, limit, self._footer)
        if self._sizes is not None:  # the first bytes of a file that has grown are a file, too
            files = [_first_bytes(file, self._sizes[file.place]) for file in files]
        return text.plan(files, position, limit, self._row_length(files, position), format, now=now)

    def is_waiting(self, position: Mapping[str, Any], now: float) -> bool:
        """Whether a CSV file ends in a quoted field that a writer may be about to finish.

        Raises InvalidUse when it ends in the middle of a line there, and nobody seems to be writing any more.
        """
        files = self._location.list()
        if not files or (self._format or format_of(files)) != "csv":
            return False
        if self._sizes is not None:
            files = [_first_bytes(file, self._sizes[file.place]) for file in files if file.place in self._sizes]
        found = False
        for file in files:
            entry, is_settled = position.get(file.place) or {}, text.is_settled(file, now)
            is_in_line = entry.get("open") == "line" and entry.get("seen") == file.size and not file.is_cut
            if is_in_line and is_settled:
                number = newlines_before(file.path, file.size, entry["offset"]) + 1
                raise InvalidUse(
                    f"{file.path}, line {number}: expected a second quote that closes the field, and the file ends in "
                    "the middle of a line without one. Close the quote and end the file with a newline; or run again "
                    "when the writer has done so."
                )
            found = found or (not is_settled and (is_in_line or text.open_at(file, entry) is not None))
        return found

    def as_of(self, now: float) -> FileSource:
        """The same files as they are now: without those that are added, and what is appended, from now on."""
        made = copy(self)
        made._sizes = {file.place: file.size for file in self._location.list()}
        return made

    def plan_to(self, position: Mapping[str, Any], end: Mapping[str, Any], limit: Limit, now: float) -> Sequence[Split]:
        """What to read next of the rows before `end`; nothing when they are read.

        Raises InvalidUse when a file is gone, or holds less than was read of it.
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
            return parquet.plan(files, position, limit, self._footer, end)
        return text.plan(files, position, limit, self._row_length(files, position), format, end=end)

    def read(self, split: Split) -> Iterator[Chunk]:
        """The rows of the split. Raises InvalidUse when the file is gone, or shorter than the plan saw it."""
        return READERS[split.detail["format"]](split)

    def learned(self, rows: int, bytes: int) -> None:
        """After a batch: what was read. The next plan takes its measure of a row from it."""
        if rows > 0 and bytes > 0:
            self._bytes_per_row = max(1.0, bytes / rows)

    def _row_length(self, files: Sequence[File], position: Mapping[str, Any]) -> float:
        """Bytes per row, about: as in the last batch, or else as in the first lines that are not read yet."""
        if self._bytes_per_row is not None:
            return self._bytes_per_row
        for file in files:
            start = text.unread(file, position.get(file.place))
            if start is not None:
                return bytes_per_line(file.path, file.size, start) or FIRST_GUESS
        return FIRST_GUESS

    def _footer(self, file: File) -> Footer:
        known = self._footers.get(file.place)
        if known is None or known[0] != file:
            known = self._footers[file.place] = (file, parquet.read_footer(file.path))
        return known[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_footers": {}, "_sizes": None}  # what the driver knows is of no use to a task

    def __repr__(self) -> str:
        return f"files({self._location.path!r}, format={self._format!r})"


def _first_bytes(file: File, size: int) -> File:
    """The file as it was when it had no more than `size` bytes."""
    return file if file.size <= size else replace(file, size=size, is_cut=True)


def format_of(files: Sequence[File]) -> Format:
    """The one format that the names of the files tell. Raises InvalidUse when they tell none, or several.

    >>> format_of([File("a.jsonl", "/data/a.jsonl", 10), File("b.jsonl.gz", "/data/b.jsonl.gz", 10)])
    'jsonl'
    """
    found: dict[Format, File] = {}
    for file in files:
        extension = os.path.splitext(file.place.removesuffix(".gz"))[1].lower()
        if extension not in EXTENSIONS:
            raise InvalidUse(
                f"{file.path}: expected a name that tells its format ({', '.join(EXTENSIONS)}), got "
                f"{os.path.basename(file.place)!r}. Say it, as in files(path, format='jsonl'), or give a "
                "glob that leaves the file out."
            )
        found.setdefault(EXTENSIONS[extension], file)
    if len(found) > 1:
        one, other = sorted(found.values(), key=lambda file: file.place)[:2]
        raise InvalidUse(
            f"files: expected one format, got {one.path} and {other.path}. Give a glob such as "
            f"'*{os.path.splitext(one.place)[1]}', or two streams."
        )
    return next(iter(found))
