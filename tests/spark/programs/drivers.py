"""Drivers with a fate: `drivers.py FOLDER asleep STEP WHEN`, `drivers.py FOLDER frames`, `drivers.py FOLDER shot`."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import millpond as mp
from millpond.driver.loop import Settings
from millpond.sinks.base import Delivery

folder, fate = Path(sys.argv[1]), sys.argv[2]
batches = 0


def add(key: str, row: dict[str, Any], total: int) -> tuple[dict[str, Any], int]:
    total += row["value"]
    return {"id": row["id"], "key": key, "total": total}, total


def fall_asleep(step: str, when: str) -> None:
    """In the second batch, at the point that was named."""
    global batches
    batches += (step, when) == ("plan", "before")
    if batches == 2 and [step, when] == sys.argv[3:]:
        batches = 99
        os.kill(os.getpid(), signal.SIGSTOP)


def die_once(name: str) -> None:
    """kill -9 of this worker, the first time that anyone comes here."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(folder / name, os.O_CREAT | os.O_EXCL))
        os.kill(os.getpid(), signal.SIGKILL)


def shot_while_reading(row: dict[str, Any]) -> dict[str, Any]:
    if row["id"] == 50:
        die_once("shot-while-reading")
    return row


def shot_while_delivering(rows: list[Any], delivery: Delivery) -> None:
    if delivery.partition == 1:
        die_once("shot-while-delivering")
    mp.sinks.files(folder / "out").deliver(rows, delivery)


def build(source: Any, sink: Any) -> mp.App:
    app = mp.App("drivers", str(folder / "state"), partitions=2, local_dir=str(folder / "local"))
    rows = app.stream("rows", source)
    if fate == "shot":
        rows = rows.map(shot_while_reading)
    rows.key_by("key").stateful_map("total", add, initial=0).to("out", sink)
    return app


if __name__ == "__main__":
    files, out = mp.sources.files(folder / "in", format="jsonl"), mp.sinks.files(folder / "out")
    if fate == "asleep":
        try:
            mp.lowlevel.run_with(build(files, out), Settings(until="caught-up", max_rows=40), None, fall_asleep)
        except mp.errors.Fenced as error:
            print("fenced:", error)
    elif fate == "frames":
        spark = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false").getOrCreate()
        reader = spark.readStream.schema("id long, key string, value long").option("maxFilesPerTrigger", 1)
        build(reader.json(str(folder / "in")), out).run(spark=spark, every="50ms")
    else:
        # Nothing is retried here: a worker that dies takes its job along.
        spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
        build(files, mp.sinks.function(shot_while_delivering, where="workers")).run(until="caught-up", spark=spark)
