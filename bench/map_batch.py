"""Columns against rows, as ratios in one run: `make bench-columns`.

`map_batch` against `map`; `apply_batch`, and running aggregates by columns, against `stateful_map`.

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
from collections.abc import Callable, Iterator
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


ALPHA = 0.1  # of the moving average


def average(key: str, row: dict[str, Any], before: float | None) -> tuple[dict[str, Any], float]:
    value = row["value"]
    ema = value if before is None else before + ALPHA * (value - before)
    return {"key": key, "value": value, "ema": ema}, ema


def average_column(rows: pa.Table, states: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Compute the average of the first rows of all keys at once, then of the second ones, and so on."""
    place = pc.index_in(rows["key"], states["key"]).to_numpy()
    counts = np.bincount(place, minlength=len(states))
    keys = np.argsort(-counts)  # the key with most rows comes first
    counts, rank = counts[keys], np.argsort(keys)
    by_key = pc.array_sort_indices(pa.array(rank[place])).to_numpy()  # rows of one key stay in their order
    nth = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    order = by_key[pc.array_sort_indices(pa.array(nth)).to_numpy()]  # the first rows of all keys, then the second ones
    values = rows["value"].to_numpy()[order]
    now = states["ema"].to_numpy()[keys]  # NaN where there is no state
    now = np.where(np.isnan(now), values[: len(keys)], now)
    found, start = np.empty(len(values)), 0
    for count in np.searchsorted(-counts, -np.arange(counts[0])).tolist():
        part = now[:count]  # of the keys that have another row
        part += ALPHA * (values[start : start + count] - part)
        found[start : start + count] = part
        start += count
    ema, after = np.empty(len(values)), np.empty(len(states))
    ema[order], after[keys] = found, now
    outputs = pa.table({"key": rows["key"], "value": rows["value"], "ema": ema})
    return outputs, pa.table({"key": states["key"], "ema": after})


def keep_average(key: str, row: dict[str, Any], before: float | None) -> tuple[None, float]:
    return None, average(key, row, before)[1]


def keep_average_column(rows: pa.Table, states: pa.Table) -> tuple[None, pa.Table]:
    return None, average_column(rows, states)[1]


def states_by_row(rows: Any) -> Any:
    return rows.key_by("key").stateful_map("ema", keep_average)


def states_by_column(rows: Any) -> Any:
    return rows.key_by("key").apply_batch("ema", keep_average_column, state={"ema": float})


def averages_by_row(rows: Any) -> Any:
    return rows.key_by("key").stateful_map("ema", average)


def averages_by_column(rows: Any) -> Any:
    return rows.key_by("key").apply_batch("ema", average_column, state={"ema": float})


def totals_by_row(rows: Any) -> Any:
    def add(key: str, row: dict[str, Any], state: tuple[float, int]) -> Any:
        total, n = state[0] + row["value"], state[1] + 1
        return {"key": key, "total": total, "n": n}, (total, n)

    return rows.key_by("key").stateful_map("totals", add, initial=(0.0, 0))


def totals_by_column(rows: Any) -> Any:
    return rows.key_by("key").aggregate("totals", total=mp.sum("value"), n=mp.count())


def total_by_row(rows: Any) -> Any:
    def add(key: str, row: dict[str, Any], total: float) -> Any:
        total += row["value"]
        return {"key": key, "total": total}, total

    return rows.key_by("key").stateful_map("totals", add, initial=0.0)


def total_by_column(rows: Any) -> Any:
    return rows.key_by("key").aggregate("totals", total=mp.sum("value"))


def make_files(folder: Path, files: int, rows: int, keys: int = 1000) -> None:
    """Each file has a minute of event time, so that windows close in every batch."""
    folder.mkdir()
    chance = np.random.default_rng(1)
    for number in range(files):
        at = 1_700_000_000_000_000 + number * 60_000_000 + np.arange(rows) * (60_000_000 // rows)
        table = pa.table(
            {
                "key": [f"user-{i}" for i in chance.integers(0, keys, rows).tolist()],
                "ts": pa.array(at).cast(pa.timestamp("us", "UTC")),
                "value": chance.random(rows) * 1000,
            }
        )
        pq.write_table(table, folder / f"{number:05d}.parquet", row_group_size=rows // 4)  # a split is a row group


def seconds_per_batch(
    build: Callable[[Any], Any], timestamp: str | None, folder: Path, size: int, place: Path
) -> float:
    """The median processor time of a batch."""
    home = place / f"state-{time.monotonic_ns()}"
    app = mp.App("bench", state_dir=str(home / "state"), partitions=1)
    build(app.stream("rows", mp.sources.files(folder), timestamp=timestamp)).to(
        "out", mp.sinks.files(home / "out", format="parquet")
    )
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


def compare(by_column: Any, by_row: Any, timestamp: str | None, folder: Path, size: int, rounds: int) -> str:
    """The rows per second of both ways, which take turns, and their ratio."""
    columns, rows = [], []
    for _ in range(rounds):
        columns.append(seconds_per_batch(by_column, timestamp, folder, size, folder.parent))
        rows.append(seconds_per_batch(by_row, timestamp, folder, size, folder.parent))
    fast, slow = size / min(columns), size / min(rows)
    return f"{fast:,.0f} / {slow:,.0f} rows/s = {fast / slow:.1f}x"


def compare_aggregates(place: Path, quick: bool) -> Iterator[tuple[str, str]]:
    """Running aggregates of 10,000 keys, in batches of 100,000 rows."""
    size, files, rounds = (10_000, 4, 1) if quick else (100_000, 12, 3)
    folder = place / "keys"
    make_files(folder, files, size, keys=10_000)
    for what, by_column, by_row in (
        ("a running sum and count per key, to files", totals_by_column, totals_by_row),
        ("a running sum per key, to files", total_by_column, total_by_row),
    ):
        yield f"{what}: aggregate / stateful_map", compare(by_column, by_row, None, folder, size, rounds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer batches: a check that it runs, not a measurement")
    quick = parser.parse_args().quick
    size, files, rounds = (10_000, 4, 1) if quick else (200_000, 8, 3)
    place = Path(tempfile.mkdtemp(prefix="bench-"))
    make_files(place / "in", files, size)
    table = []
    mapped, applied = "map_batch / map", "apply_batch / stateful_map"

    def note(what: str, figure: str) -> None:
        table.append((what, figure))
        print(f"{what:90s} {figure}", flush=True)

    for what, timestamp, by_column, by_row in (
        (f"scale a column and choose one row in a thousand, to files: {mapped}", None, rare_by_column, rare_by_row),
        (f"scale a column, and count and sum per key and minute: {mapped}", "ts", windows_by_column, windows_by_row),
        (f"exponential moving average per key, to files: {applied}", None, averages_by_column, averages_by_row),
        (f"exponential moving average per key, state only: {applied}", None, states_by_column, states_by_row),
    ):
        note(what, compare(by_column, by_row, timestamp, place / "in", size, rounds))
    for what, figure in compare_aggregates(place, quick):
        note(what, figure)
    shutil.rmtree(place)
    print("\n| what | figure |\n|---|---|")
    for row in table:
        print(f"| {row[0]} | {row[1]} |")


if __name__ == "__main__":
    main()
