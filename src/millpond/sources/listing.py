"""Lists the files that a path, a folder or a glob matches now."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from dataclasses import dataclass

from millpond.errors import Incompatible, InvalidUse


@dataclass(frozen=True)
class File:
    """One file as the driver saw it. `place` is its path below the root, which stays the same if the root moves."""

    place: str
    path: str
    size: int
    changed: int = 0  # nanoseconds; with the size it identifies a version of the file
    is_cut: bool = False  # the real file is longer than `size`


def other_format_error(file: File, expected: str, entry: object) -> Incompatible:
    """Return the error for a position that was made by reading the file in another format."""
    return Incompatible(
        f"{file.path}: expected a position of {expected}, got {entry!r}. "
        "The stream was read in another format before: give it a new name, or the old format back."
    )


@dataclass(frozen=True)
class Location:
    """A path as the user gave it, made absolute once, so that a later `chdir` has no effect.

    >>> Location.of("/data/orders/*.jsonl").root
    '/data/orders'
    """

    path: str
    root: str
    pattern: str | None  # relative to the root; None when the path is a file or a folder

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Location:
        text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
        if not isinstance(text, str) or not text:
            raise InvalidUse(f"files(path): expected a file, a folder or a glob, such as 'orders/', got {path!r}")
        if "://" in text:
            raise InvalidUse(
                f"files({text!r}): expected a path on a disk that every worker sees, got a URL. "
                "Mount it, or read it with a streaming Spark DataFrame."
            )
        absolute = os.path.abspath(os.path.expanduser(text))
        # an existing name that contains brackets is not a glob
        if not glob.has_magic(absolute) or os.path.exists(absolute):
            return cls(absolute, absolute, None)
        parts = absolute.split(os.sep)
        plain = next(i for i, part in enumerate(parts) if glob.has_magic(part))
        root = os.sep.join(parts[:plain]) or os.sep
        return cls(absolute, root, os.sep.join(parts[plain:]))

    def list(self) -> list[File]:
        """Return all files that exist now, in the order of their names.

        Raises InvalidUse if the file or folder does not exist; a glob may match no file.
        """
        return sorted(self._find(), key=lambda file: file.place)

    def _find(self) -> Iterator[File]:
        if self.pattern is not None:
            for name in glob.iglob(self.pattern, root_dir=self.root, recursive=True):
                if not any(_is_hidden_name(part) for part in name.split(os.sep)):
                    yield from _stat(name, os.path.join(self.root, name))
        elif os.path.isdir(self.path):
            for name in os.listdir(self.path):
                if not _is_hidden_name(name):
                    yield from _stat(name, os.path.join(self.path, name))
        elif os.path.exists(self.path):
            yield from _stat(os.path.basename(self.path), self.path)
        else:
            raise InvalidUse(
                f"files({self.path!r}): expected a file or a folder, but there is none. "
                "Create it, correct the path, or give a glob, which waits for its first file."
            )


def _is_hidden_name(name: str) -> bool:
    """Spark, Hadoop and our own file sink use such names for files that are not finished."""
    return name.startswith((".", "_"))


def _stat(place: str, path: str) -> Iterator[File]:
    try:
        facts = os.stat(path)
    except FileNotFoundError:
        return  # removed since it was listed
    if not os.path.isfile(path):
        return
    try:
        place.encode()
    except UnicodeEncodeError:
        raise InvalidUse(f"files: expected file names in UTF-8, got {os.fsencode(path)!r}. Rename the file.") from None
    yield File(place, path, facts.st_size, facts.st_mtime_ns)
