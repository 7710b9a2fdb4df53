"""Shrinking: a store that is mostly free space is copied without it, and the copy becomes the next generation.

LMDB keeps the pages of what was deleted, and uses them again. After much of the state has gone the file would stay as
large as it ever was. A task looks at its stores now and then, when its work is done, and starts the copy in a thread:
no batch and no other process waits for it. The copy is of one record; what was committed meanwhile it applies from the
log, as any replica does. A process that is killed leaves an unfinished folder, which the next one to build or copy a
store removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from millpond.clock import elapsed
from millpond.replica import folders, host_lock
from millpond.replica.cell_format import Damaged
from millpond.replica.lending import lend_store
from millpond.replica.room import SHRINK_SIZE, should_shrink, size_below
from millpond.replica.store import OpenStore, ShrinkingStore, Store

log = logging.getLogger("millpond")

LOOK_SECONDS = 60.0  # between two looks of a process at a store

_looked: dict[Path, float] = {}  # folder → when this process looked at it
_threads: dict[Path, threading.Thread] = {}


def shrink_when_due(store: Store, folder: Path) -> threading.Thread | None:
    """Start to copy the store in a folder if most of it is free; return the thread. Never raises, and rarely looks."""
    now = elapsed()
    if now - _looked.get(folder, -LOOK_SECONDS) < LOOK_SECONDS:
        return None
    _looked[folder] = now
    running = _threads.get(folder)
    if (running is not None and running.is_alive()) or size_below(folder) <= SHRINK_SIZE:
        return None
    _threads[folder] = threading.Thread(target=_shrink, args=(store, folder), name="millpond-shrink", daemon=True)
    _threads[folder].start()
    return _threads[folder]


def _shrink(store: Store, folder: Path) -> None:
    try:
        with lend_store(store, folder, None) as opened, _only_one(folder) as is_ours:
            if is_ours and isinstance(opened, ShrinkingStore) and should_shrink(opened.room()):
                _replace_by_copy(folder, opened)
    except (Exception, Damaged) as error:  # the next reader of the store raises what is wrong with it
        log.debug("%s: the store was not shrunk: %s", folder, error)


def _replace_by_copy(folder: Path, opened: OpenStore) -> None:
    assert isinstance(opened, ShrinkingStore)
    newest = max(folders.generations(folder), default=0)
    if opened.path != folders.generation_folder(folder, newest):
        return
    before = opened.room()
    with folders.building_folder(folder) as path:
        opened.copy_shrunk(path)
        after = folders.generation_folder(folder, newest + 1)
        os.rename(path, after)  # fails if another process has built that generation
    folders.discard_others(folder, after)
    log.info("%s: shrunk from %.1f MB to %.1f MB", folder, before.size / 1e6, size_below(after) / 1e6)


@contextlib.contextmanager
def _only_one(folder: Path) -> Iterator[bool]:
    """Yield whether this is the only process that shrinks the store at the moment."""
    file = os.open(folder / "shrinking", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        yield host_lock.take_lock(file, fcntl.LOCK_EX, 0)
    finally:
        os.close(file)
