"""Complete lines of a file, in blocks: what JSON lines and CSV have in common.

A line counts only when its newline stands below the `size` that the plan saw. What a writer appends
while tasks read is therefore nobody's in this batch, and two reads of one split cannot differ.
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
OVERSHOOT = 64 << 10  # how far past its stop a split reads at a time, to finish the line that crosses it
BOM = b"\xef\xbb\xbf"


def compressed(path: str) -> bool:
    return path.endswith(".gz")


@contextmanager
def opened(path: str, size: int) -> Iterator[IO[bytes]]:
    """The file's first `size` bytes, unpacked where its name ends in .gz.

    Raises InvalidUse when the file is gone, smaller than the plan saw it, also while it is read, or no gzip.
    """
    try:
        raw = _Begun(path, size)
    except FileNotFoundError:
        raise InvalidUse(f"{path}: expected a file of {size} bytes, and it is gone. Put it back.") from None
    with raw:
        came = raw.seek(0, io.SEEK_END)
        if came < size:
            raise shrank(path, size, came)
        raw.seek(0)
        if not compressed(path):
            yield cast(IO[bytes], raw)
            return
        with gzip.GzipFile(fileobj=cast(Any, io.BufferedReader(_Head(raw, size), BLOCK))) as unpacked:
            try:
                yield cast(IO[bytes], unpacked)
            except (gzip.BadGzipFile, zlib.error) as error:
                raise InvalidUse(f"{path}: expected gzip, as the name says, got {error}. Mend or rename it.") from None


def shrank(path: str, expected: int, came: int, what: str = "bytes") -> InvalidUse:
    return InvalidUse(
        f"{path}: expected at least {expected} {what}, which were read before, and the file holds {came}. "
        "A source file may grow and must not shrink or be rewritten: put the old content back, or give "
        "new content a new name."
    )


def blocks(
    file: IO[bytes], start: int, stop: int | None, size: int | None, block: int = BLOCK
) -> Iterator[tuple[bytes, int]]:
    """The complete lines that begin in [start, stop), without the last newline, and the offset after them.

    `start` must be the start of a line and where the file stands. Without a `stop` all complete lines
    come; without a `size` the end of the stream is the end.
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


def first_line_from(file: IO[bytes], offset: int, base: int, size: int) -> int:
    """Where the first line begins at or after `offset`, or, if none does, where the last one ends.

    `base` is an offset at or before `offset` that is known to be the start of a line. The two splits
    that meet at `offset` both ask this and get one answer, so that no line is read twice or by none.
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


def newlines_before(path: str, size: int, offset: int) -> int:
    """How many lines end before `offset`. Reads the file from where it was last asked: asked only for bad rows."""
    global _counted
    known, at, count = _counted
    if known != (path, size) or at > offset:
        at = count = 0
    left = offset - at
    with opened(path, size) as file:
        file.seek(at)
        while left > 0 and (data := file.read(min(BLOCK, left))):
            count += data.count(b"\n")
            left -= len(data)
    _counted = ((path, size), offset, count)
    return count


_counted = (("", 0), 0, 0)  # a file, an offset in it, and the lines before that


def bytes_per_line(path: str, size: int, offset: int) -> float | None:
    """How long the lines are that follow an offset, judged by a few of them; None if no line ends there."""
    try:
        with opened(path, size) as file:
            if not compressed(path):  # where to go on in a gzip file is found only by unpacking all before it
                file.seek(offset)
            data = file.read(OVERSHOOT)
    except (InvalidUse, EOFError):  # whoever reads the file says what is wrong with it
        return None
    end = data.rfind(b"\n") + 1
    return end / data.count(b"\n") if end else None


class _Begun(io.FileIO):
    """A file that held `size` bytes when its reading was planned, and must hold them while it is read.

    A file that somebody truncates meanwhile would otherwise look like one that ends in the middle of a line.
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
            raise shrank(self._path, self._size, self.seek(0, io.SEEK_END))


class _Head(io.RawIOBase):
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
