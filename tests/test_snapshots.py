"""A read of all keys is of one commit, whatever a running app that shares the local folder does meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from damaged_replicas import flip
from small_programs import nth

import millpond as mp
from millpond.codec import encode_key, partition_of
from millpond.replica import snapshot
from millpond.replica.local_stores import PartitionStores
from millpond.state_view import StateView
from millpond.storage import MemoryStorage
from millpond.testing import TestDriver

KEYS = [f"u{n}" for n in range(12)]


@pytest.fixture
def driver() -> Iterator[TestDriver]:
    app = mp.App("counts", partitions=3)
    app.stream("rows", mp.sources.rows([])).key_by("k").stateful_map("n", nth, initial=0)
    with TestDriver(app) as driver:
        send(driver)
        yield driver


def send(driver: TestDriver, batches: int = 1) -> None:
    """Send a row for each key, so that all counts are equal after each batch."""
    for _ in range(batches):
        driver.send("rows", [{"k": key} for key in KEYS])


def only_count(items: Any) -> int:
    found = dict(items)
    assert sorted(found) == sorted(KEYS)
    (count,) = set(found.values())
    return int(count)


def test_items_are_of_one_commit_however_slowly_they_are_taken(driver: TestDriver) -> None:
    items = driver.state("n").items()
    first = next(items)
    send(driver, 3)
    assert only_count([first, *items]) == 1
    assert only_count(driver.state("n").items()) == 4


class RunningApp:
    """Commits batches each time that the replica of partition 1 is opened, so many times."""

    def __init__(self, driver: TestDriver, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        self.homes: list[str] = []
        homes = self.homes

        class Noticed(PartitionStores):
            def catch_up(self, storage: Any, log_point: Any, *, rebuild: bool = False) -> Any:
                folder = self.folder(log_point)
                homes.append(str(folder))
                if folder.name.startswith("00001-") and len(homes) <= times * 3:
                    send(driver, 2)  # with the second, the replicas apply the first
                return super().catch_up(storage, log_point, rebuild=rebuild)

        monkeypatch.setattr(snapshot, "PartitionStores", Noticed)


@pytest.mark.parametrize("views", [1, 2, snapshot.MOST_VIEWS])
@pytest.mark.parametrize("times", [1, 3])
def test_a_commit_while_replicas_are_opened(
    driver: TestDriver, monkeypatch: pytest.MonkeyPatch, times: int, views: int
) -> None:
    monkeypatch.setattr(snapshot, "MOST_VIEWS", views)
    app = RunningApp(driver, monkeypatch, times)
    assert only_count(driver.state("n").items()) > 1
    assert all(home.startswith(driver._home) for home in app.homes), "no other replica is built"


def test_commits_that_never_stop_while_replicas_are_opened(driver: TestDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    app = RunningApp(driver, monkeypatch, 1000)
    table = driver.state("n").to_arrow()
    assert only_count(zip(*table.to_pydict().values(), strict=True)) > 5
    own = {str(Path(home).parents[2]) for home in app.homes if not home.startswith(driver._home)}
    assert len(own) == 1, "it was read from replicas of its own"
    assert not any(Path(home).exists() for home in own), "which are gone"


def test_a_key_is_read_as_of_the_record_that_its_replica_is_at(
    driver: TestDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = next(key for key in KEYS if partition_of(encode_key(key), 3) == 1)
    app = RunningApp(driver, monkeypatch, 1000)
    assert driver.state("n").get(key) == 2
    assert len(app.homes) == 1


def test_a_snapshot_that_does_not_fit_in_memory_is_in_a_file(
    driver: TestDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "MOST_MEMORY", 10)
    assert only_count(driver.state("n").items()) == 1


def test_damage_in_several_partitions_is_repaired_and_no_row_is_read_twice(tmp_path: Path) -> None:
    def mark(key: str, row: Any, state: Any) -> Any:
        return None, {"note": f"MARKER-{key}"}

    app, storage = mp.App("marked", partitions=3), MemoryStorage()
    app.stream("rows", mp.sources.rows([])).key_by("k").stateful_map("n", mark, initial=None)
    with TestDriver(app, storage) as driver:
        send(driver)
        state = StateView(storage, "marked", "n", driver.clock, home=str(tmp_path))
        expected = sorted(state.items())
        assert len(expected) == len(KEYS)
        flip(tmp_path, b"MARKER")
        assert sorted(state.items()) == expected
