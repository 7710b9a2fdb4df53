"""Retention keeps the checkpoint files of streaming DataFrames that kept records name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import millpond as mp

KEEP = 8


def program(spark: SparkSession, folder: Path) -> mp.App:
    frame = spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    app = mp.App("sums", str(folder / "state"), 1, local_dir=str(folder / "local"), keep=KEEP, compact_every=2)
    app.stream("rows", frame).key_by("k").stateful_map("sum", add, initial=0)
    return app


def add(key: str, row: Any, total: int) -> tuple[None, int]:
    return None, total + row["v"]


def feed(folder: Path, *numbers: int) -> None:
    (folder / "in").mkdir(exist_ok=True)
    for number in numbers:
        (folder / "in" / f"{number:04d}.json").write_text(json.dumps({"k": "a", "v": 1}) + "\n")


def test_a_batch_of_a_streaming_dataframe_can_be_gone_back_to_after_a_rollback(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed(tmp_path, *range(5))
    program(spark, tmp_path).run(until="caught-up", spark=spark)
    opened = mp.open(str(tmp_path / "state"), "sums")
    admin = mp.admin(str(tmp_path / "state"), "sums")
    admin.rollback(2)
    assert opened.newest is not None
    after = opened.newest.number  # it names checkpoint files that batch 2 wrote
    feed(tmp_path, *range(5, 9))
    program(spark, tmp_path).run(until="caught-up", spark=spark)
    assert admin.verify().damaged == []
    assert opened.state("sum").get("a") == 9
    admin.rollback(after)
    assert opened.state("sum").get("a") == 2
    shutil.rmtree(tmp_path / "local")
    program(spark, tmp_path).run(until="caught-up", spark=spark)
    assert admin.verify().damaged == []
    assert opened.state("sum").get("a") == 9
