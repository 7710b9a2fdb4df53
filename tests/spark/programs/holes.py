"""Programs for the holes: `holes.py FOLDER STATE_DIR LOCAL_DIR no-retries|large|objects [stay]`."""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import millpond as mp

folder, state, local, kind = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
app = mp.App("holes", state, partitions=2, local_dir=local)
rows = app.stream("rows", mp.sources.files(folder / "in")).key_by("key")


def add(key: str, row: dict[str, Any], total: int) -> tuple[dict[str, Any], int]:
    if kind == "no-retries" and total >= 40:
        try:
            os.close(os.open(folder / "killed", os.O_CREAT | os.O_EXCL))
            os.kill(os.getpid(), signal.SIGKILL)
        except FileExistsError:
            pass
    total += row["value"]
    return {"key": key, "total": total}, total


def measure(key: str, row: dict[str, Any], held: list[int]) -> tuple[None, list[int]]:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return None, [held[0] + 1, held[1] + len(row["pad"]), max(held[2], most)]


if kind == "large":
    rows.stateful_map("measured", measure, initial=[0, 0, 0])
else:
    rows.stateful_map("total", add, initial=0).to("out", mp.sinks.files(folder / "out"))

if __name__ == "__main__":
    session = None
    if kind == "no-retries":
        builder = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false")
        session = builder.config("spark.driver.host", "127.0.0.1").config("spark.log.level", "OFF").getOrCreate()
    app.run(until=None if "stay" in sys.argv else "caught-up", spark=session)
