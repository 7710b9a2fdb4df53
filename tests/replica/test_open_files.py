"""Stores stay open from batch to batch; those that were removed do not, for open files take room and descriptors."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from replica_workers import after, records, replicated
from small_drivers import WHOLE, Lanes, driver_of
from small_rebuilds import rebuild

import millpond as mp
from millpond.replica.lmdb_store import close_below
from millpond.storage import open_storage

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="only /proc says what is open")


def open_below(place: Path) -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return [file for file in found if file.startswith(str(place))]


def an_app(place: Path) -> mp.App:
    app = mp.App("open", str(place / "state"), partitions=3, local_dir=str(place / "local"))
    rows = app.stream("rows", Lanes({"0": [{"k": n} for n in range(9)]}, width=3)).key_by("k")
    rows.aggregate("count", n=mp.count()).to("out", mp.sinks.discard())
    return app


def run(place: Path) -> None:
    app = an_app(place)
    driver = driver_of(app, open_storage(app.state_dir), place / "local")
    while driver.batch(WHOLE):
        pass
    driver.release()
    driver.close()
    assert len(dict(app.state("count").items())) == 9


ACTIONS: dict[str, Callable[[mp.App], Any]] = {
    "clear": lambda app: app.clear_state(),
    "rebuild": lambda app: rebuild(app, "count"),
    "switch": lambda app: rebuild(app, "count", switch=True),
    "rescale": lambda app: app.rescale(3) and app.rescale(2),
    "rollback": lambda app: app.rollback(1),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_no_removed_store_stays_open(tmp_path: Path, action: str) -> None:
    run(tmp_path)
    before = len(open_below(tmp_path))
    for _ in range(3):
        ACTIONS[action](an_app(tmp_path))
        run(tmp_path)
        found = open_below(tmp_path)
        assert not [file for file in found if file.endswith("(deleted)")]
        assert len(found) <= before
    close_below(str(tmp_path))
    assert not open_below(tmp_path)


def test_a_store_that_another_process_removed_is_closed_when_the_next_is_opened(tmp_path: Path) -> None:
    for number in range(5):
        replicated(tmp_path / f"p{number}", after(records(4, 1)), lambda view: None)
        subprocess.run(["rm", "-r", tmp_path / f"p{number}"], check=True)
    replicated(tmp_path / "q", after(records(4, 1)), lambda view: None)
    assert not [file for file in open_below(tmp_path) if file.endswith("(deleted)")]
    close_below(str(tmp_path))
    shutil.rmtree(tmp_path)
