"""The core's speed, as ratios in one run: `make bench`, or `python bench/core.py [--quick]`.

Every way keeps one running total per key over the same rows, durably, on two cores. The first seconds of each,
in which its JVM warms up, are left out, and at least two batches. Millpond and its peer take turns. Medians of the
seconds per batch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import numpy as np
import peers
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import millpond as mp
from millpond.clock import SystemClock
from millpond.driver.commit import Driver
from millpond.driver.loop import Settings
from millpond.driver.settings import DriverSettings
from millpond.runtimes.local import LocalRuntime
from millpond.runtimes.spark.session import LOCAL_SETTINGS
from millpond.sources.base import Limit
from millpond.storage import open_storage

WARM_BATCHES, WARM_SECONDS = 2, 16.0


def add_up(key: str, row: dict[str, Any], total: float) -> tuple[dict[str, Any], float]:
    total += row["value"]
    return {"key": key, "offset": row["offset"], "total": total}, total


def make_rows(folder: Path, files: int, rows: int, keys: int, jsonl: bool = False, zone: str | None = None) -> str:
    """Files of (key, offset, ts, value), one batch each."""
    folder.mkdir(parents=True)
    chance = np.random.default_rng(1)
    for number in range(files):
        which = chance.integers(0, keys, rows)
        offsets = np.arange(number * rows, (number + 1) * rows)
        table = pa.table(
            {
                "key": [f"user-{i}" for i in which.tolist()],
                "offset": offsets,
                "ts": pa.array(1_700_000_000_000_000 + offsets * 1000).cast(pa.timestamp("us", zone)),
                "value": chance.integers(0, 100, rows).astype("float64"),
            }
        )
        if jsonl:
            with (folder / f"p{number:04d}.jsonl").open("w") as file:
                for row in table.to_pylist():
                    file.write(json.dumps({**row, "ts": row["ts"].isoformat()}) + "\n")
        else:
            pq.write_table(table, folder / f"p{number:04d}.parquet")
    return str(folder)


def app_over(source: Any, state: Path) -> mp.App:
    app = mp.App("bench", state_dir=str(state), partitions=2, local_dir=str(state / "local"))
    totals = app.stream("rows", source).key_by("key").stateful_map("total", add_up, initial=0.0)
    totals.to("out", mp.sinks.discard())  # as the peers' noop: made, and for Millpond made durable, but taken nowhere
    return app


def millpond_batches(spark: SparkSession, source: Any, rows: int, place: Path) -> list[float]:
    """Seconds per batch of Millpond, from commit to commit."""
    state = place / f"state-{time.monotonic_ns()}"
    app = app_over(source, state)
    commits: list[float] = []

    def hook(step: str, when: str) -> None:
        if (step, when) == ("commit", "after"):
            commits.append(time.perf_counter())

    began = time.perf_counter()
    mp.lowlevel.run_with(app, Settings(until="caught-up", max_rows=rows), spark, hook)
    shutil.rmtree(state)
    return [b - a for a, b in zip([began, *commits], commits, strict=False)]


def python_alone(folder: str, rows: int, place: Path) -> list[float]:
    """CPU seconds per batch of all the Python work, reading to changelog, in one process without Spark."""
    state = place / "state-python"
    app = app_over(mp.sources.files(folder), state)
    storage = open_storage(str(state))
    driver = Driver.start(
        mp.lowlevel.program(app),
        LocalRuntime(storage, SystemClock()),
        storage,
        SystemClock(),
        DriverSettings(partitions=2, home=str(state / "local"), threaded=False),
    )
    import gc

    gc.disable()
    found = []
    for _ in range(8):
        began = time.process_time()
        driver.batch(Limit(rows, 1 << 30))
        found.append(time.process_time() - began)
    gc.enable()
    return found


def a_session() -> SparkSession:
    """The session that Millpond makes where it is given none, but for two cores and the memory of the peers."""
    builder: Any = SparkSession.builder
    for name, value in {**LOCAL_SETTINGS, "spark.master": "local[2,4]", "spark.driver.memory": "4g"}.items():
        builder = builder.config(name, value)
    made: SparkSession = builder.getOrCreate()
    return made


def warm(batches: list[float]) -> list[float]:
    """The batches after the first ones."""
    ended = list(itertools.accumulate(batches))
    first = max(WARM_BATCHES, sum(end < WARM_SECONDS for end in ended))
    if len(batches) - first < 2:
        raise SystemExit(f"too few batches to leave out the first {WARM_SECONDS:.0f} s: {batches}")
    return batches[first:]


def warm_up(way: Callable[[], object]) -> None:
    """The same for a session that stays."""
    began = time.perf_counter()
    way()
    while time.perf_counter() - began < WARM_SECONDS:
        way()


def median(batches: list[float]) -> float:
    return statistics.median(warm(batches))


def in_turns(rounds: int, *ways: Callable[[], list[float]]) -> list[float]:
    """The median seconds per batch of each way. They take turns: the machine is not the same from minute to minute."""
    found: list[list[float]] = [[] for _ in ways]
    for _ in range(rounds):
        for way, batches in zip(ways, found, strict=True):
            batches += way()
    return [statistics.median(batches) for batches in found]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer batches: a check that it runs, not a measurement")
    parser.add_argument("--no-peers", action="store_true", help="Millpond alone, for tuning")
    quick = (options := parser.parse_args()).quick
    if quick:
        global WARM_SECONDS
        WARM_SECONDS = 0.0
    place = Path(tempfile.mkdtemp(prefix="bench-"))
    spark = a_session()
    size = 10_000 if quick else 100_000
    many, rounds = (6, 1) if quick else (40, 2)
    table: list[tuple[str, str]] = []

    def note(what: str, figure: str) -> None:
        table.append((what, figure))
        print(f"{what:70s} {figure}", flush=True)

    for keys in (10_000, 200_000):
        folder = make_rows(place / f"keys-{keys}", many, size, keys)
        few = 4 if quick else 8 if keys == 10_000 else 5  # of which the peer has enough to do
        short = make_rows(place / f"peer-{keys}", few, size, keys)

        def ours(folder: str = folder) -> list[float]:
            return millpond_batches(spark, mp.sources.files(folder), size, place)[WARM_BATCHES:]

        def theirs(short: str = short) -> list[float]:
            return warm(peers.seconds_per_batch("transform_with_state", short))

        warm_up(ours)

        if options.no_peers:
            note(
                f"{keys:,} keys, batches of {size:,} rows: Millpond", f"{size / statistics.median(ours()):,.0f} rows/s"
            )
            continue
        a, b = (size / seconds for seconds in in_turns(rounds, ours, theirs))
        note(
            f"{keys:,} keys, batches of {size:,} rows: Millpond / transformWithState (Row)",
            f"{a:,.0f} / {b:,.0f} rows/s = {a / b:.1f}x",
        )
    small = make_rows(place / "small", 30 if quick else 120, 100, 100)
    tiny = statistics.median(millpond_batches(spark, mp.sources.files(small), 100, place)[20:])
    if not options.no_peers:
        base = median(peers.seconds_per_batch("count_only", small))
        note(
            "a batch of 100 rows: Millpond / foreachBatch that only counts",
            f"{tiny:.3f} / {base:.3f} s = {tiny / base:.2f}x",
        )
    else:
        note("a batch of 100 rows: Millpond", f"{tiny:.3f} s")
    wide = make_rows(place / "wide", 1 if quick else 4, size * 10, 10_000)
    big = millpond_batches(spark, mp.sources.files(wide), size * 10, place)
    note(f"batches of {size * 10:,} rows", f"{size * 10 / min(big):,.0f} rows/s")
    parquet = str(place / "keys-10000")
    python = python_alone(parquet, size, place)
    note("the Python work alone, reading to changelog and outputs, one core", f"{size / min(python):,.0f} rows/s")
    text = make_rows(place / "text", 6 if quick else 20, size, 10_000, jsonl=True)
    lines, columns = (
        size / seconds
        for seconds in in_turns(
            rounds,
            lambda: millpond_batches(spark, mp.sources.files(text), size, place)[WARM_BATCHES:],
            lambda: millpond_batches(spark, mp.sources.files(parquet), size, place)[WARM_BATCHES:],
        )
    )
    note("JSON lines without a schema / Parquet", f"{lines:,.0f} / {columns:,.0f} rows/s = {lines / columns:.2f}x")
    frame = spark.readStream.schema(peers.SCHEMA).option("maxFilesPerTrigger", 1).parquet(parquet)
    framed, columns = (
        size / seconds
        for seconds in in_turns(
            rounds,
            lambda: millpond_batches(spark, frame, size, place)[WARM_BATCHES:],
            lambda: millpond_batches(spark, mp.sources.files(parquet), size, place)[WARM_BATCHES:],
        )
    )
    note(
        "streaming DataFrame as the source / our own file source",
        f"{framed:,.0f} / {columns:,.0f} rows/s = {framed / columns:.2f}x",
    )
    if not options.no_peers:
        counts = peers.seconds_per_batch("count_only", parquet)
        counted = size / statistics.median(counts[many // 2 :])  # the first half warms up its JVM
        note(
            "the same DataFrame: Millpond / foreachBatch that only counts",
            f"{framed:,.0f} / {counted:,.0f} rows/s = {framed / counted:.2f}x",
        )
    shutil.rmtree(place)
    print("\n| what | figure |\n|---|---|")
    for row in table:
        print(f"| {row[0]} | {row[1]} |")
    spark.stop()


if __name__ == "__main__":
    main()
