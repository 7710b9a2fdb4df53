"""Writes files that survive a power loss, and turns errors of the operating system into ours.

A write puts the data into a hidden file beside the final one, syncs it, moves it into place and syncs the folder. A
crash at any instant leaves the old file or the new one, and at worst a hidden `.tmp-…`. Listings leave hidden files
out; they may be deleted by hand while no writer runs.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Literal

from millpond.clock import new_id
from millpond.errors import InvalidUse, MillpondError, Unavailable
from millpond.storage.base import as_view
from millpond.storage.exclusive_rename import UNSUPPORTED, rename_exclusively

_NO_HARD_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK}
_NO_FOLDER_SYNC = {errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}


class DurableWriter:
    """Writes files below the folder `root`, which is made with the first of them.

    When `replace` or `create` returns, the file survives a power loss. `create` uses a hard link, which appears whole
    or fails. Some file systems have none (FAT, some FUSE and SMB mounts): there it uses a rename that replaces nothing,
    which does the same. `hard_links=False` does that from the start. Where that fails, too (some FUSE mounts), it makes
    an empty file exclusively and replaces it by the full one: still one writer wins, but a reader can see the empty
    file, and a crash in between leaves it. `label` is how error messages begin.

    >>> import os, tempfile
    >>> from millpond.storage.durable import DurableWriter
    >>> folder = tempfile.mkdtemp()
    >>> writer = DurableWriter(folder, label=f"state_dir {folder}")
    >>> writer.create(os.path.join(folder, "a"), b"one")
    True
    >>> writer.create(os.path.join(folder, "a"), b"two")
    False
    >>> writer.replace(os.path.join(folder, "a"), b"two")
    >>> os.listdir(folder)
    ['a']
    """

    def __init__(self, root: str, *, label: str, hard_links: bool = True) -> None:
        self._root, self._label = root, label
        self._hard_links, self._exclusive_renames = hard_links, True  # False when the file system refuses
        self._id, self._numbers = new_id(), count()  # of the hidden files that it writes
        self._durable_folders: set[str] = set()  # whose names this process has synced in their parents

    def replace(self, file: str, data: bytes | memoryview) -> None:
        """Create the file or replace it, whole or not at all."""
        with self._stage(file, data) as temporary:
            os.replace(temporary, file)

    def create(self, file: str, data: bytes | memoryview) -> bool:
        """Create the file, or return False if there is one. In both cases the file is durable on return."""
        with self._stage(file, data) as temporary:
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

    @contextmanager
    def _stage(self, file: str, data: bytes | memoryview) -> Iterator[str]:
        """Write the data to a synced hidden file, which the caller moves into place; then sync the folder.

        The hidden file is beside `file`. A failure removes the hidden file.
        """
        folder = os.path.dirname(file)
        # The process is part of the name because a fork has the same id and the same numbers.
        temporary = os.path.join(folder, f".tmp-{self._id}-{os.getpid()}-{next(self._numbers)}")
        try:
            if folder not in self._durable_folders:
                self._make_durable(folder)
            try:
                _write_synced(temporary, data)
            except FileNotFoundError:  # the folder was removed since it was made durable
                self._durable_folders.clear()
                self._make_durable(folder)
                _write_synced(temporary, data)
            yield temporary
            _sync_folder(folder)
        except BaseException as error:
            with suppress(OSError):
                os.unlink(temporary)
            if isinstance(error, OSError):
                raise as_millpond_error(self._label, "written", error) from error
            raise

    def _link(self, temporary: str, file: str) -> None:
        """Give the staged file its name; raise FileExistsError if the name is taken."""
        if self._hard_links:
            try:
                return os.link(temporary, file)
            except OSError as error:
                if error.errno not in _NO_HARD_LINKS:
                    raise
                self._hard_links = False
        if self._exclusive_renames:
            try:
                return rename_exclusively(temporary, file)
            except OSError as error:
                if error.errno not in UNSUPPORTED:
                    raise
                self._exclusive_renames = False
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        try:
            os.replace(temporary, file)
        except BaseException:
            os.unlink(file)
            raise

    def _make_durable(self, folder: str) -> None:
        """Make the folder and its parents below the root, and sync their names, once per process.

        A folder that exists may have been made a moment ago by a process that has not synced its name yet, or never
        will. So its name is synced here, too.
        """
        if folder in self._durable_folders:
            return
        is_ours = folder == self._root or folder.startswith(os.path.join(self._root, ""))
        parent = os.path.dirname(folder)
        if parent != folder and (is_ours or not os.path.isdir(folder)):
            self._make_durable(parent)
            is_new = _make_folder(folder)
            try:
                _sync_folder(parent)
            except PermissionError:  # an existing root, below a folder that this user may not open
                if is_new:
                    raise
        self._durable_folders.add(folder)


def _make_folder(folder: str) -> bool:
    """Make the folder; return False if it exists."""
    try:
        os.mkdir(folder)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder) from None
        return False
    return True


def _write_synced(file: str, data: bytes | memoryview) -> None:
    with open(file, "xb") as opened:
        opened.write(data if memoryview(data).c_contiguous else as_view(data))
        opened.flush()
        _sync(opened.fileno())


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


_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

_PERMISSIONS = "Expected a folder that this user may read and write: change its permissions, or choose another folder."
_WHAT_TO_DO = {
    errno.EACCES: _PERMISSIONS,
    errno.EPERM: _PERMISSIONS,
    errno.EROFS: "Expected a disk that can be written: choose a folder on another one.",
    errno.ENOTDIR: "A parent of this path is a file, not a directory. Choose another folder.",
    errno.EISDIR: "Expected a file, but a folder has this name. Move the folder away.",
    errno.ENAMETOOLONG: "The name is too long for this file system. Choose a shorter one.",
    errno.ELOOP: "The symbolic links on this path lead in a circle. Correct them.",
}


def as_millpond_error(
    label: str, verb: Literal["written", "read", "listed", "deleted"], error: OSError
) -> MillpondError:
    """Return the error to raise for one of the operating system: what was touched, the reason, what to do.

    It is `InvalidUse` if a person has to act, and `Unavailable` if the same call may work later.

    >>> import errno
    >>> from millpond.storage.durable import as_millpond_error
    >>> as_millpond_error("state_dir /data", "written", OSError(errno.ENOSPC, "No space left on device"))
    Unavailable('state_dir /data: cannot be written: the disk is full (No space left on device). What was \
stored before is unharmed. Free some space, or raise the quota. An app that still runs tries again by itself; \
run it again if it has ended.')
    """
    reason = error.strerror or str(error)
    if error.filename is not None:
        reason += f": {os.fsdecode(error.filename)}"
    if error.errno in _NO_SPACE:
        return Unavailable(
            f"{label}: cannot be {verb}: the disk is full ({reason}). What was stored before is unharmed. "
            "Free some space, or raise the quota. An app that still runs tries again by itself; run it again if it has "
            "ended."
        )
    if error.errno in _WHAT_TO_DO:
        return InvalidUse(f"{label}: cannot be {verb} ({reason}). {_WHAT_TO_DO[error.errno]}")
    return Unavailable(f"{label}: cannot be {verb} just now ({reason}). Try again; if it stays, look at the disk.")
