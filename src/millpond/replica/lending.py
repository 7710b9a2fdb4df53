"""Stores that a process has open, and their generations: opening the newest, building the next, removing the others.

A process keeps stores open from batch to batch. A store that is new, damaged or stuck is built from the log beside the
old one, and then renamed to be the next generation; a process that has the old files open can go on reading them.
"""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from millpond.replica import folders, host_lock
from millpond.replica.cell_format import Damaged
from millpond.replica.store import OpenStore, RecordChanges, Replaced, StepChangeRows, Store

MOST_OPEN = 48  # stores in one process: address space has room for about a hundred of LMDB's

_open: dict[Path, OpenStore] = {}  # the one used last comes last
_opening = threading.Lock()


@contextmanager
def lend_store(store: Store, folder: Path, built: OpenStore | None) -> Iterator[OpenStore]:
    """Yield the store that was built just now, or the newest. It stays open in this process for the next use."""
    with _opening:
        lent = _open_newest(store, folder) if built is None else built
        lent.users += 1
        held = _open.pop(folder, None)
        if held is not None and held is not lent and held.users == 0:  # else the last one to use it closes it
            held.close()
        _open[folder] = lent
        idle = [other for other, found in _open.items() if found.users == 0]
        for other in idle[: max(0, len(_open) - MOST_OPEN)]:
            _open.pop(other).close()
    try:
        yield lent
    finally:
        with _opening:
            lent.users -= 1
            if lent.users == 0 and _open.get(folder) is not lent:
                lent.close()


def _open_newest(store: Store, folder: Path) -> OpenStore:
    held = _open.get(folder)
    if held is not None and held.usable:
        return held
    _close_removed()
    numbers = folders.generations(folder)
    if not numbers:
        raise Replaced("it has not been built")
    return store.open(folders.generation_folder(folder, numbers[-1]), create=False)


def _close_removed() -> None:
    """Close stores that another process has removed: an open file takes up space until it is closed."""
    for folder in [folder for folder, held in _open.items() if held.users == 0 and not held.path.exists()]:
        _open.pop(folder).close()


def build_store(store: Store, folder: Path, records: Iterator[RecordChanges]) -> OpenStore:
    """Build a store beside those that are there from the first of the records, and make it the newest generation.

    That record may be all of a manifest, and take minutes to fetch. `Replaced` if another process has built one
    meanwhile.
    """
    before = max(folders.generations(folder), default=0)
    with file_errors(), host_lock.host_turn(folder) as progress, folders.building_folder(folder) as path:
        _check_newest(folder, before)
        built = store.open(path, create=True)
        try:
            for record in islice(records, 1):
                built.apply(_report_progress(record, progress))
            _check_newest(folder, before)
            built.move(folders.generation_folder(folder, before + 1))
        except BaseException:
            built.close()
            raise
        folders.discard_others(folder, built.path)
    remove_idle(folders.older_epoch_folders(folder))
    return built


def remove_idle(unused: Iterable[Path]) -> None:
    """Remove folders of stores, except those that this process is reading at the moment."""
    for folder in unused:
        remove_store(folder)


def remove_store(folder: Path) -> bool:
    """Remove the folder of a store, unless this process is reading it; return whether it was removed."""
    with _opening:
        found = _open.get(folder)
        if found is not None and found.users:
            return False
        if found is not None:
            _open.pop(folder).close()
        shutil.rmtree(folder, ignore_errors=True)
    return True


def _check_newest(folder: Path, number: int) -> None:
    if max(folders.generations(folder), default=0) > number:
        raise Replaced("another process has built it")


def _report_progress(record: RecordChanges, progress: Callable[[], None]) -> RecordChanges:
    """Return the record, and call `progress()` now and at each piece of its changes."""

    def report_pieces(changes: Iterable[tuple[str, StepChangeRows]]) -> Iterator[tuple[str, StepChangeRows]]:
        for piece in changes:
            progress()
            yield piece

    progress()
    changes = record.changes
    return record if isinstance(changes, Mapping) else record._replace(changes=report_pieces(changes))


def close_below(home: str | Path) -> None:
    """Close the stores of a folder that are open in this process, and those that are kept in memory for it."""
    with _opening:
        places = (Path(home), folders.memory_home(str(home)))
        for folder in [folder for folder in _open if any(folder.is_relative_to(place) for place in places)]:
            held = _open.pop(folder)
            if held.users == 0:
                held.close()


def delete_replicas(home: str, app: str, incarnation: str | None = None) -> None:
    """Delete an app's replicas on this host; they are built from the log again when they are needed."""
    for place in (home, str(folders.memory_home(home))):
        target = folders.app_folder(place, app, incarnation)
        close_below(target)  # or their files would take room and descriptors until the process ends
        shutil.rmtree(target, ignore_errors=True)


def delete_home(home: str) -> None:
    """Delete a folder of replicas as a whole, and what is kept in memory for it."""
    close_below(home)
    shutil.rmtree(home, ignore_errors=True)
    shutil.rmtree(folders.memory_home(home), ignore_errors=True)


@contextmanager
def file_errors() -> Iterator[None]:
    """Turn errors of the file system into `Replaced` or `Damaged`, the reasons to build another store."""
    try:
        yield
    except FileNotFoundError as error:
        raise Replaced(f"{error.filename} is gone: another process has removed or replaced it") from error
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise Replaced("another process has built it") from error
        raise Damaged(str(error)) from error
