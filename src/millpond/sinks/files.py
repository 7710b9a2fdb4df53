"""A folder that gets one file per delivery, as a sink."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import Any, Literal, get_args
from urllib.parse import quote

import pyarrow.parquet as pq

from millpond.clock import new_id
from millpond.errors import InvalidUse, MillpondError, Unavailable
from millpond.flow import Delivery
from millpond.sinks import columns, text

Format = Literal["jsonl", "parquet"]

FORMATS: tuple[Format, ...] = get_args(Format)


class FileSink:
    """Made by `millpond.sinks.files`; holds each delivery exactly once, through any crash.

    A delivery is written under a hidden name of its own, synced, and renamed to the name that its id gives,
    so a file is there whole or not at all, and a reader never sees half of one. A delivery whose file is
    there already is not written again. An empty delivery leaves no file. A process killed while it writes
    leaves its hidden file behind, which no reader of folders looks at.

    >>> import tempfile
    >>> from millpond.sinks import files
    >>> files(tempfile.mkdtemp(), format="parquet").where
    'workers'
    """

    where: Literal["driver", "workers"] = "workers"

    def __init__(self, path: str | os.PathLike[str], format: Format = "jsonl") -> None:
        given = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
        if not isinstance(given, str) or not given:
            raise InvalidUse(f"sinks.files(path): expected a folder, such as 'out/', got {path!r}")
        if "://" in given:
            raise InvalidUse(
                f"sinks.files({given!r}): expected a folder on a disk that every worker sees, got a URL. "
                "Mount it, or write it with a Spark DataFrame."
            )
        if format not in FORMATS:
            raise InvalidUse(f"sinks.files({given!r}): expected format= one of {FORMATS}, got {format!r}")
        self._folder = os.path.abspath(os.path.expanduser(given))
        self._format = format

    def deliver(self, rows: list[Any], delivery: Delivery) -> None:
        """Put the rows into the delivery's file; on return they survive a power loss.

        Raises Unavailable when the disk is full, and InvalidUse when the folder cannot be written or a row
        has no place in the format.
        """
        if not rows:
            return
        name = file_name(delivery, self._format)
        try:
            self._write(rows, name)
        except OSError as error:
            raise refusal(f"sink {delivery.sink!r}, {os.path.join(self._folder, name)}", error) from error

    def rollback(self, last: Delivery) -> None:
        """Remove the files of this sink's deliveries after a batch; `last` names the app's line and the batch."""
        tail = f"-{last.incarnation}-{quote(last.sink, safe='')}.{self._format}"
        if not os.path.isdir(self._folder):
            return
        for name in os.listdir(self._folder):
            if name.endswith(tail) and name[:20].isdigit() and int(name[:20]) > last.batch:
                os.unlink(os.path.join(self._folder, name))
        _sync(self._folder)

    def _write(self, rows: list[Any], name: str) -> None:
        _make_folder(self._folder)
        target = os.path.join(self._folder, name)
        # The rename comes after the sync of the content: what bears the name is whole.
        if not os.path.exists(target):
            hidden = os.path.join(self._folder, f".{name}.{new_id()}")
            try:
                if self._format == "jsonl":
                    data = text.lines(rows)
                    with open(hidden, "wb") as file:
                        file.write(data)
                else:
                    pq.write_table(columns.table(rows), hidden)
                _sync(hidden)
                os.replace(hidden, target)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(hidden)
        _sync(self._folder)  # also for a file that was there: who renamed it may have died before this

    def __repr__(self) -> str:
        return f"files({self._folder!r}, format={self._format!r})"


def file_name(delivery: Delivery, format: str) -> str:
    """The name that only this delivery has; names sort by batch, then by partition.

    >>> file_name(Delivery("orders", "5e1f", "totals", 42, 3), "jsonl")
    '00000000000000000042-00003-5e1f-totals.jsonl'
    """
    # the incarnation is the app's own, so the app's name adds nothing; two sinks may share a folder
    sink = quote(delivery.sink, safe="")
    return f"{delivery.batch:020d}-{delivery.partition:05d}-{delivery.incarnation}-{sink}.{format}"


def refusal(where: str, error: OSError) -> MillpondError:
    """What to tell of a write that the disk refused: to wait for room, or to mend the folder.

    >>> refusal("sink 'totals', /out", OSError(errno.ENOSPC, "No space left on device"))
    Unavailable("sink 'totals', /out: the disk is full. Make room; nothing is lost.")
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Unavailable(f"{where}: the disk is full. Make room; nothing is lost.")
    return InvalidUse(f"{where}: expected a folder that can be written, got {error}. Mend the path or its rights.")


def _make_folder(path: str) -> None:
    """The folder and those above it, each known to its parent on disk."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    _make_folder(parent)
    with suppress(FileExistsError):
        os.mkdir(path)
    _sync(parent)


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
