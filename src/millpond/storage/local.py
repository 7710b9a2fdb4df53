"""Storage in a folder of this machine: every put is on the disk when it returns.

A put writes a hidden file beside the final one, syncs it, moves it into place and syncs the folder; so
a crash at any instant leaves the old file or the new one, and at worst a hidden `.tmp-…` that nobody
lists and that may be deleted by hand while no writer runs.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from operator import itemgetter
from typing import Any

from millpond.clock import new_id
from millpond.storage.base import (
    Item,
    as_view,
    check_listing,
    check_path,
    check_paths,
    check_range,
)
from millpond.storage.durable import os_trouble

_NOT_THERE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_NO_HARD_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK}
_NO_FOLDER_SYNC = {errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}


class LocalStorage:
    """A folder, made on the first put; a relative path becomes absolute at once.

    Put-if-absent is a hard link, which either appears whole or fails. A file system that has none
    (FAT, some FUSE and SMB mounts) is noticed, and an empty file is made there first, exclusively, and
    then replaced by the full one. Still one writer wins, but a reader can meet the empty file, and a
    crash in between leaves it behind. `hard_links=False` asks for that from the start. `label` is what error messages
    call the folder.

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
        self._hard_links, self._label = hard_links, label
        self._settled: set[str] = set()  # folders whose names this process has synced in their parents

    def __repr__(self) -> str:
        return f"LocalStorage({self.root!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.root, self._label)

    def get(self, path: str) -> bytes | None:
        file = self._file(path)
        try:
            with open(file, "rb", buffering=0) as opened:
                return opened.readall()
        except _NOT_THERE:
            return None
        except OSError as error:
            raise os_trouble(self._where, "read", error) from error

    def get_range(self, path: str, start: int, length: int) -> bytes | None:
        file = self._file(path)
        check_range(start, length)
        try:
            with open(file, "rb") as opened:
                size = os.fstat(opened.fileno()).st_size
                opened.seek(start)
                # Python reserves what is asked for, so never ask for more than there is.
                return opened.read(max(0, min(length, size - start)))
        except _NOT_THERE:
            return None
        except OSError as error:
            raise os_trouble(self._where, "read", error) from error

    def put(self, path: str, data: bytes | memoryview) -> None:
        with self._staged(path, data) as (temporary, file):
            os.replace(temporary, file)

    def put_new(self, path: str, data: bytes | memoryview) -> bool:
        with self._staged(path, data) as (temporary, file):
            try:
                self._link(temporary, file)
                created = True
            except FileExistsError:
                if os.path.isdir(file):
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), file) from None
                created = False
            with suppress(FileNotFoundError):
                os.unlink(temporary)
        return created

    def list(self, prefix: str, after: str | None = None) -> Iterator[Item]:
        check_listing(prefix, after)
        return self._walk(f"{prefix}/" if prefix else "", after)

    def delete(self, paths: Iterable[str]) -> None:
        for path in check_paths(paths):
            file = os.path.join(self.root, path)
            try:
                os.unlink(file)
            except _NOT_THERE:
                pass
            except OSError as error:
                if not os.path.isdir(file):  # macOS calls the deletion of a folder forbidden
                    raise os_trouble(self._where, "deleted", error) from error

    def sweep(self, prefix: str, is_over: Callable[[str], bool]) -> None:
        """Remove the folders right below the folder `prefix` that are empty, of those that are over.

        Who is about to put something into one of them makes it again.
        """
        check_listing(prefix, None)
        with suppress(OSError):  # what stays is in nobody's way
            for name in os.listdir(os.path.join(self.root, prefix)):
                path = f"{prefix}/{name}"
                if is_over(path):
                    with suppress(OSError):  # it is not empty, or no folder
                        os.rmdir(os.path.join(self.root, path))

    @property
    def _where(self) -> str:
        return f"{self._label} {self.url}"

    def _file(self, path: str) -> str:
        return os.path.join(self.root, check_path(path))

    def _walk(self, folder: str, after: str | None) -> Iterator[Item]:
        """The files below `folder` ("" or ending in "/") behind `after`, one folder in memory at a time."""
        found = []
        try:
            with os.scandir(os.path.join(self.root, folder)) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    # With its "/", a folder sorts among its neighbours just where its files do.
                    is_folder = entry.is_dir()
                    path = f"{folder}{entry.name}/" if is_folder else f"{folder}{entry.name}"
                    if after is None or path > after or (is_folder and after.startswith(path)):
                        found.append((path, is_folder, entry))
        except _NOT_THERE:
            return
        except OSError as error:
            raise os_trouble(self._where, "listed", error) from error
        for path, is_folder, entry in sorted(found, key=itemgetter(0)):
            if is_folder:
                yield from self._walk(path, after)
                continue
            try:
                size = entry.stat().st_size
            except FileNotFoundError:  # deleted since the folder was read
                continue
            except OSError as error:
                raise os_trouble(self._where, "listed", error) from error
            yield Item(path, size)

    @contextmanager
    def _staged(self, path: str, data: bytes | memoryview) -> Iterator[tuple[str, str]]:
        """The data, whole and synced, under a hidden name beside the final one, for the caller to move into
        place. The folder is synced after that; a failure removes the hidden file."""
        file, view = self._file(path), as_view(data)
        folder = os.path.dirname(file)
        temporary = os.path.join(folder, f".tmp-{new_id()}")
        try:
            if folder not in self._settled:
                self._settle(folder)
            try:
                _write(temporary, view)
            except FileNotFoundError:  # somebody removed the folder since we settled it
                self._settled.clear()
                self._settle(folder)
                _write(temporary, view)
            yield temporary, file
            _sync_folder(folder)
        except BaseException as error:
            with suppress(OSError):
                os.unlink(temporary)
            if isinstance(error, OSError):
                raise os_trouble(self._where, "written", error) from error
            raise

    def _link(self, temporary: str, file: str) -> None:
        """Give the staged file its name; FileExistsError if the name is taken."""
        if self._hard_links:
            try:
                return os.link(temporary, file)
            except OSError as error:
                if error.errno not in _NO_HARD_LINKS:
                    raise
                self._hard_links = False
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        try:
            os.replace(temporary, file)
        except BaseException:
            os.unlink(file)
            raise

    def _settle(self, folder: str) -> None:
        """Make the folder, and see to it that a power loss cannot take it away.

        A folder that is there already may have been made a moment ago by someone who has not synced its
        name yet, or never will: so this process syncs the names of all folders up to the root, once.
        """
        if folder in self._settled:
            return
        ours = folder == self.root or folder.startswith(os.path.join(self.root, ""))
        parent = os.path.dirname(folder)
        if parent != folder and (ours or not os.path.isdir(folder)):
            self._settle(parent)
            made = _make(folder)
            try:
                _sync_folder(parent)
            except PermissionError:  # a root that was there, below a folder that is not ours to open
                if made:
                    raise
        self._settled.add(folder)


def _reopened(root: str, label: str) -> LocalStorage:
    return LocalStorage(root, label=label)


def _make(folder: str) -> bool:
    try:
        os.mkdir(folder)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder) from None
        return False
    return True


def _write(file: str, view: memoryview) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
        _sync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _sync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:  # some network mounts keep folders in step by themselves
            raise
    finally:
        os.close(descriptor)


# On macOS fsync leaves the data in the drive's own cache; this does not.
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


def _sync(descriptor: int) -> None:
    if _FULL_SYNC is not None:
        with suppress(OSError):  # not every file system has it
            fcntl.fcntl(descriptor, _FULL_SYNC)
            return
    os.fsync(descriptor)
