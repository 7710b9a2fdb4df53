"""Renames a file to a name that is free, in one step. Python's `os` has no call for it.

Linux has it for most file systems, also for those without hard links, such as FAT, exFAT and SMB; so has macOS.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from functools import cache

UNSUPPORTED = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EPERM}

_AT_FDCWD = -100  # of Linux: a path that is not absolute begins at the working directory
_RENAME_NOREPLACE = 1  # of Linux
_RENAME_EXCL = 4  # of macOS


def rename_exclusively(source: str, target: str) -> None:
    """Rename a file, or raise FileExistsError if the target exists.

    Raises OSError with one of `UNSUPPORTED` if the system or the file system cannot do it; then nothing has changed.
    """
    rename = _find_rename()
    if rename is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), target)
    if rename(os.fsencode(source), os.fsencode(target)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), target)


@cache
def _find_rename() -> Callable[[bytes, bytes], int] | None:
    """Return the call of the C library; None if it has none."""
    library = ctypes.CDLL(None, use_errno=True)
    if hasattr(library, "renameat2"):
        on_linux = library.renameat2
        on_linux.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
        return lambda source, target: int(on_linux(_AT_FDCWD, source, _AT_FDCWD, target, _RENAME_NOREPLACE))
    if hasattr(library, "renamex_np"):
        on_mac = library.renamex_np
        on_mac.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint]
        return lambda source, target: int(on_mac(source, target, _RENAME_EXCL))
    return None
