"""Whoever is paused while others go on is told so, and not that files are damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import millpond as mp
from millpond.clock import SystemClock
from millpond.driver.commit import Driver
from millpond.driver.settings import DriverSettings
from millpond.log.ledger import Ledger
from millpond.maintenance.savepoint import read_savepoint
from millpond.runtimes.local import LocalRuntime
from millpond.sources.base import Limit
from millpond.storage import Item, Storage, open_storage
from millpond.testing.faults import FaultyStorage


class Interrupted(FaultyStorage):
    """A storage before whose first matching call something else happens."""

    def __init__(self, inner: Storage, matches: Callable[[str, str], bool], happens: Callable[[], object]) -> None:
        super().__init__(inner)
        self._matches, self._happens = matches, [happens]

    def _before(self, verb: str, path: str) -> None:
        if self._happens and self._matches(verb, path):
            self._happens.pop()()

    def get(self, path: str) -> bytes | None:
        self._before("get", path)
        return super().get(path)

    def put_new(self, path: str, data: bytes | memoryview) -> bool:
        self._before("put_new", path)
        return super().put_new(path, data)

    def list(self, prefix: str, after: str | None = None) -> Iterator[Item]:
        self._before("list", prefix)
        return super().list(prefix, after)


class Bench:
    """An app over rows in memory that keeps little of its past."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep
        self.rows = [{"id": i, "key": "ab"[i % 2]} for i in range(30)]

    def app(self, storage: Storage | None = None, local: str = "local", step: str = "counts") -> mp.App:
        state, home = str(self.folder / "state"), str(self.folder / local)
        app = mp.App("slow", state, 1, local_dir=home, keep=self.keep, compact_every=1)
        app._storage = storage or open_storage(state)
        counts = app.stream("rows", mp.sources.rows(self.rows)).key_by("key").aggregate(step, n=mp.count())
        counts.to("out", mp.sinks.files(self.folder / "out"))
        return app

    def driver(self, storage: Storage | None = None, local: str = "local") -> Driver:
        app, clock = self.app(storage, local), SystemClock()
        return Driver.start(
            mp.lowlevel.program(app),
            LocalRuntime(mp.lowlevel.storage(app), clock),
            mp.lowlevel.storage(app),
            clock,
            DriverSettings(partitions=1, home=app.local_dir, threaded=False, keep=app.keep, compact_every=1),
        )

    def run(self, batches: int) -> None:
        driver = self.driver()
        for _ in range(batches):
            driver.batch(Limit(1, 1 << 30))
        driver.release()

    def read(self, verb: str, part: str, then: int = 8) -> Interrupted:
        """A storage beside which a driver runs some batches, before the first such call."""
        storage = open_storage(str(self.folder / "state"))
        return Interrupted(storage, lambda v, path: v == verb and part in path, lambda: self.run(then))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize("part", ["/ledger/", "/manifests/", "/steps/", "/outputs/"])
def test_a_driver_whose_successor_removed_what_it_reads_is_fenced(bench: Bench, part: str) -> None:
    bench.run(4)
    bench.driver()  # it dies with a claim
    storage = bench.read("get", part)
    try:
        driver = bench.driver(storage, "other")
        while driver.batch(Limit(1, 1 << 30)):
            pass
    except mp.errors.Fenced:
        pass  # and not Corrupt
    bench.run(30)
    assert {key: value["n"] for key, value in bench.app().state("counts").items()} == {"a": 15, "b": 15}


@pytest.mark.parametrize("action", ["rescale", "compact", "savepoint", "rollback"])
@pytest.mark.parametrize("part", ["/manifests/", "/steps/"])
def test_an_action_beside_which_the_app_went_on_says_so(bench: Bench, action: str, part: str) -> None:
    bench.run(6)
    newest = mp.open(str(bench.folder / "state"), "slow").newest
    assert newest is not None
    app = bench.app(bench.read("get", part))
    what: dict[str, Callable[[], Any]] = {
        "rescale": lambda: app.rescale(2),
        "compact": lambda: app.compact(),
        "savepoint": lambda: app.savepoint(bench.folder / "saved"),
        "rollback": lambda: app.rollback(newest.number - 1),
    }
    try:
        what[action]()
    except (mp.errors.Fenced, mp.errors.InvalidUse) as error:
        assert "damaged" not in str(error) and "missing" not in str(error)
    bench.run(30)
    assert {key: value["n"] for key, value in bench.app().state("counts").items()} == {"a": 15, "b": 15}
    assert bench.app().verify().ok


def test_a_reader_that_was_overtaken_reads_the_newest_state(bench: Bench) -> None:
    bench.run(4)
    app = bench.app(bench.read("get", "/manifests/"), "reader")
    assert {key: value["n"] for key, value in app.state("counts").items()} == {"a": 6, "b": 6}
    app = bench.app(bench.read("get", "/manifests/"), "other reader")
    assert app.state("counts").get("a") == {"n": 10}


@pytest.mark.parametrize("part", ["/manifests/", "/steps/"])
def test_a_savepoint_that_was_overtaken_starts_over(bench: Bench, part: str) -> None:
    bench.run(4)
    bench.app(bench.read("get", part)).savepoint(bench.folder / "saved")
    again = mp.App("again", str(bench.folder / "again"), 1, local_dir=str(bench.folder / "local"))
    again.restore(bench.folder / "saved")
    assert sum(value["n"] for _, value in again.state("counts").items()) == 12
    named = read_savepoint(open_storage(str(bench.folder / "saved"))).manifest.files()
    files = [file for file in (bench.folder / "saved").rglob("*.parquet") if "steps" in file.parts]
    assert len(files) == len({file.path for file in named})  # of the first attempt nothing is left


