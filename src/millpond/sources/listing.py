"""Which files a path, a folder or a glob stands for at this moment."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from dataclasses import dataclass

from millpond.errors import InvalidUse


@dataclass(frozen=True)
class File:
    """One file as the driver saw it: `place` is its path below the root, the same when the root moves."""

    place: str
    path: str
    size: int
    changed: int = 0  # nanoseconds; together with the size it tells one version of a file from another
    is_cut: bool = False  # it goes on beyond `size`


@dataclass(frozen=True)
class Location:
    """A path as the user gave it, made absolute once so that a later change of folder means nothing.

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
        # a name that really holds brackets is a name, not a glob
        if not glob.has_magic(absolute) or os.path.exists(absolute):
            return cls(absolute, absolute, None)
        parts = absolute.split(os.sep)
        plain = next(i for i, part in enumerate(parts) if glob.has_magic(part))
        root = os.sep.join(parts[:plain]) or os.sep
        return cls(absolute, root, os.sep.join(parts[plain:]))

    def list(self) -> list[File]:
        """All files that are there now, in the order of their names.

        Raises InvalidUse when a file or folder is missing; a glob that matches nothing is empty.
        """
        return sorted(self._files(), key=lambda file: file.place)

    def _files(self) -> Iterator[File]:
        if self.pattern is not None:
            for name in glob.iglob(self.pattern, root_dir=self.root, recursive=True):
                if not any(_hidden(part) for part in name.split(os.sep)):
                    yield from _file(name, os.path.join(self.root, name))
        elif os.path.isdir(self.path):
            for name in os.listdir(self.path):
                if not _hidden(name):
                    yield from _file(name, os.path.join(self.path, name))
        elif os.path.exists(self.path):
            yield from _file(os.path.basename(self.path), self.path)
        else:
            raise InvalidUse(
                f"files({self.path!r}): expected a file or a folder, and nothing is there. "
                "Make it, mend the path, or give a glob, which waits for its first file."
            )


def _hidden(name: str) -> bool:
    """Spark, Hadoop and our own file sink put what is not finished under such names."""
    return name.startswith((".", "_"))


def _file(place: str, path: str) -> Iterator[File]:
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
