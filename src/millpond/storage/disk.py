"""Storage in a folder of this machine: every put is on the disk when it returns (see `durable`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from operator import itemgetter
from typing import Any

from millpond.storage.base import Item, check_path, check_paths, check_range, is_path
from millpond.storage.durable import DurableWriter, as_millpond_error

_NOT_THERE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


class LocalStorage:
    """A folder, made by the first put; a relative path becomes absolute at once.

    `put_new` needs hard links or renames that replace nothing; where the file system has neither, a reader can see an
    empty file for a moment (see `DurableWriter`). `hard_links=False` does not try hard links. `label` is what error
    messages call the folder.

    >>> import tempfile
    >>> from millpond.storage import LocalStorage
    >>> storage = LocalStorage(tempfile.mkdtemp())
    >>> storage.put_new("orders/ledger/1.json", b"{}")
    True
    >>> [item.path for item in storage.list("orders")]
    ['orders/ledger/1.json']
    """

    def __init__(self, root: str | os.PathLike[str], *, hard_links: bool = True, label: str = "state_dir") -> None:
        self.root = os.path.abspath(os.path.expanduser(root))
        self.url = self.root
        self._label = label
        self._writer = DurableWriter(self.root, label=self._where, hard_links=hard_links)

    def __repr__(self) -> str:
        return f"LocalStorage({self.root!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen_local, (self.root, self._label)

    def get(self, path: str) -> bytes | None:
        file = self._file(path)
        try:
            with open(file, "rb", buffering=0) as opened:
                return opened.readall()
        except _NOT_THERE:
            return None
        except OSError as error:
            raise as_millpond_error(self._where, "read", error) from error

    def get_range(self, path: str, start: int, length: int) -> bytes | None:
        file = self._file(path)
        if start < 0 or length < 0:
            check_range(start, length)  # which raises
        try:
            with open(file, "rb") as opened:
                size = os.fstat(opened.fileno()).st_size
                opened.seek(start)
                # Python reserves what is asked for, so never ask for more than there is.
                return opened.read(max(0, min(length, size - start)))
        except _NOT_THERE:
            return None
        except OSError as error:
            raise as_millpond_error(self._where, "read", error) from error

    def put(self, path: str, data: bytes | memoryview) -> None:
        self._writer.replace(self._file(path), data)

    def put_new(self, path: str, data: bytes | memoryview) -> bool:
        return self._writer.create(self._file(path), data)

    def list(self, prefix: str, after: str | None = None) -> Iterator[Item]:
        self._folder(prefix)  # both arguments are checked now, not when the first file is asked for
        if after is not None:
            self._file(after)
        return self._walk(f"{prefix}/" if prefix else "", after)

    def delete(self, paths: Iterable[str]) -> None:
        for path in check_paths(paths):
            file = os.path.join(self.root, path)
            try:
                os.unlink(file)
            except _NOT_THERE:
                pass
            except OSError as error:
                if not os.path.isdir(file):  # macOS answers EPERM to the deletion of a folder
                    raise as_millpond_error(self._where, "deleted", error) from error

    def sweep(self, prefix: str, is_over: Callable[[str], bool]) -> None:
        """Remove the empty folders right below the folder `prefix` for whose path `is_over(path)` is true.

        A process that is about to put a file into one of them makes the folder again.
        """
        folder = self._folder(prefix)
        with suppress(OSError):  # a folder that stays does no harm
            for name in os.listdir(folder):
                path = f"{prefix}/{name}"
                if is_over(path):
                    with suppress(OSError):  # it is not empty, or it is a file
                        os.rmdir(os.path.join(self.root, path))

    @property
    def _where(self) -> str:
        return f"{self._label} {self.url}"

    def _file(self, path: str) -> str:
        if not isinstance(path, str) or not is_path(path):
            check_path(path)
        return os.path.join(self.root, path)

    def _folder(self, prefix: str) -> str:
        return self._file(prefix) if prefix != "" else self.root

    def _walk(self, folder: str, after: str | None) -> Iterator[Item]:
        """Yield the files below `folder` ("" or ending in "/") after the path `after`, reading a folder at a time."""
        found = []
        try:
            with os.scandir(os.path.join(self.root, folder)) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    # With its "/", a folder sorts where its files do.
                    is_folder = entry.is_dir()
                    path = f"{folder}{entry.name}/" if is_folder else f"{folder}{entry.name}"
                    if after is None or path > after or (is_folder and after.startswith(path)):
                        found.append((path, is_folder, entry))
        except _NOT_THERE:
            return
        except OSError as error:
            raise as_millpond_error(self._where, "listed", error) from error
        for path, is_folder, entry in sorted(found, key=itemgetter(0)):
            if is_folder:
                yield from self._walk(path, after)
                continue
            try:
                size = entry.stat().st_size
            except FileNotFoundError:  # deleted since the folder was read
                continue
            except OSError as error:
                raise as_millpond_error(self._where, "listed", error) from error
            yield Item(path, size)


def _reopen_local(root: str, label: str) -> LocalStorage:
    return LocalStorage(root, label=label)
