"""Stores in memory: LMDB in a file system that the kernel keeps in memory (tmpfs).

They are shared by the processes of a host, as those on a disk are, stay when the app is restarted, and are gone after a
reboot; they are then built from the log. What belongs to a `local_dir` that is gone is removed by the next process that
uses a store in memory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from millpond.clock import new_id
from millpond.errors import Unavailable
from millpond.replica import folders
from millpond.replica.lmdb_store import Replica

_ORIGIN = "local_dir"  # the file that names the local_dir to which a folder in memory belongs
_prepared: set[Path] = set()


@dataclass(frozen=True)
class MemoryStore:
    """The kind of store that `store="memory"` chooses."""

    name: str = "memory"

    def check(self) -> None:
        return None  # the workers may have what the user's own machine lacks

    def home(self, local_dir: str) -> str:
        place = folders.memory_home(local_dir)
        if place not in _prepared or not place.exists():
            _prepare(place, local_dir)
            _prepared.add(place)
        return str(place)

    def open(self, path: Path, *, create: bool) -> Replica:
        return Replica(path, create=create)


def _prepare(place: Path, local_dir: str) -> None:
    """Make the folder in memory that belongs to a `local_dir`, and remove those whose own is gone."""
    root = place.parent.parent
    kind = file_system_of(root)
    if kind not in ("tmpfs", "ramfs"):
        raise Unavailable(
            f'store="memory" needs a file system that is kept in memory, and {root} is '
            f"{f'of the kind {kind}' if kind else 'none that this system knows'}. Mount a tmpfs there, name the folder "
            'of another one in MILLPOND_MEMORY_DIR, or choose store="lmdb", whose files are cached in memory, too.'
        )
    try:
        os.makedirs(local_dir, exist_ok=True)  # it says that the stores are still wanted: another app may look at once
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        whole = place / f"{_ORIGIN}-{new_id()}"
        whole.write_text(os.path.abspath(local_dir))
        os.replace(whole, place / _ORIGIN)
        _remove_orphans(place)
    except OSError as error:
        raise Unavailable(
            f'store="memory": {place} cannot be written: {error}. Make room there, or name another tmpfs in '
            "MILLPOND_MEMORY_DIR; the state itself is safe in the log."
        ) from error


def _remove_orphans(place: Path) -> None:
    for other in place.parent.iterdir():
        with contextlib.suppress(OSError):
            if other != place and not os.path.isdir((other / _ORIGIN).read_text()):
                shutil.rmtree(other, ignore_errors=True)


def file_system_of(folder: Path) -> str | None:
    """Return the kind of the file system that a folder is on, such as "tmpfs"; None if the system does not say."""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return None
    return mounted_kind(lines, os.path.realpath(folder)) if os.path.isdir(folder) else None


def mounted_kind(mounts: list[str], path: str) -> str | None:
    """Return the kind of the file system that a path is on, given the lines of /proc/self/mounts.

    >>> mounted_kind(["/dev/sda / ext4 rw 0 0", "tmpfs /dev/shm tmpfs rw 0 0"], "/dev/shm/millpond")
    'tmpfs'
    """
    found, longest = None, -1
    for line in mounts:
        _, where, kind, *_ = line.split(" ")
        where = where.replace("\\040", " ")
        is_in = path == where or path.startswith(where.rstrip("/") + "/")
        if is_in and len(where) >= longest:
            found, longest = kind, len(where)
    return found
