"""Every local store keeps the contract, also one that a user wrote."""

from __future__ import annotations

import pytest
from sqlite_store import SqliteStore

import millpond as mp
from millpond.replica.lmdb_store import LmdbStore
from millpond.replica.memory_store import MemoryStore
from millpond.replica.rocksdb_store import RocksDbStore
from millpond.testing.store_suite import StoreSuite


class TestLmdb(StoreSuite):
    @pytest.fixture
    def store(self) -> mp.lowlevel.Store:
        return LmdbStore()


class TestRocksDb(StoreSuite):
    @pytest.fixture
    def store(self) -> mp.lowlevel.Store:
        return RocksDbStore()


class TestMemory(StoreSuite):
    @pytest.fixture
    def store(self) -> mp.lowlevel.Store:
        return MemoryStore()


class TestSqlite(StoreSuite):
    # Pages of SQLite have no checksums: an entry of an index whose time was changed is believed to be absent.
    test_flipped_bytes_are_noticed_or_do_no_harm = None  # type: ignore[assignment]

    @pytest.fixture
    def store(self) -> mp.lowlevel.Store:
        return SqliteStore()
