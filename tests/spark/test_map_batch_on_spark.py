"""Functions over tables travel to the workers, whichever kind of frame they take."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from folders import write
from pyspark.sql import SparkSession

import millpond as mp


def double(table: pa.Table) -> pa.Table:
    return table.append_column("double", pc.multiply(table["n"], 2))


def add_one(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(more=pl.col("double") + 1)


def times_ten(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(tens=frame["more"] * 10)


def test_tables_and_frames_before_and_after_the_key(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.jsonl", [{"key": f"k{n % 3}", "n": n} for n in range(9)])
    app = mp.App("batches", str(tmp_path / "state"), partitions=2, local_dir=str(tmp_path / "local"))
    keyed = app.stream("rows", mp.sources.files(tmp_path / "in")).map_batch(double).key_by("key")
    rows = keyed.map_batch(add_one).map_batch(times_ten)
    rows.stateful_map("nth", lambda key, row, n: ([key, row["tens"], n + 1], n + 1), initial=0).to(
        "out", mp.sinks.files(tmp_path / "out")
    )
    app.run(until="caught-up", spark=spark)
    lines = [line for file in (tmp_path / "out").rglob("*.jsonl") for line in file.read_text().splitlines()]
    assert sorted(map(json.loads, lines)) == sorted([f"k{n % 3}", (n * 2 + 1) * 10, n // 3 + 1] for n in range(9))
