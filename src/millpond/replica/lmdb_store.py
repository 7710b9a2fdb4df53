"""The local replica of one partition: an LMDB store that applies the log and knows how far it has come.

The position, and the checksum of the record that it stands for, are written in the same transaction as the data, so a
replica is always the exact state at some record of some ledger. A record is applied only to the record that it follows,
and what is read is compared with the reader's own ledger in the version that is read: two copies of a state directory
have records of the same numbers, and may share a folder of replicas.

Any process of the host may use a store: LMDB lets one write and all read, and each reads one consistent version. Locks
are held for one transaction, never while something is fetched, and no process waits for one longer than `PATIENCE`: the
process that holds it may be stopped. A store that is new, damaged or stuck is built from the log beside the old one,
and then renamed to be the next generation; a process that has the old files open can go on reading them.

LMDB notices no flipped byte. Each value has a checksum, but a page that leads a search astray has none: a
key that is there would seem absent. So every writer of a store signs it with the size and the time of its
file, and a file that anything else has touched since is not read at all.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, TypeAlias
from zlib import crc32

import lmdb
import msgspec
import pyarrow as pa

from millpond.log.segment import Change, SingleCellChanges, read_changes
from millpond.replica import folders, host_lock
from millpond.replica.bulk_load import append_table
from millpond.replica.cell_format import (
    CELL_HEAD,
    HAS_DUE,
    KEY_ROOM,
    Damaged,
    cell_times,
    pack_cell,
    pack_short_single_cells,
    pack_time,
    store_key,
    time_entry,
    unpack_cell,
    unpack_time,
)
from millpond.replica.lmdb_view import CELLS, DUE, WALL, LmdbView
from millpond.timing import MAX_TICKS

MAP_SIZE = 1 << 40  # address space, not memory: the file is sparse and grows with the data
MAX_DATABASES = 3072  # three for each step
MOST_OPEN = 48  # stores in one process: address space has room for about a hundred of them
MOST_READERS = 512
LOCK_BYTES = 128 * (MOST_READERS + 2)  # at least what LMDB needs for its table of readers
_META = b"position"

StepChangeRows: TypeAlias = "Sequence[Change] | pa.Table"


class RecordChanges(NamedTuple):
    """One record to apply: its number, its changes, its checksum, and the checksum of the record that it follows.

    A step may come several times, in pieces, and as tables.
    """

    number: int
    changes: Mapping[str, Sequence[Change]] | Iterable[tuple[str, StepChangeRows]]
    record: str = ""
    previous: str = ""


class Replaced(Exception):
    """The store is not there: it has not been built yet, or another process has built a newer one."""


class Stuck(Exception):
    """Another process has held the store's lock for too long; it may be stopped."""


class _Meta(msgspec.Struct):
    """The metadata of a store: the record that it is at, and its databases: the cells of each step, and indexes of
    those that have a time.
    """

    position: int = -1
    record: str = ""  # the checksum of the record at that position
    databases: list[str] = msgspec.field(default_factory=list)
    latest: dict[str, int] = msgspec.field(default_factory=dict)  # step → no event time in its cells is later


