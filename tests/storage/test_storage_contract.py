"""Every storage keeps the same contract."""

from __future__ import annotations

from pathlib import Path

import pytest
from gcs_server import GcsServer

from millpond.storage import LocalStorage, MemoryStorage, Storage, open_storage
from millpond.testing.faults import FaultyStorage
from millpond.testing.storage_suite import StorageSuite


class TestLocal(StorageSuite):
    across_processes = True

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return open_storage(str(tmp_path / "not" / "made" / "yet"))


class TestLocalWithoutHardLinks(StorageSuite):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return LocalStorage(tmp_path, hard_links=False)


class TestLocalWithoutHardLinksAndExclusiveRenames(StorageSuite):
    @pytest.fixture
    def storage(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
        monkeypatch.setattr("millpond.storage.exclusive_rename._find_rename", lambda: None)
        return LocalStorage(tmp_path, hard_links=False)

    # What such a file system cannot promise; the class says so.
    test_a_reader_meets_nothing_or_all_of_a_new_file = None  # type: ignore[assignment]


class TestMemory(StorageSuite):
    @pytest.fixture
    def storage(self) -> Storage:
        return open_storage("memory://")


class TestS3(StorageSuite):
    across_processes = True

    @pytest.fixture
    def storage(self, s3_url: str) -> Storage:
        return open_storage(s3_url)


class TestGoogle(StorageSuite):
    @pytest.fixture
    def storage(self, gcs: GcsServer) -> Storage:
        return open_storage("gs://bucket/some/folder")


class TestFaultyWithoutFaults(StorageSuite):
    @pytest.fixture
    def storage(self) -> Storage:
        return FaultyStorage(MemoryStorage())

    # The copy in another process would have no faults, so there is none.
    test_a_pickled_copy_is_the_same_place = None  # type: ignore[assignment]
