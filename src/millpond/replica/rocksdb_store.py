"""RocksDB as a local store: the package `rocksdict`, opened and closed for each use.

RocksDB lets one process write. Any worker of a host may have the next batch of a partition, so no process keeps a store
open: a writer opens it, applies a record and closes it, under a lock of ours that others wait for. A reader opens it
for reading only, under the same lock, shared, and then lets go of it. RocksDB then has all files of that version open,
so that later writers, who never change a file but may remove some, do not disturb it.

There is no write-ahead log. A record is one batch, which is flushed to one new file before the store is closed; a
process that dies before leaves the version before, whole. RocksDB checks the blocks of its files, and every value has
our own checksum, too. Compaction runs within `apply`, when several files have come together: a store that is open for a
moment at a time would end its own compactions before they are done.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from millpond.clock import SystemClock
from millpond.errors import InvalidUse
from millpond.replica import host_lock
from millpond.replica.cell_format import Damaged
from millpond.replica.lending import file_errors
from millpond.replica.ordered import OrderedView, WritePlan
from millpond.replica.store import RecordChanges, Replaced, Room, Stuck

COMPACT_FILES = 8  # files of single records after which they are merged
MOST_PENDING = 100_000  # places that are written together while an empty store is loaded
_PAUSE = 0.005  # seconds between two looks at a compaction
_YIELD = 0.03  # seconds for others to take the lock: they look every hundredth of a second


@dataclass(frozen=True)
class RocksDbStore:
    """The kind of store that `store="rocksdb"` chooses."""

    name: str = "rocksdb"

    def check(self) -> None:
        try:
            import rocksdict  # noqa: F401
        except ImportError as error:
            raise InvalidUse(
                'store="rocksdb" needs the package rocksdict, which is not installed here: pip install '
                f"'millpond[rocksdb]', on the workers, too ({error})"
            ) from error

    def home(self, local_dir: str) -> str:
        return local_dir

    def open(self, path: Path, *, create: bool) -> RocksDbReplica:
        self.check()
        return RocksDbReplica(path, create=create)


class RocksDbReplica:
    """One generation of one partition's store. It holds a lock file open, and RocksDB only while it is used."""

    def __init__(self, path: Path, *, create: bool) -> None:
        self.path, self.users, self._pid = path, 0, os.getpid()
        self._threads = threading.Lock()  # `flock` does not keep the threads of one process apart
        with file_errors():
            if create:
                path.mkdir(parents=True, exist_ok=True)
            elif not path.exists():
                raise Replaced(f"{path} is gone")
            self._mark = os.open(path / "mark", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self._queue = os.open(path / "queue", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                self._inode = os.stat(path / "mark").st_ino
                if create and not (path / "CURRENT").exists():
                    with self._lock(fcntl.LOCK_EX):
                        self._open_writer().close()
                elif not (path / "CURRENT").exists():
                    raise Damaged(f"{path} holds no store")
            except BaseException:
                self.close()
                raise

    @property
    def usable(self) -> bool:
        try:
            return self._pid == os.getpid() and os.stat(self.path / "mark").st_ino == self._inode
        except OSError:
            return False

    def newest_record(self) -> tuple[int, str]:
        """Return what the last writer has marked; one that was killed right before that may have come further."""
        found = _unpack_mark(os.pread(self._mark, 500, 0))
        if found is not None:
            return found
        with self.view() as view:
            return view.position, view.record

    def apply(self, record: RecordChanges) -> int:
        with file_errors(), self._lock(fcntl.LOCK_EX):
            db = self._open_writer()
            try:
                plan = WritePlan(_Reader(db))
                if not plan.takes(record):
                    return plan.position
                self._apply(db, record, plan)
                self._compact(db)
            finally:
                db.close()
            text = b"%d %s" % (record.number, record.record.encode())
            os.pwrite(self._mark, b"%-490b %08x\n" % (text, crc32(text)), 0)
        return record.number

    def _apply(self, db: Any, record: RecordChanges, plan: WritePlan) -> None:
        changes: Iterable[Any] = record.changes.items() if isinstance(record.changes, Mapping) else record.changes
        for step, rows in changes:
            plan.add(step, rows)
            if plan.is_empty and len(plan.pending) > MOST_PENDING:
                plan.finish(record, is_partial=True)
                self._write(db, plan)
        plan.finish(record)
        self._write(db, plan)
        with self._errors():
            db.flush()

    def _write(self, db: Any, plan: WritePlan) -> None:
        import rocksdict

        batch = rocksdict.WriteBatch(raw_mode=True)
        for place, data in plan.pending.items():
            if data is None:
                batch.delete(place)
            else:
                batch.put(place, data)
        options: Any = rocksdict.WriteOptions()
        options.disable_wal = True
        with self._errors():
            db.write(batch, options)
        plan.pending.clear()

    def _compact(self, db: Any) -> None:
        """Merge the files of single records into the others, if there are many of them."""
        with self._errors():
            if _level_0(db) < COMPACT_FILES:
                return
            db.set_options({"disable_auto_compactions": "false"})
            while _level_0(db) >= COMPACT_FILES // 2 or db.property_int_value("rocksdb.num-running-compactions"):
                if db.property_int_value("rocksdb.background-errors"):
                    raise Damaged("RocksDB could not merge its files: No space left on device, or the disk is at fault")
                SystemClock().sleep(_PAUSE)

    @contextmanager
    def view(self) -> Iterator[OrderedView]:
        with file_errors(), self._lock(fcntl.LOCK_SH):
            db = self._open_reader()
        try:
            yield OrderedView(_Reader(db))
        finally:
            db.close()

    def room(self) -> Room:
        """Return the size of the files. What was deleted is counted until RocksDB merges its files."""
        with file_errors():
            return Room(sum(found.stat().st_blocks * 512 for found in os.scandir(self.path)))

    def move(self, path: Path) -> None:
        os.rename(self.path, path)
        self.path = path

    def close(self) -> None:
        if self._pid == os.getpid():
            os.close(self._mark)
            os.close(self._queue)

    @contextmanager
    def _lock(self, how: int) -> Iterator[None]:
        patience = host_lock.PATIENCE
        if not self._threads.acquire(timeout=patience):
            raise Stuck(f"another thread has not let go of {self.path} for {patience:g} s")
        try:
            if not host_lock.take_lock(self._mark, how, 0):
                # Who waits looks now and then, and would never meet the moment between two records of another process.
                host_lock.take_lock(self._queue, fcntl.LOCK_SH, 0.05)
                is_ours = host_lock.take_lock(self._mark, how, patience)
                fcntl.flock(self._queue, fcntl.LOCK_UN)
                if not is_ours:
                    raise Stuck(f"another process has not let go of {self.path} for {patience:g} s")
            try:
                yield
            finally:
                fcntl.flock(self._mark, fcntl.LOCK_UN)
                if how == fcntl.LOCK_EX:
                    self._let_others()
        finally:
            self._threads.release()

    def _let_others(self) -> None:
        """Give processes that wait for the lock the time to take it."""
        if host_lock.take_lock(self._queue, fcntl.LOCK_EX, 0):
            fcntl.flock(self._queue, fcntl.LOCK_UN)
        else:
            SystemClock().sleep(_YIELD)

    def _open_writer(self) -> Any:
        import rocksdict

        return self._open(lambda options: rocksdict.Rdict(str(self.path), options))

    def _open_reader(self) -> Any:
        import rocksdict

        access = rocksdict.AccessType.read_only(error_if_log_file_exist=False)
        return self._open(lambda options: rocksdict.Rdict(str(self.path), options, access_type=access))

    def _open(self, open_db: Callable[[Any], Any]) -> Any:
        if not self.path.exists():
            raise Replaced(f"{self.path} is gone")
        with self._errors():
            return open_db(_options())

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of RocksDB, which have no class of their own, into ours."""
        try:
            yield
        except Exception as error:
            if not self.path.exists():
                raise Replaced(f"{self.path} is gone: another process has removed or replaced it") from error
            raise Damaged(f"RocksDB: {error}") from error


def _options() -> Any:
    import rocksdict

    options, blocks = rocksdict.Options(raw_mode=True), rocksdict.BlockBasedOptions()
    blocks.set_bloom_filter(10, False)
    options.set_block_based_table_factory(blocks)
    options.create_if_missing(True)
    options.set_max_open_files(-1)  # a reader opens all files at once: writers may remove them later
    options.set_disable_auto_compactions(True)
    options.set_level_zero_slowdown_writes_trigger(1000)  # `apply` merges them
    options.set_level_zero_stop_writes_trigger(2000)
    options.set_keep_log_file_num(1)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_skip_stats_update_on_db_open(True)
    options.set_manifest_preallocation_size(4096)
    return options


def _level_0(db: Any) -> int:
    return int(db.property_value("rocksdb.num-files-at-level0") or 0)


def _unpack_mark(data: bytes) -> tuple[int, str] | None:
    """Return the position and the checksum of the record in a mark; None if it holds none, or is garbled."""
    text, check = data[:490].rstrip(b" "), data[491:499]
    number, _, record = text.partition(b" ")
    if not text or b"%08x" % crc32(text) != check or not number.isdigit():
        return None
    return int(number), record.decode()


class _Reader:
    """The reader of one version; see `ordered.OrderedReader`."""

    def __init__(self, db: Any) -> None:
        self._db = db

    def get_many(self, places: Sequence[bytes]) -> Sequence[bytes | None]:
        try:
            found: Sequence[bytes | None] = self._db.get(list(places))
        except Exception as error:
            raise Damaged(f"RocksDB: {error}") from error
        return found

    def scan(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        found = self._seek(lambda cursor: cursor.seek(first))
        key, value, advance, is_valid = found.key, found.value, found.next, found.valid
        while is_valid():
            place = key()
            if place >= end:
                return
            yield place, value()
            advance()
        _check_status(found)  # an iterator that meets a damaged block ends as if there were no more

    def last(self, first: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        found = self._seek(lambda cursor: cursor.seek_for_prev(end))
        if found.valid() and found.key() == end:
            found.prev()
        if not found.valid():
            _check_status(found)
            return None
        place, data = found.key(), found.value()
        return (place, data) if place >= first else None

    def _seek(self, seek: Callable[[Any], None]) -> Any:
        import rocksdict

        try:
            cursor = self._db.iter(rocksdict.ReadOptions())
            seek(cursor)
        except Exception as error:
            raise Damaged(f"RocksDB: {error}") from error
        return cursor


def _check_status(cursor: Any) -> None:
    try:
        cursor.status()
    except Exception as error:
        raise Damaged(f"RocksDB: {error}") from error
