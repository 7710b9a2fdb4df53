"""Functions over tables travel to the workers, whichever kind of frame they take, with state and without."""

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


def add_up(rows: pl.DataFrame, states: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    both = rows.join(states, on="key", how="left", maintain_order="left")
    out = both.with_columns(total=pl.col("total").fill_null(0) + pl.col("n").cum_sum().over("key"))
    return out, out.group_by("key").agg(pl.col("total").last())


def test_state_in_columns_goes_on_from_run_to_run(spark: SparkSession, tmp_path: Path) -> None:
    app = mp.App("totals", str(tmp_path / "state"), partitions=2, local_dir=str(tmp_path / "local"))
    keyed = app.stream("rows", mp.sources.files(tmp_path / "in")).key_by("key")
    keyed.apply_batch("total", add_up, state={"total": int}).to("out", mp.sinks.files(tmp_path / "out"))
    for name, rows in (("a", range(5)), ("b", range(5, 9))):
        write(tmp_path / "in" / f"{name}.jsonl", [{"key": f"k{n % 3}", "n": n} for n in rows])
        app.run(until="caught-up", spark=spark)
    lines = [line for file in (tmp_path / "out").rglob("*.jsonl") for line in file.read_text().splitlines()]
    totals = [{"key": f"k{n % 3}", "n": n, "total": sum(range(n % 3, n + 1, 3))} for n in range(9)]
    assert sorted(map(json.loads, lines), key=lambda row: row["n"]) == totals
    assert dict(app.state("total").items()) == {f"k{n % 3}": {"total": totals[n]["total"]} for n in (6, 7, 8)}


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
