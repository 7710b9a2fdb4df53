"""Where rows come from. Each function makes a small object that plans on the driver and reads in tasks.

Anyone can write another: a class with the two methods of `millpond.sources.base.Source`, held to
`millpond.testing.source_suite`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from millpond.sources.files import FileSource, Format
from millpond.sources.rate import RateSource
from millpond.sources.row_list import RowSource

__all__ = ["files", "rate", "rows"]


def __dir__() -> list[str]:
    return __all__


def files(path: str | os.PathLike[str], format: Format | None = None) -> FileSource:
    """The rows of a file, of a folder, or of what a glob matches, which may all keep growing.

    `format` is `"jsonl"`, `"csv"` or `"parquet"`; without it the names of the files tell (.jsonl, .ndjson,
    .csv, .parquet). A folder means the files in it, not its subfolders; `**` in a glob means these too. Names
    that begin with `.` or `_` are left out. Files are read in the order of their names, a new one when it is
    there, and appended lines when their newline is there: a half-written last line waits. What is there must
    stay. A file named .gz is unpacked, and read by one task. Every worker must see the files under the same
    path.

    - JSON lines: any JSON value per line; blank lines are skipped.
    - CSV: each file's first line names the fields; all values are strings, and `type=` on the stream converts
      them. A field holds up to 131,072 characters. A quote that is not closed makes a bad row of its line.
    - Parquet: Arrow columns, until a function needs Python rows.

    >>> import pathlib, tempfile
    >>> from millpond import sources
    >>> from millpond.sources.base import Limit
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.jsonl").write_text('{"n": 1}\\n{"n": 2}\\n{"n":')
    >>> source = sources.files(folder)
    >>> [split] = source.plan({}, Limit(rows=100, bytes=1 << 20), now=0.0)
    >>> chunk = list(source.read(split))[0]
    >>> chunk.rows.lines, chunk.position
    ([b'{"n": 1}', b'{"n": 2}'], {'offset': 18})
    """
    return FileSource(path, format)


def rows(rows: Iterable[Any]) -> RowSource:
    """The rows of a list, of any type. Rows appended to the list later are read later.

    A restart goes on after the rows that were read: give the same list, perhaps with more at its end.

    >>> from millpond import sources
    >>> from millpond.sources.base import Limit
    >>> source = sources.rows([{"n": 1}, {"n": 2}, {"n": 3}])
    >>> [split] = source.plan({"0": 1}, Limit(rows=100, bytes=1 << 20), now=0.0)
    >>> [chunk.rows for chunk in source.read(split)]
    [[{'n': 2}, {'n': 3}]]
    """
    return RowSource(rows)


def rate(rows_per_second: float, start: datetime | float | None = None) -> RateSource:
    """Rows `{"timestamp": …, "value": 0, 1, 2, …}` at a steady pace, from `start` or the first batch on.

    Row n bears the time `start + n / rows_per_second`, however late it is read. Rows that fell due while
    the app was down come when it is up again.

    >>> from millpond import sources
    >>> from millpond.sources.base import Limit
    >>> source = sources.rate(2, start=1_700_000_000.0)
    >>> [split] = source.plan({}, Limit(rows=100, bytes=1 << 20), now=1_700_000_001.0)
    >>> [chunk] = source.read(split)
    >>> for row in chunk.rows.to_pylist():
    ...     print(row["timestamp"].isoformat(), row["value"])
    2023-11-14T22:13:20+00:00 0
    2023-11-14T22:13:20.500000+00:00 1
    """
    return RateSource(rows_per_second, start)
