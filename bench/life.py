"""The life of state, measured: `make bench-life`, or `python bench/life.py [--quick | --large]`.

Everything runs in one process, so on one core: the real steps, the commit protocol and the local disk, and no Spark.
Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import millpond as mp
from millpond.clock import SystemClock
from millpond.driver.commit import Driver
from millpond.driver.settings import DriverSettings
from millpond.log.manifest import read_manifest
from millpond.runtimes.local import LocalRuntime
from millpond.sources.base import Chunk, Limit, Split
from millpond.storage import Storage, open_storage


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    keys: int
    rows: int  # in a batch
    batches: int
    commits: int


SIZES = {
    "quick": Size(50_000, 10_000, 6, 300),
    "usual": Size(1_000_000, 100_000, 12, 5_000),
    "large": Size(10_000_000, 100_000, 12, 100_000),
}


class Feed:
    """A source whose rows are made of their place: a row of every key, and then keys by chance.

    With `hot`, each batch has rows of so many keys, chosen from all of them.
    """

    def __init__(self, keys: int, rows: int, hot: int | None = None) -> None:
        self.keys, self.rows, self.hot, self.upto = keys, rows, hot, 0

    def plan(self, position: Mapping[str, Any], limit: Limit, now: float) -> list[Split]:
        done = position.get("0", 0)
        stop = min(done + self.rows, self.upto)
        return [Split("0", done, stop)] if stop > done else []

    def read(self, split: Split) -> Iterator[Chunk]:
        if split.stop <= self.keys:
            keys = range(split.start, split.stop)
        else:
            chance, count = np.random.default_rng(split.start), split.stop - split.start
            found = chance.integers(0, self.keys, count)
            if self.hot is not None:
                found = chance.choice(chance.integers(0, self.keys, self.hot), count)
            keys = found.tolist()
        yield Chunk([{"k": f"user-{key:08d}", "v": key % 97} for key in keys], split.stop)


def add_up(key: str, row: dict[str, Any], total: int) -> tuple[None, int]:
    return None, total + row["v"]


def program(folder: Path, feed: Feed, **how: Any) -> mp.App:
    app = mp.App("life", str(folder / "state"), 1, local_dir=str(folder / "local"), **how)
    app.stream("rows", feed).key_by("k").stateful_map("total", add_up, initial=0)
    return app


@contextmanager
def driving(app: mp.App, storage: Storage | None = None, threaded: bool = False) -> Iterator[Driver]:
    clock = SystemClock()
    storage = storage or mp.lowlevel.storage(app)
    driver = Driver.start(
        mp.lowlevel.program(app),
        LocalRuntime(storage, clock),
        storage,
        clock,
        DriverSettings(
            partitions=app.partitions,
            home=app.local_dir,
            threaded=threaded,
            keep=app.keep,
            compact_every=app.compact_every,
        ),
    )
    try:
        yield driver
        driver.release()
    finally:
        driver.close()


def batches(driver: Driver, feed: Feed, count: int) -> list[float]:
    """Seconds of each of some batches."""
    found = []
    for _ in range(count):
        feed.upto += feed.rows
        begin = perf_counter()
        driver.batch(Limit(1 << 40, 1 << 60))
        found.append(perf_counter() - begin)
    return found


def fill(driver: Driver, feed: Feed) -> None:
    """A row of every key."""
    batches(driver, feed, -(-feed.keys // feed.rows))


def recovery(folder: Path, size: Size) -> str:
    feed = Feed(size.keys, size.rows)
    app = program(folder, feed, compact_every=1000)
    with driving(app) as driver:
        fill(driver, feed)
    app.compact(keep=1)
    app.state("total").get("user-00000000")
    times = []
    for _ in range(3):
        shutil.rmtree(folder / "local")
        fresh = program(folder, feed)
        begin = perf_counter()
        assert fresh.state("total").get("user-00000001") == 1
        times.append(perf_counter() - begin)
    return f"{size.keys / statistics.median(times):,.0f} keys/s"


def amount(folder: Path, size: Size) -> str:
    feed = Feed(size.keys, size.rows)
    app = program(folder, feed, compact_every=4, keep=1)
    with driving(app) as driver:
        fill(driver, feed)
        batches(driver, feed, 3 * size.batches)
    stored = sum(item.size for item in mp.lowlevel.storage(app).list("life/steps"))
    other = program(folder / "other", feed)
    app.savepoint(folder / "saved")
    other.restore(folder / "saved")
    other.rescale(2)
    other.rescale(1)  # all of it is written anew: one run, and nothing that is overwritten
    newest = mp.open(str(folder / "other" / "state"), "life").newest
    assert newest is not None and newest.manifest is not None
    alive = sum(file.bytes for file in read_manifest(mp.lowlevel.storage(other), newest.manifest).files())
    return f"{stored / alive:.2f} bytes per live byte"


def beside(folder: Path, size: Size) -> str:
    medians = []
    for number, every in enumerate((1_000_000, 3)):
        feed = Feed(size.keys, size.rows)
        app = program(folder / str(number), feed, compact_every=every, keep=5)
        with driving(app, threaded=True) as driver:
            fill(driver, feed)
            driver.compactor.wait()
            times = batches(driver, feed, 2 * size.batches)
        medians.append(statistics.mean(times))
    return f"{medians[1] / medians[0]:.2f} × ({medians[0]:.2f} s without)"


def many_keys(folder: Path, size: Size, hot: int | None = None) -> str:
    rates = []
    for keys in (10_000, size.keys):
        feed = Feed(keys, size.rows, hot)
        app = program(folder / str(keys), feed, compact_every=1000)
        with driving(app) as driver:
            fill(driver, feed)
            rates.append(size.rows / statistics.median(batches(driver, feed, size.batches)[2:]))
    return f"{rates[1] / rates[0]:.0%} of {rates[0]:,.0f} rows/s"


def start_up(folder: Path, size: Size) -> str:
    found = []
    for commits in (10, size.commits):
        place, feed = folder / str(commits), Feed(100, 1)
        app = program(place, feed)
        held = open_storage("memory://")  # so many commits to a disk would take all day
        with driving(app, held) as driver:
            batches(driver, feed, commits)
        for item in held.list(""):
            mp.lowlevel.storage(app).put(item.path, held.get(item.path) or b"")
        shutil.rmtree(place / "local")
        times = []
        for _ in range(5):
            begin = perf_counter()
            with driving(app, threaded=True) as driver:
                batches(driver, feed, 1)
                times.append(perf_counter() - begin)
        found.append(statistics.median(times))
    return f"{found[1] / found[0]:.2f} × ({found[0] * 1000:.0f} ms after 10)"


MEASURES = {
    "recovery": ("recovery of {keys:,} keys from a snapshot, one core", "500,000 keys/s", recovery),
    "amount": ("stored after compaction, {keys:,} keys", "2 bytes per live byte or less", amount),
    "beside": ("batch time with compaction beside it, against without", "1.3 × or less", beside),
    "keys": ("rows/s at {keys:,} keys, against 10,000", "70% or more", many_keys),
    "hot": (
        "the same, each batch with rows of 10,000 keys of all of them",
        "70% or more",
        lambda folder, size: many_keys(folder, size, 10_000),
    ),
    "start": ("start-up and first batch after {commits:,} commits, against 10", "1.5 × or less", start_up),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: whether it runs, not how fast")
    parser.add_argument("--large", action="store_true", help="ten million keys, a hundred thousand commits")
    parser.add_argument("only", nargs="*", choices=[*MEASURES, []], help="which ones; all, if none is said")
    chosen = parser.parse_args()
    size = SIZES["quick" if chosen.quick else "large" if chosen.large else "usual"]
    print("| what | measured | goal |\n|---|---|---|")
    for name in chosen.only or MEASURES:
        what, goal, measure = MEASURES[name]
        with tempfile.TemporaryDirectory(prefix="millpond-life-") as folder:
            told = what.format(keys=size.keys, commits=size.commits)
            print(f"| {told} | {measure(Path(folder), size)} | {goal} |", flush=True)


if __name__ == "__main__":
    main()
