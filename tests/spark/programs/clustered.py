"""Programs for a cluster: `clustered.py MASTER FOLDER totals|random [stay]`."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import millpond as mp

master, folder, kind = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
app = mp.App("clustered", str(folder / "state"), partitions=4)
rows = app.stream("rows", mp.sources.files(folder / "in"))


def add(key: str, row: dict[str, Any], total: int) -> tuple[dict[str, Any], int]:
    total += row["value"]
    return {"id": row["id"], "key": key, "total": total, "executor": os.environ["SPARK_EXECUTOR_DIRS"]}, total


def keep(key: str, row: dict[str, Any], held: int | None) -> tuple[dict[str, Any], int]:
    """Keep the row's id; the first executor to get here dies in the middle of its work."""
    try:
        os.close(os.open(folder / "killed", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return {"id": row["id"]}, row["id"]
    time.sleep(3)  # the other partitions have read what this executor made for them
    os.kill(_executor(), signal.SIGKILL)
    time.sleep(60)
    return {"id": row["id"]}, row["id"]


def _executor() -> int:
    """The JVM of this worker: the parent of the daemon that it was forked off."""
    daemon = os.getppid()
    return int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])


if kind == "totals":
    rows.key_by("key").stateful_map("total", add, initial=0).to("out", mp.sinks.files(folder / "out"))
else:
    rows.key_by(lambda row: str(random.random())).stateful_map("held", keep).to("out", mp.sinks.files(folder / "out"))

if __name__ == "__main__":
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executor.memory", "512m")
        .config("spark.executor.cores", "2")
        # Both hosts are there before the first batch: who comes later makes the partitions move once.
        .config("spark.cores.max", "4")
        .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
        .config("spark.scheduler.maxRegisteredResourcesWaitingTime", "120s")
        .config("spark.driver.memory", "512m")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.shuffle.reduceLocality.enabled", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    if "stay" in sys.argv:
        app.run(spark=spark, every="100ms", max_rows=100)
    else:
        app.run(spark=spark, until="caught-up", max_rows=100 if kind == "totals" else 100_000)