class Replica:
    """One generation of one partition's store. One per process and path: LMDB allows no second."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        """Open the store at a path. Without `create`, `Replaced` or `Damaged` if there is none."""
        with _file_errors():
            self._open(path, create)

    def _open(self, path: Path, create: bool) -> None:
        self.path, self._data = path, path / "data.mdb"
        self._pid = os.getpid()
        self._threads = threading.Lock()  # `flock` does not keep the threads of one process apart
        self.users = 0  # how many use it in this process
        self._databases: dict[str, Any] = {}
        if create:
            path.mkdir(parents=True, exist_ok=True)
        self._signature = os.open(path / "signature", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            with self._lock(fcntl.LOCK_EX):
                is_new = not self._data.exists()
                if is_new and not create:
                    raise Replaced(f"{path} is gone") if not path.exists() else Damaged(f"{path} holds no store")
                if not is_new:
                    self._check()
                _reserve(path / "lock.mdb")
                self._env: Any = lmdb.open(
                    str(path),
                    map_size=MAP_SIZE,
                    max_dbs=MAX_DATABASES,
                    max_readers=MOST_READERS,
                    sync=False,
                    metasync=False,
                    readahead=False,
                    lock=True,
                )
                if is_new:
                    self._sign()
                self._inode = os.stat(self._data).st_ino
        except BaseException:
            os.close(self._signature)
            raise

    @property
    def usable(self) -> bool:
        """Whether the store at the path is still the one that this process has opened.

        Raises `Damaged` if something else has touched it.
        """
        try:
            if self._pid != os.getpid() or os.stat(self._data).st_ino != self._inode:
                return False
            with self._lock(fcntl.LOCK_SH):
                self._check()
        except (OSError, Replaced):
            return False
        return True

    def move(self, path: Path) -> None:
        """Rename the folder; what is open stays open. Fails if there is a folder of that name that is not empty."""
        os.rename(self.path, path)
        self.path, self._data = path, path / "data.mdb"

    @contextmanager
    def _lock(self, how: int) -> Iterator[None]:
        """Keep other processes out between a write and its signature; a writer that dies in between has not signed."""
        if not self._threads.acquire(timeout=host_lock.PATIENCE):
            raise Stuck(f"another thread has not let go of {self.path} for {host_lock.PATIENCE:g} s")
        try:
            try:
                fcntl.flock(self._signature, how | fcntl.LOCK_NB)
            except BlockingIOError:
                if not host_lock.take_lock(self._signature, how, host_lock.PATIENCE):
                    raise Stuck(f"another process has not let go of {self.path} for {host_lock.PATIENCE:g} s") from None
            try:
                yield
            finally:
                fcntl.flock(self._signature, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def _looks(self) -> bytes:
        found = os.stat(self._data)
        return b"%d %d %d\n" % (found.st_ino, found.st_size, found.st_ctime_ns)

    def _sign(self) -> None:
        text = self._looks()
        os.pwrite(self._signature, text, 0)
        os.ftruncate(self._signature, len(text))

    def _check(self) -> None:
        looks = self._looks()
        if os.pread(self._signature, 200, 0) != looks:
            raise Damaged(f"{self._data} was touched by something else")

    @contextmanager
    def view(self) -> Iterator[LmdbView]:
        """Yield a view of what the replica holds now."""
        with self._reading() as (txn, meta):
            if all(name in self._databases for name in meta.databases):
                yield _view(txn, {name: self._databases[name] for name in meta.databases}, meta)
                return
        # LMDB forgets a database that was first opened by a reader, and a reader cannot see one that was
        # opened after it began.
        for name in meta.databases:
            if name not in self._databases:
                self._databases[name] = self._env.open_db(name.encode(), create=False)
        with self._reading() as (txn, meta):
            known = {name: self._databases[name] for name in meta.databases if name in self._databases}
            yield _view(txn, known, meta)

    @contextmanager
    def _reading(self) -> Iterator[tuple[Any, _Meta]]:
        with self._env.begin(buffers=False) as txn:
            yield txn, _meta(txn)

    def newest_record(self) -> tuple[int, str]:
        """Return the number of the record that the replica is at, -1 before the first, and its checksum."""
        with self._reading() as (_, meta):
            return meta.position, meta.record

    def apply(self, record: RecordChanges) -> int:
        """Apply the changes of the record that comes next, in one transaction; return the position.

        A record at or before the position is passed over: another process may have applied it.
        """
        with _file_errors(), self._lock(fcntl.LOCK_EX):
            self._env.reader_check()  # a reader that was killed would keep its version, and its room, for ever
            self._check()
            position = self._apply(record)
            self._sign()
        return position

    def _apply(self, record: RecordChanges) -> int:
        opened = {}
        number, changes = record.number, record.changes
        with self._env.begin(write=True) as txn:
            meta = _meta(txn)
            if number <= meta.position:
                return meta.position
            if meta.position >= 0 and (number, record.previous) != (meta.position + 1, meta.record):
                raise Damaged(f"record {number} does not follow what is there, which is at record {meta.position}")
            known, latest = set(meta.databases), dict(meta.latest)

            def database(name: str) -> Any:
                if name not in opened:
                    opened[name] = self._env.open_db(name.encode(), txn=txn, create=name not in known)
                    known.add(name)
                return opened[name]

            for step, step_changes in changes.items() if isinstance(changes, Mapping) else changes:
                names = (DUE + step, WALL + step)
                timed = any(name in known for name in names)
                if isinstance(step_changes, pa.Table):
                    if not timed and append_table(txn, database(CELLS + step), step_changes):
                        continue
                    step_changes = read_changes(step_changes)
                if timed or have_times(step_changes):
                    dues = [change.due for change in step_changes if change.due is not None]
                    if DUE + step not in known:
                        latest[step] = max(dues, default=-MAX_TICKS)
                    elif step in latest and dues:
                        latest[step] = max(latest[step], max(dues))
                    _put_timed(txn, database(CELLS + step), [database(name) for name in names], step_changes)
                else:
                    _put(txn, database(CELLS + step), step_changes)
            meta = _Meta(number, record.record, sorted(known), latest)
            txn.put(_META, pack_cell(_META, b"", b"", msgspec.json.encode(meta)))
        self._databases.update(opened)
        return number

    def close(self) -> None:
        if self._pid == os.getpid():
            self._env.close()
            os.close(self._signature)


def _reserve(lock: Path) -> None:
    """Give LMDB's lock file all its blocks. LMDB maps a sparse one, and a full tmpfs would then kill us with SIGBUS."""
    with open(lock, "ab") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, LOCK_BYTES)
        elif file.tell() == 0:
            file.write(bytes(LOCK_BYTES))


