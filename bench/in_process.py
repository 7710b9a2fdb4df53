"""Batches of Millpond in one process without Spark, by processor time, so that nothing but Python is measured."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable
from typing import Any

from harness import WARM_BATCHES, Bench

import millpond as mp
from millpond.clock import SystemClock
from millpond.driver.commit import Driver
from millpond.driver.settings import DriverSettings
from millpond.runtimes.local import LocalRuntime
from millpond.sources.base import Limit

Build = Callable[[Any], Any]  # makes a program of the stream of the rows


def batches(app: mp.App, rows: int) -> list[float]:
    """Return the processor time of each batch, without the first ones."""
    storage, clock = mp.lowlevel.storage(app), SystemClock()
    settings = DriverSettings(partitions=app.partitions, home=app.local_dir, threaded=False)
    driver = Driver.start(mp.lowlevel.program(app), LocalRuntime(storage, clock), storage, clock, settings)
    found = []
    began = time.process_time()
    while driver.batch(Limit(rows, 1 << 60)):
        found.append(time.process_time() - began)
        began = time.process_time()
    driver.close()
    return found[WARM_BATCHES:]


def compare(
    bench: Bench, what: str, ways: tuple[Build, Build], folder: str, rows: int, timestamp: str | None = None
) -> None:
    """Note the rows per second of two ways to compute the same outputs, which go to Parquet files.

    The ways take turns. Each round has a median, and the best round counts.
    """
    medians: list[list[float]] = [[], []]
    for _ in range(bench.rounds(3)):
        for build, found in zip(ways, medians, strict=True):
            home = bench.new_folder("state")
            app = mp.App("bench", str(home / "state"), partitions=1, local_dir=str(home / "local"))
            built = build(app.stream("rows", mp.sources.files(folder), timestamp=timestamp))
            built.to("out", mp.sinks.files(home / "out", format="parquet"))
            found.append(statistics.median(batches(app, rows)))
            shutil.rmtree(home)
    one, other = (rows / min(found) for found in medians)
    bench.note_rows(what, one, other)
