"""Two copies of a state directory with one local_dir: what each reads is its own, however their processes interleave.

The copies have records of the same numbers. While one fetches what its replica lacks, the other catches the same
replica up: that is where a check made before the fetch says nothing about what is read after it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_drivers import WHOLE, Lanes, driver_of

import millpond as mp
from millpond.clock import SystemClock
from millpond.replica.lmdb_store import close_below
from millpond.state_view import StateView
from millpond.storage import open_storage

COMMON = [{"key": "a", "value": 1}, {"key": "b", "value": 1}]


class Meanwhile:
    """A storage that does something else, once, before it reads a path."""

    def __init__(self, place: Path) -> None:
        self._storage = open_storage(str(place))
        self.path, self.does = "", lambda: None

    def get(self, path: str) -> bytes | None:
        if self.path and path.endswith(self.path):
            self.path = ""
            self.does()
        return self._storage.get(path)

    def before(self, path: str, does: Callable[[], Any]) -> None:
        self.path, self.does = path, does

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


def an_app(rows: list[Any], asked: list[Any]) -> mp.App:
    app = mp.App("copied", partitions=1)
    stream = app.stream("rows", Lanes({"0": rows}, width=1)).key_by("key")
    stream.stateful_map("total", lambda key, row, total: (None, total + row["value"]), initial=0)
    table = app.table("latest", stream, everywhere=True)
    found = app.stream("asked", Lanes({"0": asked}, width=1)).lookup("found", table, on="key")
    found.to("out", mp.sinks.memory())
    return app


def ran(place: Path, rows: list[Any], home: Path) -> Any:
    """A driver that has read these rows, a batch each, and was killed."""
    driver = driver_of(an_app(rows, []), open_storage(str(place)), home)
    while driver.batch(WHOLE):
        pass
    driver.close()
    close_below(str(home))
    return driver


@pytest.fixture
def place(tmp_path: Path) -> Any:
    ran(tmp_path / "one", COMMON, tmp_path / "home")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    yield tmp_path
    close_below(str(tmp_path))


def read(storage: Any, home: Path) -> dict[str, int]:
    return dict(StateView(storage, "copied", "total", SystemClock(), home=str(home)).items())


def newest(place: Path) -> int:
    found = mp.open(str(place), "copied").newest
    assert found is not None
    return found.number


MINE = [{"key": "a", "value": 10}, {"key": "b", "value": 10}]
ITS = [
    [{"key": "a", "value": 100}],
    [{"key": "a", "value": 100}, {"key": "a", "value": 100}],
    [{"key": "a", "value": 100}, {"key": "b", "value": 100}, {"key": "b", "value": 100}],
]


@pytest.mark.parametrize("its", ITS, ids=["behind", "level", "ahead"])
@pytest.mark.parametrize("at", range(6))
def test_a_reader_is_given_what_its_own_ledger_says(place: Path, at: int, its: list[Any]) -> None:
    ran(place / "one", COMMON + MINE, place / "home")
    ran(place / "two", COMMON + its, place / "elsewhere")
    shutil.rmtree(place / "home")
    mine, other = Meanwhile(place / "one"), open_storage(str(place / "two"))
    met: list[dict[str, int]] = []
    mine.before(f"/ledger/{at:020d}.json", lambda: met.append(read(other, place / "home")))
    assert read(mine, place / "home") == {"a": 11, "b": 11}
    assert met, "the other copy was to be read meanwhile"
    theirs = {key: 1 + sum(row["value"] for row in its if row["key"] == key) for key in ("a", "b")}
    assert met == [theirs]
    for _ in range(2):  # and in turns
        assert read(other, place / "home") == theirs
        assert read(mine, place / "home") == {"a": 11, "b": 11}


@pytest.mark.parametrize("at", range(5))
def test_a_batch_builds_on_what_its_own_ledger_says(place: Path, at: int) -> None:
    ran(place / "two", [*COMMON, {"key": "a", "value": 100}], place / "elsewhere")
    storage, other = Meanwhile(place / "one"), open_storage(str(place / "two"))
    rows = [*COMMON, {"key": "a", "value": 10}]
    driver = driver_of(an_app(rows, []), storage, place / "home")
    driver.batch(WHOLE)
    assert driver.last.number == newest(place / "two"), "both stand at the same number"
    close_below(str(place / "home"))
    shutil.rmtree(place / "home")
    rows.append({"key": "a", "value": 10})
    met: list[dict[str, int]] = []
    if at < 4:
        storage.before(f"/ledger/{at:020d}.json", lambda: met.append(read(other, place / "home")))
    else:
        read(other, place / "home")
    driver.batch(WHOLE)
    assert met == ([{"a": 101, "b": 1}] if at < 3 else []), "the records since this driver's claim are not fetched"
    driver.close()
    assert read(open_storage(str(place / "one")), place / "home") == {"a": 21, "b": 1}


@pytest.mark.parametrize("at", range(3))
def test_a_lookup_finds_what_its_own_ledger_says(place: Path, at: int) -> None:
    ran(place / "two", [*COMMON, {"key": "a", "value": 100}], place / "elsewhere")
    storage, asked = Meanwhile(place / "one"), []
    app = an_app([*COMMON, *MINE], asked)
    driver = driver_of(app, storage, place / "home")
    for _ in MINE:
        driver.batch(WHOLE)
    its_app = an_app([*COMMON, {"key": "a", "value": 100}], [{"key": "a"}])
    other = driver_of(its_app, open_storage(str(place / "two")), driver.settings.home)  # type: ignore[arg-type]
    assert other.last.number == driver.last.number, "both build on the same number"
    close_below(str(place / "home"))
    for table in (place / "home").rglob("table-*"):
        shutil.rmtree(table)
    asked.append({"key": "a"})
    storage.before(f"/ledger/{at:020d}.json", lambda: other.batch(WHOLE))
    driver.batch(WHOLE)
    assert not storage.path, "the other copy was to run meanwhile"
    assert mp.lowlevel.program(app).sinks["out"].rows == [{"key": "a", "value": 10}]  # type: ignore[attr-defined]
    driver.close()
    other.close()