def _view(txn: Any, databases: dict[str, Any], meta: _Meta) -> LmdbView:
    return LmdbView(txn, databases, meta.position, meta.latest, meta.record)


def _meta(txn: Any) -> _Meta:
    data = txn.get(_META)
    return _Meta() if data is None else msgspec.json.decode(unpack_cell(_META, data), type=_Meta)


def have_times(changes: Sequence[Change]) -> bool:
    """Return whether any of the changes has a time."""
    if isinstance(changes, SingleCellChanges):
        return False
    return any(change[3] is not None or change[4] is not None for change in changes)


def _put(txn: Any, database: Any, changes: Sequence[Change]) -> None:
    """Put changes of a step whose cells have no times."""
    puts: Iterable[tuple[bytes, bytes]]
    if isinstance(changes, SingleCellChanges) and _are_short_puts(changes):
        puts = pack_short_single_cells(changes.keys, changes.values)  # type: ignore[arg-type]
    else:
        puts = []
        keep, head = puts.append, CELL_HEAD.pack
        for key, cell, value, _, _ in changes:
            if value is None:
                txn.delete(store_key(key, cell), db=database)
            elif len(key) + len(cell) < KEY_ROOM:  # `pack_cell`, written out: the calls would be most of the work
                at = key + b"\x00" + cell
                keep((at, head(crc32(value, crc32(at)), 0) + value))
            else:
                at = store_key(key, cell)
                keep((at, pack_cell(at, key, cell, value)))
    with txn.cursor(db=database) as cursor:
        cursor.putmulti(puts)


def _are_short_puts(changes: SingleCellChanges) -> bool:
    """Whether the changes delete nothing, and no key is too long for a store key."""
    return NoneType not in set(map(type, changes.values)) and max(map(len, changes.keys), default=0) < KEY_ROOM


_NO_TIMES = (None, None)


def _cell_getter(
    txn: Any, database: Any, indexes: list[Any], changes: Sequence[Change]
) -> Callable[[bytes], bytes | None]:
    """Return a getter of the bytes at a store key.

    If most cells are needed, the database is read into memory. If all of them are deleted, as when all windows close,
    the databases are emptied at once.
    """
    if txn.stat(database)["entries"] > 2 * len(changes):
        return lambda at: txn.get(at, None, database)
    with txn.cursor(db=database) as cursor:
        held = dict(cursor.iternext(keys=True, values=True))
    going = {
        key + b"\x00" + cell if len(key) + len(cell) < KEY_ROOM else store_key(key, cell)
        for key, cell, value, _, _ in changes
        if value is None
    }
    if held and held.keys() <= going:
        for each in (database, *indexes):
            txn.drop(each, delete=False)
        held = {}
    return held.get


class _Dues(dict[int, bytes]):
    """Event times → their bytes in a value."""

    def __missing__(self, due: int) -> bytes:
        found = self[due] = pack_time(due)
        return found


class _Entries(dict[bytes, bytes]):
    """The bytes of event times in a value → the prefix of their entries in the index."""

    def __missing__(self, due: bytes) -> bytes:
        found = self[due] = time_entry(unpack_time(due)[0], b"")
        return found


