"""Spark's checkpoint files, as a commit stores them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import millpond as mp
from millpond.clock import ManualClock
from millpond.driver.commit import Driver
from millpond.driver.settings import DriverSettings
from millpond.errors import Unavailable
from millpond.log import checked
from millpond.messages import StageResults
from millpond.runtimes.base import Offer
from millpond.runtimes.local import LocalRuntime
from millpond.sources.base import Limit
from millpond.storage import MemoryStorage

FIRST = {"metadata": "id", "offsets/0": "0", "sources/0/0": "a"}
SECOND = {"metadata": "id", "offsets/0": "0", "offsets/1": "1", "commits/0": "done", "sources/0/0": "a"}


class StandIn:
    """What an app takes for a streaming DataFrame."""

    isStreaming = True


class Offering(LocalRuntime):
    """A local runtime to which a streaming DataFrame offers two batches without rows, with checkpoint files."""

    def __init__(self, storage: MemoryStorage, clock: ManualClock, folder: Path) -> None:
        super().__init__(storage, clock)
        self._offers = []
        for batch, files in enumerate([FIRST, SECOND]):
            paths = {name: folder / str(batch) / name for name in files}
            for name, path in paths.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(files[name])
            self._offers.append(Offer("frame", batch, paths))

    def offers(self, wait: float) -> list[Offer]:
        return self._offers[:1]

    def accept(self, offer: Offer) -> None:
        self._offers.remove(offer)

    def first_stage(self, program: Any, context: Any, tasks: Any, offers: Any, reading: Any = None) -> StageResults:
        return super().first_stage(program, context, tasks, [], reading)


class MeetingStorage(MemoryStorage):
    """A storage in which every put of a checkpoint file waits until `expected` of them have begun."""

    def __init__(self) -> None:
        super().__init__()
        self.put_paths: list[str] = []
        self.expected, self.full = 0, False
        self._begun = threading.Condition()

    def put(self, path: str, data: bytes | memoryview) -> None:
        if "/spark/" in path:
            with self._begun:
                self.put_paths.append(path)
                self._begun.notify_all()
                assert self._begun.wait_for(lambda: len(self.put_paths) >= self.expected, 10), "one after the other"
            if self.full and path.endswith("commits/0"):
                raise Unavailable("the disk is full")
        super().put(path, data)


@pytest.fixture
def storage() -> MeetingStorage:
    return MeetingStorage()


def start_driver(storage: MeetingStorage, folder: Path) -> Driver:
    clock = ManualClock()
    app = mp.App("framed", storage.url, 1, local_dir=str(folder / "local"))
    app.stream("frame", StandIn()).key_by("k").aggregate("n", n=mp.count())
    runtime = Offering(storage, clock, folder)
    settings = DriverSettings(partitions=1, home=app.local_dir, threaded=False)
    return Driver.start(mp.lowlevel.program(app), runtime, storage, clock, settings)


def test_a_commit_stores_the_new_files_at_the_same_time(storage: MeetingStorage, tmp_path: Path) -> None:
    driver = start_driver(storage, tmp_path)
    storage.expected = 3
    assert driver.batch(Limit(10, 1 << 20))
    storage.put_paths, storage.expected = [], 2
    assert driver.batch(Limit(10, 1 << 20))
    assert sorted(path.split("/", 4)[-1] for path in storage.put_paths) == ["commits/0", "offsets/1"]
    held = driver.last.spark["frame"]
    assert held.batch == 1
    assert {name: checked.read_file(storage, file).decode() for name, file in held.files.items()} == SECOND
    driver.close()


def test_a_file_that_cannot_be_stored_fails_the_commit(storage: MeetingStorage, tmp_path: Path) -> None:
    driver = start_driver(storage, tmp_path)
    assert driver.batch(Limit(10, 1 << 20))
    storage.full = True
    with pytest.raises(Unavailable, match="the disk is full"):
        driver.batch(Limit(10, 1 << 20))
    assert driver.last.spark["frame"].batch == 0
    driver.close()
