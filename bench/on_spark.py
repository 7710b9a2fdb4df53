"""Batches of Millpond on Spark, on two cores: seconds from commit to commit."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from harness import WARM_BATCHES, Bench
from pyspark.sql import SparkSession

import millpond as mp
from millpond.driver.loop import Settings
from millpond.runtimes.spark.session import LOCAL_SETTINGS


def a_session() -> SparkSession:
    """The session that Millpond makes where it is given none, but for two cores and the memory of the peers."""
    builder: Any = SparkSession.builder
    for name, value in {**LOCAL_SETTINGS, "spark.master": "local[2,4]", "spark.driver.memory": "4g"}.items():
        builder = builder.config(name, value)
    made: SparkSession = builder.getOrCreate()
    return made


def all_batches(
    bench: Bench, source: Any, build: Callable[[Any], Any], rows: int, timestamp: str | None = None
) -> list[float]:
    """Return the seconds of each batch of a program, which `build` makes of the stream of the rows."""
    home = bench.new_folder("state")
    app = mp.App("bench", state_dir=str(home), partitions=2, local_dir=str(home / "local"))
    # As the peers' noop: outputs are made, and for Millpond made durable, but taken nowhere.
    build(app.stream("rows", source, timestamp=timestamp)).to("out", mp.sinks.discard())
    commits: list[float] = []

    def hook(step: str, when: str) -> None:
        if (step, when) == ("commit", "after"):
            commits.append(time.perf_counter())

    began = time.perf_counter()
    mp.lowlevel.run_with(app, Settings(until="caught-up", max_rows=rows), bench.spark, hook)
    shutil.rmtree(home)
    return [b - a for a, b in zip([began, *commits], commits, strict=False)]


def batches(
    bench: Bench, source: Any, build: Callable[[Any], Any], rows: int, timestamp: str | None = None
) -> list[float]:
    """Return the same without the first batches."""
    return all_batches(bench, source, build, rows, timestamp)[WARM_BATCHES:]