def test_a_savepoint_of_a_batch_that_went_out_of_reach_says_so(bench: Bench) -> None:
    bench.run(4)
    newest = mp.open(str(bench.folder / "state"), "slow").newest
    assert newest is not None
    with pytest.raises(mp.errors.InvalidUse, match="is not within reach"):
        bench.app(bench.read("get", "/steps/")).savepoint(bench.folder / "saved", newest.number)
    with pytest.raises(mp.errors.InvalidUse, match="no longer within reach"):
        newest = mp.open(str(bench.folder / "state"), "slow").newest
        assert newest is not None
        bench.app(bench.read("get", "/steps/")).state("counts").at(newest.number).get("a")


def test_a_savepoint_names_damage_even_if_the_app_goes_on(bench: Bench) -> None:
    bench.run(4)
    storage = open_storage(str(bench.folder / "state"))

    class Goes(FaultyStorage):
        """A storage in which no state can be read, beside an app that goes on before each look at it."""

        def get(self, path: str) -> bytes | None:
            if "/steps/" in path:
                bench.run(1)
                raise mp.errors.Corrupt("the same file is damaged")
            return super().get(path)

    with pytest.raises(mp.errors.Corrupt, match="the same file"):
        bench.app(Goes(storage)).savepoint(bench.folder / "saved")


def test_changes_and_history_that_were_overtaken_start_over(bench: Bench) -> None:
    bench.run(4)
    found = list(bench.app(bench.read("get", "/steps/")).changes("counts"))
    assert found == list(bench.app().changes("counts")) and found
    moments = list(bench.app(bench.read("get", "/steps/")).state("counts").history("a"))
    assert moments == list(bench.app().state("counts").history("a")) and moments


def test_changes_that_were_overtaken_on_the_way_say_so(bench: Bench) -> None:
    bench.run(6)
    found = bench.app().changes("counts")
    assert next(found)
    bench.run(12)
    with pytest.raises(mp.errors.Unavailable, match="Call this again"):
        list(found)


def test_a_file_that_is_damaged_is_still_said_to_be(bench: Bench) -> None:
    bench.run(4)
    for file in (bench.folder / "state" / "slow" / "manifests").iterdir():
        file.write_bytes(b"x")
    with pytest.raises(mp.errors.Corrupt):
        bench.app(local="new").state("counts").get("a")
    with pytest.raises(mp.errors.Corrupt):
        bench.app().rescale(2)


def test_of_two_rollbacks_at_once_one_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keep=100)
    bench.run(6)
    storage = open_storage(str(tmp_path / "state"))
    # The second looks whether it may go back to batch 4, then the first goes back to batch 2 and sets batch 4 aside.
    other = Interrupted(storage, lambda verb, path: path.endswith("05.json"), lambda: bench.app().rollback(2))
    with pytest.raises(mp.errors.Fenced):
        bench.app(other).rollback(4)
    bench.run(30)
    assert {key: value["n"] for key, value in bench.app().state("counts").items()} == {"a": 15, "b": 15}
    lines = [line for file in (tmp_path / "out").glob("*.jsonl") for line in file.read_text().splitlines()]
    assert len(lines) == len(set(lines)) == 30


@pytest.mark.parametrize("action", ["rescale", "drop_step"])
def test_of_two_actions_at_once_one_is_refused(tmp_path: Path, action: str) -> None:
    bench = Bench(tmp_path, keep=100)
    bench.run(3)
    newest = mp.open(str(tmp_path / "state"), "slow").newest
    assert newest is not None

    def act(storage: Storage | None = None) -> str:
        app = bench.app(storage, step="other")
        return app.rescale(2) if action == "rescale" else app.drop_step("counts")

    # The second has looked at the newest record and reads the state, then the first does the same, whole.
    storage = open_storage(str(tmp_path / "state"))
    other = Interrupted(storage, lambda verb, path: verb == "get" and "/manifests/" in path, act)
    with pytest.raises(mp.errors.Fenced):
        act(other)
    after = mp.open(str(tmp_path / "state"), "slow").newest
    assert after is not None and after.number == newest.number + 3  # one claim, one rewrite, one release


def test_a_rollback_that_is_refused_after_its_claim_releases_the_app(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keep=100)
    bench.run(6)
    storage = open_storage(str(tmp_path / "state"))
    # As a driver of an older version does, which states the floor in no record.
    raised = Interrupted(
        storage, lambda verb, _: verb == "put_new", lambda: Ledger(storage, "slow", SystemClock()).raise_floor(5)
    )
    with pytest.raises(mp.errors.InvalidUse, match="not within reach"):
        bench.app(raised).rollback(3)
    newest = mp.open(str(tmp_path / "state"), "slow").newest
    assert newest is not None and newest.kind == "release" and newest.back is None
    bench.run(30)
    assert {key: value["n"] for key, value in bench.app().state("counts").items()} == {"a": 15, "b": 15}


def test_a_rollback_is_not_refused_for_records_that_retention_removed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.run(3)
    for _ in range(3):
        bench.app().compact(keep=1)
    newest = mp.open(str(tmp_path / "state"), "slow").newest
    assert newest is not None
    assert bench.app().rollback(newest.number).startswith("from batch")
    bench.run(30)
    assert {key: value["n"] for key, value in bench.app().state("counts").items()} == {"a": 15, "b": 15}
