"""The folder of a reader's replica: one per reader, removed when the reader is closed or has died."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from pathlib import Path

from millpond.clock import new_id
from millpond.replica.folders import default_home


class ReaderHome:
    """A folder for the replica of one reader, beside the replicas of running apps, so that neither waits for the other.

    A lock beside it shows that its process is alive. What a killed process has left is removed by the next reader of
    the same user on this host.
    """

    def __init__(self) -> None:
        root = Path(f"{default_home()}-readers")
        root.mkdir(parents=True, exist_ok=True)
        _remove_dead(root)
        while True:
            self.path = root / new_id()
            self._lock = self.path.with_suffix(".lock")
            self._file = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            with contextlib.suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.stat(self._lock).st_ino == os.fstat(self._file).st_ino:
                    break
            os.close(self._file)  # another reader took it for a dead one before it was locked
        self.path.mkdir()

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            os.close(self._file)


def _remove_dead(root: Path) -> None:
    for lock in root.glob("*.lock"):
        with contextlib.suppress(OSError), open(lock) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
            lock.unlink(missing_ok=True)
