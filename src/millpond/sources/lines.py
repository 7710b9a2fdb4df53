"""Complete lines of a file, in blocks, for JSON lines and CSV.

A line counts only if its newline is within the `size` that the plan saw. So no task of this batch reads what a writer
appends meanwhile, and two reads of one split give the same lines.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

from millpond.errors import InvalidUse

BLOCK = 4 << 20
SMALL_BLOCK = 256 << 10  # for a split that is capped at a few rows
OVERSHOOT = 64 << 10  # bytes read at a time past the stop of a split, to finish the line that crosses it
BOM = b"\xef\xbb\xbf"
GZIP = ".gz"  # the name of a file says whether it is gzip


@contextmanager
def open_first_bytes(path: str, size: int) -> Iterator[IO[bytes]]:
    """Open the first `size` bytes of a file, unpacked if its name ends in .gz.

    Raises InvalidUse if the file is gone, is not gzip, or is shorter than `size`, at first or while it is read.
    """
    try:
        raw = _UnshrunkFile(path, size)
    except FileNotFoundError:
        raise InvalidUse(f"{path}: expected a file of {size} bytes, but it is gone. Put it back.") from None
    with raw:
        came = raw.seek(0, io.SEEK_END)
        if came < size:
            raise shrunk_file_error(path, size, came)
        raw.seek(0)
        if not path.endswith(GZIP):
            yield cast(IO[bytes], raw)
            return
        with gzip.GzipFile(fileobj=cast(Any, io.BufferedReader(_FirstBytes(raw, size), BLOCK))) as unpacked:
            try:
                yield cast(IO[bytes], unpacked)
            except (gzip.BadGzipFile, zlib.error) as error:
                raise InvalidUse(
                    f"{path}: expected a gzip file, as its name says, got {error}. Repair or rename it."
                ) from None


def shrunk_file_error(path: str, expected: int, came: int, what: str = "bytes") -> InvalidUse:
    """Return the error for a file that is shorter than what was planned or read of it."""
    return InvalidUse(
        f"{path}: expected at least {expected} {what}, which were read before, but the file has {came}. "
        "A source file may grow and must not shrink or be rewritten: put the old content back, or give "
        "new content a new name."
    )


def blocks(
    file: IO[bytes], start: int, stop: int | None, size: int | None, block: int = BLOCK
) -> Iterator[tuple[bytes, int]]:
    """Yield blocks of the complete lines that begin in [start, stop), without the last newline, and the offset after.

    `start` must be the start of a line and the position of `file`. If `stop` is None, all complete lines are read; if
    `size` is None, up to the end of the stream.
    """
    pieces: list[bytes] = []  # of a line that has not ended yet
    at = done = start
    while (stop is None or done < stop) and (size is None or at < size):
        wanted = block
        if size is not None:
            wanted = min(wanted, size - at)
        if stop is not None:
            wanted = min(wanted, max(stop - at, 0) + OVERSHOOT)
        try:
            data = file.read(wanted)
        except EOFError:  # a gzip stream that is still being written
            return
        if not data:
            return
        end = -1
        if stop is not None and at + len(data) >= stop:
            end = data.find(b"\n", max(stop - 1 - at, 0))
        if end < 0:
            end = data.rfind(b"\n")
        if end < 0:
            pieces.append(data)
        else:
            body = b"".join([*pieces, memoryview(data)[:end]]) if pieces else data[:end]
            pieces = [data[end + 1 :]]
            done = at + end + 1
            yield body, done
        at += len(data)


def newlines_before(path: str, size: int, offset: int) -> int:
    """Return how many lines end before `offset`. Slow: it reads the file from where the last call ended."""
    global _newline_cache
    known, at, count = _newline_cache
    if known != (path, size) or at > offset:
        at = count = 0
    left = offset - at
    with open_first_bytes(path, size) as file:
        file.seek(at)
        while left > 0 and (data := file.read(min(BLOCK, left))):
            count += data.count(b"\n")
            left -= len(data)
    _newline_cache = ((path, size), offset, count)
    return count


_newline_cache = (("", 0), 0, 0)  # a file, an offset in it, and the number of lines before the offset


def bytes_per_line(path: str, size: int, offset: int) -> float | None:
    """Return the mean length of the first lines after an offset; None if no line ends there."""
    try:
        with open_first_bytes(path, size) as file:
            if not path.endswith(GZIP):  # seeking in a gzip file would unpack all before it
                file.seek(offset)
            data = file.read(OVERSHOOT)
    except (InvalidUse, EOFError):  # the task that reads the file reports what is wrong
        return None
    end = data.rfind(b"\n") + 1
    return end / data.count(b"\n") if end else None


class _UnshrunkFile(io.FileIO):
    """A file that had `size` bytes when it was planned; reading raises InvalidUse if it has become shorter.

    Otherwise a file that is truncated meanwhile would look like one that ends in the middle of a line.
    """

    def __init__(self, path: str, size: int) -> None:
        super().__init__(path, "rb")
        self._path, self._size = path, size

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size)
        if not data and size != 0:
            self._check()
        return data

    def readinto(self, buffer: Any, /) -> int:
        count = super().readinto(buffer)
        if not count and len(buffer):
            self._check()
        return count

    def _check(self) -> None:
        if self.tell() < self._size:
            raise shrunk_file_error(self._path, self._size, self.seek(0, io.SEEK_END))


class _FirstBytes(io.RawIOBase):
    """The first bytes of a file that may be growing."""

    def __init__(self, raw: io.FileIO, size: int) -> None:
        self._raw, self._size = raw, size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._raw.seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        left = max(self._size - self._raw.tell(), 0)
        return self._raw.readinto(memoryview(buffer)[:left]) or 0
