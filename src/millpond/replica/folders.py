"""Where replicas live on this host, and which of what lies there may still be trusted."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millpond.clock import boot, new_id
from millpond.log.paths import Paths, quote_name
from millpond.log.point import LogPoint

MOST_TABLE = 200  # bytes of a table's name in the name of its folder, which says more


def default_home() -> str:
    """`MILLPOND_LOCAL_DIR`, or a folder of the user's own among the temporary files of this host."""
    named = os.environ.get("MILLPOND_LOCAL_DIR")
    if named:
        return os.path.abspath(named)
    return os.path.join(tempfile.gettempdir(), f"millpond-{quote_name(_user())}")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def partition_folder(home: str | None, log_point: LogPoint, partition: int) -> Path:
    """Return the folder of a partition's replica; every incarnation, count of partitions and epoch has its own."""
    return _folder(home, log_point, f"{partition:05d}")


def table_folder(home: str | None, log_point: LogPoint, table: str) -> Path:
    """Return the folder of the replica of a whole table."""
    return _folder(home, log_point, f"table-{quote_name(table, MOST_TABLE)}")


def _folder(home: str | None, at: LogPoint, name: str) -> Path:
    tail = f"-since-{at.epoch}" if at.epoch else ""
    return Path(home or default_home(), Paths(at.app).root, at.incarnation, f"{name}-of-{at.partitions:05d}{tail}")


def _epoch(folder: Path) -> int:
    _, found, number = folder.name.rpartition("-since-")
    return int(number) if found and number.isdigit() else 0


def of_older_epochs(folder: Path) -> list[Path]:
    """The folders beside one that hold state from before the last rewrite: nobody will ask for it again."""
    epoch = _epoch(folder)
    if not epoch or not folder.parent.is_dir():
        return []
    return [other for other in folder.parent.iterdir() if other.is_dir() and _epoch(other) < epoch]


def generations(folder: Path) -> list[int]:
    """The generations that lie in a replica's folder and are of this boot, oldest first."""
    try:
        names = os.listdir(folder)
    except OSError:  # whoever builds one there hears what is wrong
        return []
    tail = f"-{boot()}"
    return sorted(int(n[1:].split("-")[0]) for n in names if n.startswith("g") and n.endswith(tail))


def generation(folder: Path, number: int) -> Path:
    return folder / f"g{number:06d}-{boot()}"


@contextmanager
def building(folder: Path) -> Iterator[Path]:
    """A path in which to build a new generation. What is still there afterwards is removed.

    A lock beside it says that its process lives, so that what a killed process left is removed by the next builder.
    """
    _remove_unfinished(folder)
    path = folder / f"building-{new_id()}"
    lock = path.with_suffix(".lock")
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            lock.unlink(missing_ok=True)


def _remove_unfinished(folder: Path) -> None:
    for lock in folder.glob("building-*.lock"):
        with contextlib.suppress(OSError), open(lock) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
            lock.unlink(missing_ok=True)


def discard_others(folder: Path, keep: Path) -> None:
    """Remove older generations; a process that still has one open keeps its inode. A newer one may be in use."""
    tail = f"-{boot()}"
    for name in os.listdir(folder):
        if name.startswith("g") and (name < keep.name or not name.endswith(tail)):
            shutil.rmtree(folder / name, ignore_errors=True)


def below(home: str, app: str, incarnation: str | None = None) -> Path:
    """The folder that holds all replicas of an app, or of one of its incarnations."""
    root = Path(home, Paths(app).root)
    return root / incarnation if incarnation else root
