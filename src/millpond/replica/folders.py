"""The folders of replicas on this host, and the generations of a replica in its folder."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import re
import shutil
import tempfile
from collections.abc import Container, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import blake2b
from pathlib import Path

from millpond.clock import boot, new_id
from millpond.errors import InvalidUse
from millpond.log.paths import Paths, quote_name
from millpond.log.point import LogPoint

_NAME = re.compile(r".+-of-(\d{5,})(?:-since-(\d+))?")
MOST_TABLE = 200  # bytes of a table's name in the name of its folder, which says more
_PARTITION = re.compile(r"\d{5}(%[a-z][a-z0-9]*(-[0-9a-f]{8})?)?-of-\d{5}(-since-\d+)?")
_REPLICA = re.compile(r".+-of-\d{5}(-since-\d+)?")

_simulated_home: ContextVar[str | None] = ContextVar("home", default=None)


@contextmanager
def simulate_host(home: str) -> Iterator[None]:
    """Let the replicas of this thread be below a folder, within the `with` block, as if it ran on another host."""
    token = _simulated_home.set(home)
    try:
        yield
    finally:
        _simulated_home.reset(token)


def default_home() -> str:
    """Return `MILLPOND_LOCAL_DIR`, or a folder of this user among the temporary files of this host."""
    named = _simulated_home.get() or os.environ.get("MILLPOND_LOCAL_DIR")
    if named:
        return os.path.abspath(named)
    return os.path.join(tempfile.gettempdir(), f"millpond-{quote_name(_user())}")


def check_local_dir(given: str | os.PathLike[str], where: str) -> str:
    """Return the path of a given folder of replicas, which is the same for all processes of a host.

    A path that is relative begins at the folder of this process: executors run in folders of their own, which go when
    they end.
    """
    text = os.fspath(given) if isinstance(given, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text or "://" in text:
        raise InvalidUse(
            f'{where}: expected the path of a folder on a local disk, as "/var/lib/millpond", got {given!r}'
        )
    return os.path.abspath(text)


def replica_place(home: str | None) -> str:
    """Return an id of the folder of the replicas on this host, which is created if it is missing.

    Processes with the same id share their replicas, whatever their hosts are called.
    """
    folder = home or default_home()
    try:
        os.makedirs(folder, exist_ok=True)
        found = os.stat(folder)
    except OSError:  # building a store there will raise the reason
        return blake2b(f"{boot()} {folder}".encode(), digest_size=8).hexdigest()
    return blake2b(f"{boot()} {found.st_dev} {found.st_ino}".encode(), digest_size=8).hexdigest()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def memory_home(home: str) -> Path:
    """Return the folder of the stores in memory that belong to a folder of replicas; each has its own.

    It is below `MILLPOND_MEMORY_DIR`, or `/dev/shm`, which Linux keeps in memory.
    """
    root = os.environ.get("MILLPOND_MEMORY_DIR") or "/dev/shm"
    owner = blake2b(os.fsencode(os.path.abspath(home)), digest_size=8).hexdigest()
    return Path(root, f"millpond-{quote_name(_user())}", owner)


def partition_folder(home: str | None, log_point: LogPoint, partition: int, store: str = "") -> Path:
    """Return the folder of a partition's replica; every incarnation, count of partitions and epoch has its own.

    `store` tells the stores of a partition apart: "" is an LMDB store of all steps.
    """
    return _folder(home, log_point, f"{partition:05d}{store}")


def table_folder(home: str | None, log_point: LogPoint, table: str, store: str = "") -> Path:
    """Return the folder of the replica of a whole table."""
    return _folder(home, log_point, f"table-{quote_name(table, MOST_TABLE)}{store}")


def other_stores(folder: Path, chosen: Container[str]) -> list[Path]:
    """Return the folders beside one that hold the same partition or table in stores that are not `chosen` now.

    `chosen` are the tags of those that are, as in `partition_folder(…, store)`.
    """
    own = _TAGGED.fullmatch(folder.name)
    try:
        names = os.listdir(folder.parent)
    except OSError:
        return []
    found = [match for match in map(_TAGGED.fullmatch, names) if match is not None and own is not None]
    return [
        folder.parent / match[0]
        for match in found
        if own is not None and (match[1], match[3]) == (own[1], own[3]) and (match[2] or "") not in chosen
    ]


# No name of a user's holds a percent sign that a small letter follows: see `quote_name`.
_TAGGED = re.compile(r"(.*?)(%[a-z][a-z0-9]*(?:-[0-9a-f]{8})?)?(-of-[0-9]{5,}(?:-since-[0-9]+)?)")


def reader_folder(home: str | None, log_point: LogPoint) -> Path:
    """Return the folder of a reader's replica of the whole app."""
    return _folder(home, log_point, "reader")


def parse_folder(folder: Path) -> tuple[int, int] | None:
    """Return the number of partitions and the epoch in the name of a replica's folder; None if it is not one."""
    found = _NAME.fullmatch(folder.name)
    return None if found is None else (int(found[1]), int(found[2] or 0))


def _folder(home: str | None, at: LogPoint, name: str) -> Path:
    tail = f"-since-{at.epoch}" if at.epoch else ""
    return Path(home or default_home(), at.paths.root, at.incarnation, f"{name}-of-{at.partitions:05d}{tail}")


def _epoch(folder: Path) -> int:
    _, found, number = folder.name.rpartition("-since-")
    return int(number) if found and number.isdigit() else 0


def older_epoch_folders(folder: Path) -> list[Path]:
    """Return the folders beside one that hold state from before the last rewrite, which is not read any more."""
    epoch = _epoch(folder)
    if not epoch or not folder.parent.is_dir():
        return []
    return [other for other in folder.parent.iterdir() if other.is_dir() and _epoch(other) < epoch]


def generations(folder: Path) -> list[int]:
    """Return the numbers of the generations in a replica's folder that were built since the host booted, in order."""
    try:
        names = os.listdir(folder)
    except OSError:  # building a store there will raise the reason
        return []
    tail = f"-{boot()}"
    return sorted(int(n[1:].split("-")[0]) for n in names if n.startswith("g") and n.endswith(tail))


def generation_folder(folder: Path, number: int) -> Path:
    return folder / f"g{number:06d}-{boot()}"


@contextmanager
def building_folder(folder: Path) -> Iterator[Path]:
    """Yield a path in which to build a new generation. What is still there afterwards is removed.

    A lock beside it shows that its process is alive. What a killed process has left is removed by the next builder.
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
    """Remove older generations, but not newer ones. A process that has one open can still read it."""
    tail = f"-{boot()}"
    for name in os.listdir(folder):
        if name.startswith("g") and (name < keep.name or not name.endswith(tail)):
            shutil.rmtree(folder / name, ignore_errors=True)


def app_folder(home: str, app: str, incarnation: str | None = None) -> Path:
    """Return the folder of all replicas of an app, or of one of its incarnations."""
    root = Path(home, Paths(app).root)
    return root / incarnation if incarnation else root


def partition_folders(incarnation: Path) -> list[Path]:
    """Return the folders of partitions below that of an incarnation, of any count of partitions and epoch."""
    return [folder for folder in replica_folders(incarnation) if _PARTITION.fullmatch(folder.name)]


def replica_folders(incarnation: Path) -> list[Path]:
    """Return the folders of partitions and of whole tables below that of an incarnation."""
    try:
        found = list(incarnation.iterdir())
    except OSError:
        return []
    return sorted(folder for folder in found if _REPLICA.fullmatch(folder.name) and folder.is_dir())