def _put_timed(txn: Any, database: Any, indexes: list[Any], changes: Sequence[Change]) -> None:
    """Put changes of a step whose cells have times, and move their entries in the indexes."""
    added: tuple[list[tuple[bytes, bytes]], ...] = ([], [])
    puts: list[tuple[bytes, bytes]] = []
    moved: tuple[list[bytes], ...] = ([], [])
    gone: list[bytes] = []
    get, head = _cell_getter(txn, database, indexes, changes), CELL_HEAD.pack
    dues, entries = _Dues(), _Entries()
    for key, cell, value, due, wall in changes:
        is_short = len(key) + len(cell) < KEY_ROOM
        at = key + b"\x00" + cell if is_short else store_key(key, cell)
        old = get(at)
        # The common case, spelled out, for the calls would be most of the work: an event time and no other.
        if is_short and wall is None and (old is None or old[4] == HAS_DUE):
            if value is None:
                if old is not None:
                    gone.append(at)
                    moved[0].append(entries[old[5:13]] + at)
                continue
            if due is not None:
                packed = dues[due]
                if old is None:
                    added[0].append((entries[packed] + at, b""))
                elif old[5:13] != packed:
                    moved[0].append(entries[old[5:13]] + at)
                    added[0].append((entries[packed] + at, b""))
                value = packed + value
                puts.append((at, head(crc32(value, crc32(at, HAS_DUE)), HAS_DUE) + value))
                continue
        held = _NO_TIMES if old is None else cell_times(old)
        new = _NO_TIMES if value is None else (due, wall)
        if held != new:
            for i in (0, 1):
                before, after = held[i], new[i]
                if before != after:
                    if before is not None:
                        moved[i].append(time_entry(before, at))
                    if after is not None:
                        added[i].append((time_entry(after, at), b""))
        if value is not None:
            puts.append((at, pack_cell(at, key, cell, value, due, wall)))
        elif old is not None:
            gone.append(at)
    for target, places in ((database, gone), (indexes[0], moved[0]), (indexes[1], moved[1])):
        for at in sorted(places):
            txn.delete(at, b"", target)
    for target, pairs in ((database, puts), (indexes[0], sorted(added[0])), (indexes[1], sorted(added[1]))):
        with txn.cursor(db=target) as cursor:
            cursor.putmulti(pairs)


_open: dict[Path, Replica] = {}  # the one used last comes last
_opening = threading.Lock()


@contextmanager
def lend_replica(folder: Path, built: Replica | None) -> Iterator[Replica]:
    """Yield the replica that was built just now, or the newest. It stays open in this process for the next use."""
    with _opening:
        lent = _open_newest(folder) if built is None else built
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


def _open_newest(folder: Path) -> Replica:
    held = _open.get(folder)
    if held is not None and held.usable:
        return held
    _close_removed()
    numbers = folders.generations(folder)
    if not numbers:
        raise Replaced("it has not been built")
    return Replica(folders.generation_folder(folder, numbers[-1]), create=False)


def _close_removed() -> None:
    """Close stores that another process has removed: an open file takes up space until it is closed."""
    for folder in [folder for folder, held in _open.items() if held.users == 0 and not held.path.exists()]:
        _open.pop(folder).close()


def build_replica(folder: Path, records: Iterator[RecordChanges]) -> Replica:
    """Build a store beside those that are there from the first of the records, and make it the newest generation.

    That record may be all of a manifest, and take minutes to fetch. `Replaced` if another process has built one
    meanwhile.
    """
    before = max(folders.generations(folder), default=0)
    with _file_errors(), host_lock.host_turn(folder) as progress, folders.building_folder(folder) as path:
        _check_newest(folder, before)
        replica = Replica(path)
        try:
            for record in islice(records, 1):
                replica.apply(_report_progress(record, progress))
            _check_newest(folder, before)
            replica.move(folders.generation_folder(folder, before + 1))
        except BaseException:
            replica.close()
            raise
        folders.discard_others(folder, replica.path)
    for older in folders.older_epoch_folders(folder):
        remove_replica(older)
    return replica


def remove_replica(folder: Path) -> bool:
    """Remove the folder of a replica, unless this process is using it; return whether it was removed."""
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


def close_below(store_key: str | Path) -> None:
    """Close the stores below a folder that are open in this process."""
    with _opening:
        for folder in [folder for folder in _open if folder.is_relative_to(store_key)]:
            held = _open.pop(folder)
            if held.users == 0:
                held.close()


def delete_replicas(store_key: str, app: str, incarnation: str | None = None) -> None:
    """Delete an app's replicas on this host; they are built from the log again when they are needed."""
    target = folders.app_folder(store_key, app, incarnation)
    close_below(target)  # or their files would take room and descriptors until the process ends
    shutil.rmtree(target, ignore_errors=True)


@contextmanager
def _file_errors() -> Iterator[None]:
    """Turn errors of the file system into `Replaced` or `Damaged`, the reasons to build another store."""
    try:
        yield
    except FileNotFoundError as error:
        raise Replaced(f"{error.filename} is gone: another process has removed or replaced it") from error
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise Replaced("another process has built it") from error
        raise Damaged(str(error)) from error
