"""Windows against Spark's own, as ratios in one run: `make bench-windows`, or `python bench/windows.py [--quick]`.

A count and a sum per key and minute of event time, durably, on two cores. Every batch is a file of 100 seconds of
event time, so that windows close in nearly every one. Medians of the seconds per batch; the first seconds of each way,
in which its JVM warms up, are left out. Millpond and its peer take turns. So do rows of which one key has nine in ten,
and rows whose keys are all as frequent.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import core
import peers
import pyarrow as pa
import pyarrow.parquet as pq
from core import WARM_BATCHES, a_session, in_turns, make_rows, warm, warm_up

import millpond as mp
from millpond.driver.loop import Settings


def value(row: dict[str, Any]) -> Any:
    return row["value"]


def batches(spark: Any, folder: str, size: int, place: Path, by_columns: bool) -> list[float]:
    """Seconds per batch of Millpond, from commit to commit; a function in place of a field makes it go row by row."""
    state = place / f"state-{time.monotonic_ns()}"
    app = mp.App("bench", state_dir=str(state), partitions=2, local_dir=str(state / "local"))
    rows = app.stream("rows", mp.sources.files(folder), timestamp="ts")
    minutes = rows.key_by("key").window("minutes", mp.tumbling("1m"), grace=mp.NO_GRACE)
    minutes.aggregate(n=mp.count(), total=mp.sum("value" if by_columns else value)).to("out", mp.sinks.discard())
    commits: list[float] = []

    def hook(step: str, when: str) -> None:
        if (step, when) == ("commit", "after"):
            commits.append(time.perf_counter())

    began = time.perf_counter()
    mp.lowlevel.run_with(app, Settings(until="caught-up", max_rows=size), spark, hook)
    shutil.rmtree(state)
    return [b - a for a, b in zip([began, *commits], commits, strict=False)]


def batches_after_first(spark: Any, folder: str, size: int, place: Path) -> list[float]:
    """Seconds per batch by columns, without the first batches."""
    return batches(spark, folder, size, place, by_columns=True)[WARM_BATCHES:]


def give_one_key_most_rows(folder: str) -> str:
    """Give nine in ten rows of all files in a folder the same key."""
    for path in Path(folder).iterdir():
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            keys = [key if i % 10 == 0 else "user-0" for i, key in enumerate(table["key"].to_pylist())]
            pq.write_table(table.set_column(0, "key", pa.array(keys)), path)
        else:
            lines = path.read_text().splitlines(keepends=True)
            changed = [re.sub('"key": "[^"]*"', '"key": "user-0"', line) for line in lines]
            path.write_text("".join(lines[i] if i % 10 == 0 else line for i, line in enumerate(changed)))
    return folder


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer batches: a check that it runs, not a measurement")
    quick = parser.parse_args().quick
    if quick:
        core.WARM_SECONDS = 0.0
    place = Path(tempfile.mkdtemp(prefix="bench-"))
    spark = a_session()
    size, files, rounds = (10_000, 6, 1) if quick else (100_000, 40, 3)
    table = []
    for keys in (10_000, 200_000):
        folder = make_rows(place / f"keys-{keys}", files, size, keys, zone="UTC")

        def by_spark(folder: str = folder) -> list[float]:
            return warm(peers.seconds_per_batch("native_windows", folder))

        by_columns = partial(batches_after_first, spark, folder, size, place)

        warm_up(by_columns)
        columns, native = (size / seconds for seconds in in_turns(rounds, by_columns, by_spark))
        rows = size / statistics.median(batches(spark, folder, size, place, by_columns=False)[WARM_BATCHES:])
        for what, other in (("Spark's own groupBy(window, key)", native), ("Millpond, row by row", rows)):
            figure = f"{columns:,.0f} / {other:,.0f} rows/s = {columns / other:.1f}x"
            table.append((f"{keys:,} keys, a count and a sum per minute: Millpond / {what}", figure))
            print(f"{table[-1][0]:90s} {figure}", flush=True)
    for keys, jsonl in ((10_000, False), (100, False), (10_000, True)):
        folder = place / f"skew-{keys}-{jsonl}"
        uniform = make_rows(folder / "uniform", files // 2, size, keys, jsonl, zone="UTC")
        skewed = give_one_key_most_rows(make_rows(folder / "skewed", files // 2, size, keys, jsonl, zone="UTC"))
        ways = [partial(batches_after_first, spark, each, size, place) for each in (skewed, uniform)]
        one, all_keys = (size / seconds for seconds in in_turns(rounds, *ways))
        figure = f"{one:,.0f} / {all_keys:,.0f} rows/s = {one / all_keys:.2f}x"
        what = f"{keys:,} keys, {'lines of JSON' if jsonl else 'Parquet'}: one key has 90 % of the rows / uniform keys"
        table.append((what, figure))
        print(f"{what:90s} {figure}", flush=True)
    shutil.rmtree(place)
    print("\n| what | figure |\n|---|---|")
    for row in table:
        print(f"| {row[0]} | {row[1]} |")
    spark.stop()


if __name__ == "__main__":
    main()
