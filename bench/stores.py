"""Local stores against each other: the same batches on LMDB, RocksDB and memory, in one process.

Each batch reads the state of its keys, changes it, commits, and the store applies the record of the batch before. The
median of the seconds per batch is compared; a second line compares how long a store takes to be built from the log.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from time import perf_counter

import life
from harness import Bench

from millpond.replica.lending import delete_home

STORES = ("lmdb", "rocksdb", "memory")


def replicas_stores(bench: Bench) -> None:
    """Measure batches with many keys, and a start without replicas, on every store."""
    keys, rows, batches = (20_000, 5_000, 4) if bench.is_quick else (1_000_000, 50_000, 12)
    found = {store: _measure(bench.new_folder(f"stores-{store}"), store, keys, rows, batches) for store in STORES}
    steady, built = ({store: times[i] for store, times in found.items()} for i in (0, 1))
    what = f"{keys:,} keys in one partition, on {', '.join(STORES)}"
    bench.lines.append((f"a batch of {rows:,} rows over {what}", _compare(steady)))
    bench.lines.append((f"the first batch of a start without replicas, {what}", _compare(built)))


def _compare(seconds: dict[str, float]) -> str:
    return " / ".join(f"{1000 * each:,.0f} ms" for each in seconds.values())


def _measure(folder: Path, store: str, keys: int, rows: int, batches: int) -> tuple[float, float]:
    """Return the median seconds of a batch, and the seconds of the first batch after the replicas were lost."""
    feed = life.Feed(keys, rows)
    app = life.program(folder, feed, store=store)
    with life.driving(app) as driver:
        feed.upto = keys
        while driver.batch(life.Limit(keys, 1 << 40)):
            pass
        steady = [_batch(driver, feed, rows) for _ in range(batches)]
    delete_home(str(folder / "local"))
    with life.driving(app) as driver:
        built = _batch(driver, feed, rows)
    delete_home(str(folder / "local"))
    return statistics.median(steady), built


def _batch(driver: life.Driver, feed: life.Feed, rows: int) -> float:
    feed.upto += rows
    began = perf_counter()
    driver.batch(life.Limit(rows, 1 << 40))
    return perf_counter() - began
