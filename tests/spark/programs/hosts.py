"""Totals on a cluster whose hosts die: `hosts.py MASTER STATE_DIR FOLDER STANDBYS [until-caught-up|standby]`."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import millpond as mp

master, state_dir, folder, standbys = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
app = mp.App("hosts", state_dir, partitions=6, standbys=standbys)


def add(key: str, row: dict[str, Any], total: int) -> tuple[dict[str, Any], int]:
    total += row["value"]
    return {"id": row["id"], "key": key, "total": total}, total


rows = app.stream("rows", mp.sources.files(folder / "in"))
rows.key_by("key").stateful_map("total", add, initial=0).to("out", mp.sinks.files(folder / "out"))

if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("millpond").setLevel(logging.INFO)
    logging.getLogger("millpond.run").setLevel(logging.INFO)
    settings: dict[str, Any] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        # All hosts are there before the first batch.
        "spark.cores.max": "3",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        "spark.driver.memory": "512m",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.shuffle.reduceLocality.enabled": "false",
        "spark.locality.wait": "5s",  # the machine that runs tests is busy
        "spark.log.level": "ERROR",
    }
    spark = SparkSession.builder.master(master).config(map=settings).getOrCreate()
    if "until-caught-up" in sys.argv:
        app.run(spark=spark, until="caught-up", max_rows=1000)
    else:
        app.run(spark=spark, every="200ms", max_rows=1000, standby="standby" in sys.argv)
