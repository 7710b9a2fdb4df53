"""`map_batch` against `map` over a numeric column, as ratios in one run: `make bench-columns`.

Parquet files of (key, ts, value), a batch each, through the local runtime, so that nothing but Python is measured.
Both ways compute the same rows from the same files, take turns, and are compared by the processor time of a batch.
Medians; the first batches, which fill caches, are left out.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import millpond as mp
from millpond.clock import SystemClock
from millpond.driver.commit import Driver
from millpond.driver.settings import DriverSettings
from millpond.runtimes.local import LocalRuntime
from millpond.sources.base import Limit
from millpond.storage import open_storage

WARM_BATCHES = 2
RARE = 1_099.0  # about one value in a thousand is larger, once it is scaled


def scale(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "value": row["value"] * 1.1}


def scale_column(table: pa.Table) -> pa.Table:
    return table.set_column(table.column_names.index("value"), "value", pc.multiply(table["value"], 1.1))


def scale_and_choose(table: pa.Table) -> pa.Table:
    table = scale_column(table)
    return table.filter(pc.greater(table["value"], RARE))


def rare_by_row(rows: Any) -> Any:
    return rows.map(scale).filter(lambda row: row["value"] > RARE)


def rare_by_column(rows: Any) -> Any:
    return rows.map_batch(scale_and_choose)


def windows_by_row(rows: Any) -> Any:
    windows = rows.map(scale).key_by("key").window("minutes", mp.tumbling("1m"), grace=mp.NO_GRACE)
    return windows.aggregate(n=mp.count(), total=mp.sum("value"))


def windows_by_column(rows: Any) -> Any:
    windows = rows.map_batch(scale_column).key_by("key").window("minutes", mp.tumbling("1m"), grace=mp.NO_GRACE)
    return windows.aggregate(n=mp.count(), total=mp.sum("value"))


def make_files(folder: Path, files: int, rows: int) -> None:
    """Each file has a minute of event time, so that windows close in every batch."""
    folder.mkdir()
    chance = np.random.default_rng(1)
    for number in range(files):
        at = 1_700_000_000_000_000 + number * 60_000_000 + np.arange(rows) * (60_000_000 // rows)
        table = pa.table(
            {
                "key": [f"user-{i}" for i in chance.integers(0, 1000, rows).tolist()],
                "ts": pa.array(at).cast(pa.timestamp("us", "UTC")),
                "value": chance.random(rows) * 1000,
            }
        )
        pq.write_table(table, folder / f"{number:05d}.parquet")


def seconds_per_batch(
    build: Callable[[Any], Any], timestamp: str | None, folder: Path, size: int, place: Path
) -> float:
    """The median processor time of a batch."""
    home = place / f"state-{time.monotonic_ns()}"
    app = mp.App("bench", state_dir=str(home / "state"), partitions=1)
    build(app.stream("rows", mp.sources.files(folder), timestamp=timestamp)).to("out", mp.sinks.files(home / "out"))
    storage, clock = open_storage(str(home / "state")), SystemClock()
    settings = DriverSettings(partitions=1, home=str(home / "local"), threaded=False)
    driver = Driver.start(mp.lowlevel.program(app), LocalRuntime(storage, clock), storage, clock, settings)
    found = []
    began = time.process_time()
    while driver.batch(Limit(size, 1 << 60)):
        found.append(time.process_time() - began)
        began = time.process_time()
    driver.close()
    shutil.rmtree(home)
    return statistics.median(found[WARM_BATCHES:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer batches: a check that it runs, not a measurement")
    quick = parser.parse_args().quick
    size, files, rounds = (10_000, 4, 1) if quick else (200_000, 8, 3)
    place = Path(tempfile.mkdtemp(prefix="bench-"))
    make_files(place / "in", files, size)
    table = []
    for what, timestamp, by_column, by_row in (
        ("scale a column and choose one row in a thousand, to files", None, rare_by_column, rare_by_row),
        ("scale a column, and a count and a sum per key and minute", "ts", windows_by_column, windows_by_row),
    ):
        columns, rows = [], []
        for _ in range(rounds):
            columns.append(seconds_per_batch(by_column, timestamp, place / "in", size, place))
            rows.append(seconds_per_batch(by_row, timestamp, place / "in", size, place))
        fast, slow = size / min(columns), size / min(rows)
        table.append((f"{what}: map_batch / map", f"{fast:,.0f} / {slow:,.0f} rows/s = {fast / slow:.1f}x"))
        print(f"{table[-1][0]:90s} {table[-1][1]}", flush=True)
    shutil.rmtree(place)
    print("\n| what | figure |\n|---|---|")
    for row in table:
        print(f"| {row[0]} | {row[1]} |")


if __name__ == "__main__":
    main()
