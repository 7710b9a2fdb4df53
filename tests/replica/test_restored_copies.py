"""A state directory that was put back from a copy, beside replicas that had gone on without it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import millpond as mp
from millpond.clock import SystemClock
from millpond.driver.commit import Driver
from millpond.driver.settings import DriverSettings
from millpond.replica.lmdb_store import close_below
from millpond.runtimes.local import LocalRuntime
from millpond.sources.base import Limit
from millpond.storage import open_storage


def an_app(folder: Path) -> mp.App:
    app = mp.App("copied", str(folder / "state"), partitions=1, local_dir=str(folder / "local"))
    rows = app.stream("rows", mp.sources.files(folder / "in.jsonl"))
    rows.key_by("key").stateful_map("total", lambda key, row, total: (None, total + row["value"]), initial=0)
    return app


def run(folder: Path, *values: int) -> int:
    """Read these values too, each in a batch of its own; the total then, as a new process sees it."""
    with open(folder / "in.jsonl", "a") as file:
        file.writelines(json.dumps({"key": "a", "value": value}) + "\n" for value in values)
    storage, clock = open_storage(str(folder / "state")), SystemClock()
    runtime, home = LocalRuntime(storage, clock), str(folder / "local")
    driver = Driver.start(
        mp.lowlevel.program(an_app(folder)),
        runtime,
        storage,
        clock,
        DriverSettings(partitions=1, home=home, threaded=False),
    )
    while driver.batch(Limit(1, 1 << 30)):
        pass
    driver.release()
    close_below(home)
    return an_app(folder).state("total").get("a")


@pytest.mark.parametrize("behind", [1, 7])
def test_a_replica_of_a_history_that_is_no_more_is_not_believed(tmp_path: Path, behind: int) -> None:
    assert run(tmp_path, 1, 1) == 2
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    shutil.copy(tmp_path / "in.jsonl", tmp_path / "in.copy")
    assert run(tmp_path, *[100] * behind) == 2 + 100 * behind
    close_below(str(tmp_path / "local"))
    shutil.rmtree(tmp_path / "state")
    shutil.move(tmp_path / "copy", tmp_path / "state")
    shutil.move(tmp_path / "in.copy", tmp_path / "in.jsonl")
    assert an_app(tmp_path).state("total").get("a") == 2
    close_below(str(tmp_path / "local"))
    assert run(tmp_path, 1, 1, 1) == 5
    assert run(tmp_path, 1) == 6
