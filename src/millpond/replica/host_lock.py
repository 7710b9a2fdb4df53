"""Turns: one process of a host builds a store or fetches what it lacks, and the others wait for the result.

A turn is not a lock: a process that was stopped in the middle of its turn must not stop the others. A process that
waits watches for signs of progress, and goes ahead if there are none for `PATIENCE` seconds. Then two processes do the
same work, each in its own store.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from millpond.clock import SystemClock, elapsed

PATIENCE = 10.0  # seconds without progress after which a process is taken for stopped

_held = threading.local()


@contextmanager
def host_turn(folder: Path) -> Iterator[Callable[[], None]]:
    """Wait for a turn in a folder; yield a function that reports progress to those who wait. One thread may nest it."""
    mine: dict[Path, int] = _held.__dict__.setdefault("turns", {})
    if folder in mine:
        yield lambda: os.utime(mine[folder])
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder / "turn", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:  # building the store will say what is wrong with the folder
        yield lambda: None
        return
    try:
        _wait(file)
        mine[folder] = file
        os.utime(file)
        yield lambda: os.utime(file)
    finally:
        mine.pop(folder, None)
        os.close(file)


def _wait(file: int) -> None:
    seen, since = os.fstat(file).st_mtime_ns, elapsed()
    while not take_lock(file, fcntl.LOCK_EX, 0.2):
        now = os.fstat(file).st_mtime_ns
        if now != seen:
            seen, since = now, elapsed()
        elif elapsed() - since > PATIENCE:
            return


def take_lock(file: int, how: int, patience: float) -> bool:
    """Take a lock on a file within `patience` seconds; return whether that worked."""
    until, pause = elapsed() + patience, 0.0005
    while True:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if elapsed() >= until:
                return False
        SystemClock().sleep(pause)
        pause = min(2 * pause, 0.01)
