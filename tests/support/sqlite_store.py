"""A local store that a user might write: SQLite, by way of `mp.lowlevel.ordered_view` and `mp.lowlevel.WritePlan`."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import millpond as mp


@dataclass(frozen=True)
class SqliteStore:
    """A kind of store for `mp.App(store=SqliteStore())`."""

    name: str = "sqlite"

    def check(self) -> None:
        pass

    def home(self, local_dir: str) -> str:
        return local_dir

    def open(self, path: Path, *, create: bool) -> SqliteReplica:
        return SqliteReplica(path, create)


class SqliteReplica:
    """One file, opened for each use: SQLite has no trouble with folders that are renamed then."""

    def __init__(self, path: Path, create: bool) -> None:
        self.path, self.users, self._pid = path, 0, os.getpid()
        if create:
            path.mkdir(parents=True, exist_ok=True)
        elif not path.exists():
            raise mp.lowlevel.Replaced(f"{path} is gone")
        elif not self._file.exists():
            raise mp.lowlevel.Damaged(f"{path} holds no store")
        if create:
            with self._connect() as found, found:
                found.execute("pragma journal_mode = wal")
                found.execute("create table if not exists cells (place blob primary key, data blob) without rowid")
        self._inode = os.stat(self._file).st_ino

    @property
    def _file(self) -> Path:
        return self.path / "cells.sqlite"

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        if not self.path.exists():
            raise mp.lowlevel.Replaced(f"{self.path} is gone")
        try:
            with closing(sqlite3.connect(self._file, timeout=10, isolation_level=None)) as found:
                found.execute("pragma synchronous = off")
                yield found
        except sqlite3.Error as error:
            raise mp.lowlevel.Damaged(str(error)) from error

    @property
    def usable(self) -> bool:
        try:
            return self._pid == os.getpid() and os.stat(self._file).st_ino == self._inode
        except OSError:
            return False

    def newest_record(self) -> tuple[int, str]:
        with self.view() as view:
            return view.position, view.record

    def apply(self, record: mp.lowlevel.RecordChanges) -> int:
        with self._connect() as found, found:
            found.execute("begin immediate")
            plan = mp.lowlevel.WritePlan(_Reader(found))
            if not plan.takes(record):
                return plan.position
            changes = record.changes
            for step, rows in changes.items() if isinstance(changes, Mapping) else changes:
                plan.add(step, rows)
            plan.finish(record)
            gone = [(place,) for place, data in plan.pending.items() if data is None]
            found.executemany("delete from cells where place = ?", gone)
            puts = [(place, data) for place, data in plan.pending.items() if data is not None]
            found.executemany("insert or replace into cells values (?, ?)", puts)
        return record.number

    @contextmanager
    def view(self) -> Iterator[mp.lowlevel.View]:
        with self._connect() as found:
            found.execute("begin")
            if not found.execute("pragma quick_check").fetchone() == ("ok",):
                raise mp.lowlevel.Damaged(f"{self._file}: quick_check")
            yield mp.lowlevel.ordered_view(_Reader(found))

    def room(self) -> mp.lowlevel.Room:
        with self._connect() as found:
            free, size = (found.execute(f"pragma {name}").fetchone()[0] for name in ("freelist_count", "page_size"))
            return mp.lowlevel.Room(sum(file.stat().st_size for file in self.path.iterdir()), free * size)

    def move(self, path: Path) -> None:
        os.rename(self.path, path)
        self.path = path

    def close(self) -> None:
        pass


class _Reader:
    """An `mp.lowlevel.OrderedReader` within one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def _rows(self, query: str, *places: bytes) -> Iterator[tuple[bytes, bytes]]:
        try:
            yield from self._connection.execute(query, places)
        except sqlite3.Error as error:
            raise mp.lowlevel.Damaged(str(error)) from error

    def get_many(self, places: Sequence[bytes]) -> list[bytes | None]:
        query = "select place, data from cells where place = ?"
        return [next((data for _, data in self._rows(query, place)), None) for place in places]

    def scan(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._rows("select place, data from cells where place >= ? and place < ? order by place", first, end)

    def last(self, first: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        query = "select place, data from cells where place >= ? and place < ? order by place desc limit 1"
        return next(self._rows(query, first, end), None)
