"""A soak: random actions on an app under load. All that is held stays bounded, and the state is a fold of the input.

`MILLPOND_SOAK_SECONDS` says for how long in all; a seed goes on for longer until it has done every kind of action.
`MILLPOND_SOAK_SEED` is a seed, or "random". Without it a fixed list of seeds is run.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from local_drivers import start_driver
from small_rebuilds import rebuild

import millpond as mp
from millpond.driver.commit import STEPS
from millpond.replica.lmdb_store import close_below
from millpond.sources.base import Limit

SECONDS = float(os.environ.get("MILLPOND_SOAK_SECONDS", "300"))
# `make test` and CI run the same seeds each time; `make soak` takes one by chance.
SEEDS = [484801, 1, 7]
FILES_OF_A_STORE = 4  # LMDB's data, twice, and its locks; our signature
SPARE = 4  # files that come and go, as those of a library that is loaded late


def seeds() -> list[int]:
    said = os.environ.get("MILLPOND_SOAK_SEED", "")
    if said == "random":
        return [random.SystemRandom().randrange(1, 10**6)]
    return [int(said)] if said else SEEDS


KEYS = 300
BUCKET = 1000


class Died(BaseException):
    """As if the process had been killed."""


def doubled(total: int) -> dict[str, int]:
    return {"total": total}


def plain(state: dict[str, int]) -> int:
    return state["total"]


class Soak:
    """An app, what was fed to it, and what can be done to it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.chance = folder, random.Random(seed)
        self.version, self.name, self.renamed = 1, "total", 0
        self.partitions = 2
        self.totals: dict[str, int] = {}
        self.counts: dict[tuple[str, int], int] = {}
        self.fed = 0
        self.did: dict[str, int] = {}

    def app(self, **other: Any) -> mp.App:
        how = {"name": "soak", "state": "state", "partitions": self.partitions, **other}
        app = mp.App(
            how["name"],
            str(self.folder / how["state"]),
            how["partitions"],
            local_dir=str(self.folder / "local"),
            keep=25,
            compact_every=7,
        )
        rows = app.stream("rows", mp.sources.files(self.folder / "in"), timestamp="at").key_by("k")
        named = self.version % 2 == 0

        def add(key: str, row: dict[str, Any], state: Any) -> tuple[Any, Any]:
            total = (state["total"] if named else state) + row["v"]
            return None, {"total": total} if named else total

        migrate = {v: (doubled if v % 2 else plain) for v in range(1, self.version)}
        rows.stateful_map(
            self.name,
            add,
            initial={"total": 0} if named else 0,
            version=self.version,
            migrate=migrate,
            renamed_from=None if self.renamed == 0 else f"total {self.renamed - 1}" if self.renamed > 1 else "total",
        ).to("none", mp.sinks.discard())
        rows.window("thousands", mp.tumbling(BUCKET), grace=mp.NO_GRACE).aggregate(n=mp.count()).to(
            "windows", mp.sinks.files(self.folder / f"windows-{how['name']}")
        )
        rows.deduplicate("once", by="id", within=2 * BUCKET).to("ids", mp.sinks.discard())
        return app

    def feed(self) -> None:
        count = self.chance.randrange(1, 400)
        rows = []
        for _ in range(count):
            row: dict[str, Any] = {
                "id": self.fed,
                "k": f"k{self.chance.randrange(KEYS)}",
                "v": self.chance.randrange(9),
                "at": self.fed,
            }
            rows.append(row)
            self.fed += 1
            self.totals[row["k"]] = self.totals.get(row["k"], 0) + row["v"]
            window = (row["k"], row["at"] // BUCKET)
            self.counts[window] = self.counts.get(window, 0) + 1
        path = self.folder / "in" / f"{self.fed:012d}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(self, app: mp.App | None = None, hook: Callable[[Any, Any], None] | None = None) -> None:
        app = app or self.app()
        driver = start_driver(app, hook=hook)
        while driver.batch(Limit(200, 1 << 20)):
            pass
        driver.release()
        driver.close()

    # --- what may happen ---

    def crash(self) -> None:
        at, when = self.chance.choice(STEPS), self.chance.choice(["before", "during", "after"])
        self.feed()

        def hook(step: str, moment: str) -> None:
            if (step, moment) == (at, when):
                raise Died

        try:
            self.run(hook=hook)
        except Died:
            close_below(str(self.folder / "local"))

    def lose_replicas(self) -> None:
        close_below(str(self.folder / "local"))
        shutil.rmtree(self.folder / "local", ignore_errors=True)

    def rescale(self) -> None:
        self.partitions = self.chance.randrange(1, 6)
        if self.chance.random() < 0.5:
            self.app().rescale(self.partitions)

    def rollback(self) -> None:
        newest = mp.open(str(self.folder / "state"), "soak").newest
        assert newest is not None
        try:
            self.app().rollback(max(newest.born + 1, newest.number - self.chance.randrange(1, 15)))
        except mp.errors.InvalidUse as error:
            assert "was set aside" in str(error)
            return
        newest = mp.open(str(self.folder / "state"), "soak").newest
        assert newest is not None
        self.partitions = newest.partitions
        info = newest.steps[self.name]
        assert info.version == self.version

    def save_and_restore(self) -> None:
        self.app().savepoint(self.folder / "saved")
        other = self.app(name="other", state="other", partitions=self.chance.randrange(1, 5))
        other.restore(self.folder / "saved")
        self.check(other)
        close_below(str(self.folder / "local"))
        shutil.rmtree(self.folder / "saved")
        shutil.rmtree(self.folder / "other")
        shutil.rmtree(self.folder / "local" / "other", ignore_errors=True)

    def compact(self) -> None:
        self.app().compact()

    def migrate(self) -> None:
        self.version += 1
        self.run()
        self.app().compact()  # what was before the migration is out of reach of a rollback
        for _ in range(26):
            self.feed()
            self.run()

    def rename(self) -> None:
        self.renamed += 1
        self.name = f"total {self.renamed}"
        self.run()
        for _ in range(26):
            self.feed()
            self.run()

    def rebuild(self) -> None:
        if self.version > 1 or self.fed > 60_000:
            return  # it reads all of the input again
        self.run()
        app = self.app()
        assert rebuild(app, self.name, switch=True) == []

    def verify(self) -> None:
        verdict = self.app().verify()
        assert verdict.ok, verdict.damaged

    # --- what must hold ---

    def check(self, app: mp.App | None = None) -> None:
        app = app or self.app()
        held = dict(app.state(self.name).items())
        if self.version % 2 == 0:
            held = {key: value["total"] for key, value in held.items()}
        assert held == self.totals, self.did

    def check_windows(self) -> None:
        found: dict[tuple[str, int], int] = {}
        for file in (self.folder / "windows-soak").glob("*.jsonl"):
            for line in file.read_text().splitlines():
                row = json.loads(line)
                window = (row["k"], row["window_start"] // BUCKET)
                assert window not in found, f"{window} came twice"
                found[window] = row["n"]
        closed = (self.fed - 1) // BUCKET
        assert found == {window: n for window, n in self.counts.items() if window[1] < closed}, self.did


def held_memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def open_files() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return found


@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", seeds())
def test_random_actions_under_load_leave_the_state_right_and_everything_bounded(tmp_path: Path, seed: int) -> None:
    seconds = SECONDS / len(seeds())
    print(f"\nMILLPOND_SOAK_SEED={seed} MILLPOND_SOAK_SECONDS={seconds:.0f}")
    soak = Soak(tmp_path, seed)
    others = len(open_files())
    actions = [
        soak.crash, soak.crash, soak.lose_replicas, soak.rescale, soak.rollback, soak.save_and_restore,
        soak.compact, soak.migrate, soak.rename, soak.rebuild, soak.verify,
    ]  # fmt: skip
    soak.feed()
    soak.run()
    measures: list[tuple[int, int, int]] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(soak.did) < len(set(actions)):
        for _ in range(soak.chance.randrange(1, 6)):
            soak.feed()
            soak.run()
        action = soak.chance.choice(actions)
        soak.did[action.__name__] = soak.did.get(action.__name__, 0) + 1
        action()
        soak.run()
        soak.check()
        gc.collect()
        disk = size_of(tmp_path / "state") + size_of(tmp_path / "local" / "soak")
        files = open_files()
        measures.append((held_memory(), len(files), disk))
        # One store per partition stays open, and none whose files have been removed.
        assert not [file for file in files if file.startswith(str(tmp_path)) and file.endswith("(deleted)")], soak.did
        assert len(files) <= others + FILES_OF_A_STORE * soak.partitions + SPARE, soak.did
    soak.check_windows()
    soak.verify()
    close_below(str(tmp_path))
    print(f"{soak.fed} rows, {len(measures)} actions: {soak.did}")
    memory, counts, sizes = zip(*measures, strict=True)
    early = max(3, len(measures) // 4)
    print(f"memory {max(memory) >> 20} MB, open files {max(counts)}, state and replicas {max(sizes) >> 10} KB")
    assert max(memory) < max(memory[:early]) + (150 << 20)
    assert max(sizes) < 24 << 20
