"""Spark's own state in Python, and Spark doing next to nothing: what Millpond is measured against.

Each peer runs in a process and a session of its own, with PySpark's settings as they come, but for two cores, two
shuffle partitions and as much memory as Millpond has: `python bench/peers.py transform_with_state FOLDER`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

SCHEMA = "key string, offset long, ts timestamp, value double"


class RunningTotal(StatefulProcessor):
    """One running total per key, with transformWithState."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "total double")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timers: Any) -> Iterator[Row]:
        held = self.total.get()
        total = held[0] if held else 0.0
        for row in rows:
            total += row.value
            yield Row(key=row.key, offset=row.offset, total=total)
        self.total.update((total,))

    def close(self) -> None:
        pass


def seconds_per_batch(peer: str, folder: str) -> list[float]:
    """What a peer takes for each file of a folder."""
    done = subprocess.run([sys.executable, __file__, peer, folder], stdout=subprocess.PIPE, text=True, check=True)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def transform_with_state(spark: SparkSession, folder: str) -> list[float]:
    """Seconds per batch of transformWithState (Row), RocksDB and changelog on, one file a batch."""
    _rocksdb(spark)
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(folder)
    totals = rows.groupBy("key").transformWithState(
        RunningTotal(), "key string, offset long, total double", "append", "none"
    )
    return _batches(totals)


def native_windows(spark: SparkSession, folder: str) -> list[float]:
    """Seconds per batch of Spark's own `groupBy(window, key)`: count and sum, RocksDB and changelog on."""
    _rocksdb(spark)
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(folder)
    windows = rows.withWatermark("ts", "0 seconds").groupBy(F.window("ts", "1 minute"), "key")
    return _batches(windows.agg(F.count("*").alias("n"), F.sum("value").alias("total")))


def _rocksdb(spark: SparkSession) -> None:
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    spark.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")


def count_only(spark: SparkSession, folder: str) -> list[float]:
    """Seconds per batch of a foreachBatch that only counts its rows, one file a batch."""
    return _batches(spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(folder), count=True)


def _batches(frame: Any, count: bool = False) -> list[float]:
    checkpoint = tempfile.mkdtemp(prefix="bench-peer-")

    def take(batch: Any, number: int) -> None:
        if count:
            batch.count()
        else:
            batch.write.format("noop").mode("overwrite").save()

    query = (
        frame.writeStream.option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .outputMode("append")
        .foreachBatch(take)
        .start()
    )
    query.awaitTermination()
    shutil.rmtree(checkpoint, ignore_errors=True)
    return [p["durationMs"]["triggerExecution"] / 1000 for p in query.recentProgress if p["numInputRows"]]


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    peers = {
        "transform_with_state": transform_with_state,
        "native_windows": native_windows,
        "count_only": count_only,
    }
    print(json.dumps(peers[sys.argv[1]](session, sys.argv[2])))
    session.stop()
