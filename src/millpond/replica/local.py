"""The local replica of one partition: an LMDB store that applies the log and knows how far it has come.

The position is written in the same transaction as the data it stands for, so a replica is always the
exact state at some record. Any process of the host may take it: LMDB lets one write and all read, and
each reads one consistent version. What is damaged is thrown away and built anew from the log, in a
new generation folder, because a process that has the old file open would go on reading it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import lmdb

from millpond.log.segment import Change
from millpond.replica import home
from millpond.replica.cells import Damaged, address, pack, place, prefix, unpack

MAP_SIZE = 1 << 40  # address space, not memory: the file is sparse and grows with the data
MAX_STEPS = 1024
_META = b"position"

Applied = tuple[int, dict[str, Sequence[Change]]]  # a record's number, and its changes by step


class View:
    """The state of one partition at one record, for reading; it stays as it is while others write."""

    def __init__(self, replica: Replica, txn: Any, position: int) -> None:
        self._replica, self._txn, self.position = replica, txn, position

    def get(self, step: str, key: bytes, cell: bytes = b"") -> bytes | None:
        """The value of a cell; nothing if there is none. `Damaged` if the store cannot be trusted."""
        database = self._replica.database(step, self._txn)
        if database is None:
            return None
        at = place(key, cell)
        data = self._txn.get(at, db=database)
        if data is None:
            self._truly_absent(self._txn.cursor(db=database), at)
            return None
        return unpack(at, data)

    def get_many(self, step: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """The same for the one cell of many keys, at a third of the price of as many calls."""
        database = self._replica.database(step, self._txn)
        if database is None:
            return [None] * len(keys)
        get, cursor = self._txn.get, self._txn.cursor(db=database)
        found: list[bytes | None] = []
        for key in keys:
            at = place(key)
            data = get(at, db=database)
            if data is None:
                self._truly_absent(cursor, at)
                found.append(None)
            else:
                found.append(unpack(at, data))
        return found

    def scan(self, step: str, key: bytes | None = None, cell: bytes = b"") -> Iterator[tuple[bytes, bytes, bytes]]:
        """Key, cell and value of all cells of a step, or of one key, or of its cells that begin so, in order."""
        database = self._replica.database(step, self._txn)
        if database is None:
            return
        start = b"" if key is None else prefix(key, cell)
        cursor = self._txn.cursor(db=database)
        if not cursor.set_range(start):
            return
        for at, data in cursor:
            if not at.startswith(start):
                return
            value = unpack(at, data)
            yield (*address(at, data), value)

    def count(self, step: str) -> int:
        """How many cells a step holds."""
        database = self._replica.database(step, self._txn)
        return 0 if database is None else int(self._txn.stat(database)["entries"])

    def _truly_absent(self, cursor: Any, at: bytes) -> None:
        # A flipped byte in a key or a page leads a search astray, and a key that is there is not
        # found. Its neighbours tell: they must be whole, and stand on either side of it.
        found = cursor.set_range(at)
        if found:
            if cursor.key() <= at:
                raise Damaged(f"order around {at[:80]!r}")
            unpack(cursor.key(), cursor.value())
        if cursor.prev() if found else cursor.last():
            if cursor.key() >= at:
                raise Damaged(f"order around {at[:80]!r}")
            unpack(cursor.key(), cursor.value())


class Replica:
    """One generation of one partition's store. One per process and path: LMDB allows no second."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._env: Any = lmdb.open(
            str(path),
            map_size=MAP_SIZE,
            max_dbs=MAX_STEPS,
            max_readers=512,
            sync=False,
            metasync=False,
            readahead=False,
            lock=True,
        )
        self._inode = os.stat(path / "data.mdb").st_ino
        self._databases: dict[str, Any] = {}
        self._pid = os.getpid()

    @property
    def usable(self) -> bool:
        """Whether this handle still stands for what lies at its path, in this very process."""
        try:
            return self._pid == os.getpid() and os.stat(self.path / "data.mdb").st_ino == self._inode
        except OSError:
            return False

    def database(self, step: str, txn: Any) -> Any:
        found = self._databases.get(step)
        if found is None:
            try:
                found = self._env.open_db(b"step:" + step.encode(), txn=txn, create=False)
            except (lmdb.NotFoundError, lmdb.ReadonlyError):
                return None
            self._databases[step] = found
        return found

    @contextmanager
    def view(self) -> Iterator[View]:
        """What the replica holds now, and up to which record that is."""
        with self._env.begin(buffers=False) as txn:
            yield View(self, txn, _position(txn))

    def apply(self, records: Iterable[Applied]) -> int:
        """Apply the changes of the records that come next, each in one transaction; return the position.

        Records at or before the position are passed over: another process may have applied them.
        """
        position = -1
        for number, changes in records:
            with self._env.begin(write=True) as txn:
                position = _position(txn)
                if number <= position:
                    continue
                if position >= 0 and number != position + 1:
                    raise Damaged(f"position {position} cannot be followed by record {number}")
                for step, step_changes in changes.items():
                    database = self._env.open_db(b"step:" + step.encode(), txn=txn)
                    _put(txn, database, step_changes)
                txn.put(_META, pack(_META, b"", b"", str(number).encode()))
                position = number
        return position

    def close(self) -> None:
        if self._pid == os.getpid():
            self._env.close()


def _position(txn: Any) -> int:
    data = txn.get(_META)
    return -1 if data is None else int(unpack(_META, data))


def _put(txn: Any, database: Any, changes: Sequence[Change]) -> None:
    puts: list[tuple[bytes, bytes]] = []
    for key, cell, value, due in changes:
        at = place(key, cell)
        if value is None:
            txn.delete(at, db=database)
        else:
            puts.append((at, pack(at, key, cell, value, due)))
    with txn.cursor(db=database) as cursor:
        cursor.putmulti(puts)


_open: dict[Path, Replica] = {}
_opening = threading.Lock()


def _replica(folder: Path, *, anew: bool = False) -> Replica:
    with _opening:
        held = _open.get(folder)
        if held is not None and not anew and held.usable:
            return held
        if held is not None:
            held.close()
            del _open[folder]
        numbers = home.generations(folder)
        number = (numbers[-1] if numbers else 0) + (1 if anew or not numbers else 0)
        _open[folder] = replica = Replica(home.generation(folder, number))
        home.discard_others(folder, replica.path)
        return replica


def close_below(place: str) -> None:
    """Close the stores below a folder that this process has open."""
    with _opening:
        for folder in [folder for folder in _open if folder.is_relative_to(place)]:
            _open.pop(folder).close()


_BROKEN = (Damaged, lmdb.Error, UnicodeDecodeError, OverflowError)
T = TypeVar("T")


def replicated(
    folder: Path, missing: Callable[[int], Iterable[Applied]], use: Callable[[Replica], T], *, anew: bool = False
) -> T:
    """Catch the replica in `folder` up and use it; if it turns out to be damaged, build it anew and do so again.

    `missing(position)` gives the records after a position, -1 being before the first of them all.
    """
    try:
        return _caught_up(folder, missing, use, anew)
    except _BROKEN:
        return _caught_up(folder, missing, use, True)


def _caught_up(folder: Path, missing: Callable[[int], Iterable[Applied]], use: Callable[[Replica], T], anew: bool) -> T:
    replica = _replica(folder, anew=anew)
    with replica.view() as view:
        position = view.position
    replica.apply(missing(position))
    return use(replica)
