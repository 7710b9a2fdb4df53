"""What the operating system says, in words that tell the reader what to do next."""

from __future__ import annotations

import errno
import os
from typing import Literal

from millpond.errors import InvalidUse, MillpondError, Unavailable

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

_CHOOSE = "Expected a folder that this user may read and write: change its permissions, or choose another one."
_A_PERSON_ACTS = {
    errno.EACCES: _CHOOSE,
    errno.EPERM: _CHOOSE,
    errno.EROFS: "Expected a disk that can be written: choose a folder on another one.",
    errno.ENOTDIR: "Expected folders all the way, and a part of this path is a file: choose another folder.",
    errno.EISDIR: "Expected a file, and a folder stands there: move it away.",
    errno.ENAMETOOLONG: "Expected names that the file system can hold: choose shorter ones.",
    errno.ELOOP: "Expected a folder, and its symbolic links lead in a circle: mend them.",
}


def os_trouble(where: str, verb: Literal["written", "read", "listed", "deleted"], error: OSError) -> MillpondError:
    """The error to raise for one of the operating system's: what was touched, what it said, what to do.

    >>> import errno
    >>> from millpond.storage.durable import os_trouble
    >>> os_trouble("state_dir /data", "written", OSError(errno.ENOSPC, "No space left on device"))
    Unavailable('state_dir /data: cannot be written: the disk is full (No space left on device). What was \
stored before is unharmed. Free some space, or raise the quota, and run again.')
    """
    reason = error.strerror or str(error)
    if error.filename is not None:
        reason += f": {os.fsdecode(error.filename)}"
    if error.errno in _NO_ROOM:
        return Unavailable(
            f"{where}: cannot be {verb}: the disk is full ({reason}). What was stored before is unharmed. "
            "Free some space, or raise the quota, and run again."
        )
    if error.errno in _A_PERSON_ACTS:
        return InvalidUse(f"{where}: cannot be {verb} ({reason}). {_A_PERSON_ACTS[error.errno]}")
    return Unavailable(f"{where}: cannot be {verb} just now ({reason}). Try again; if it stays, look at the disk.")
