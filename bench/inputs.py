"""The input of the benchmarks: folders of files, each of them one batch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

START = 1_700_000_000_000_000  # in microseconds: the event time of the first row


def rows_by_chance(folder: Path, files: int, rows: int, keys: int, *, jsonl: bool = False) -> None:
    """Write rows (key, offset, ts, value) whose keys are drawn at random."""
    chance = np.random.default_rng(1)
    for number in range(files):
        _write(folder, number, _rows(number, chance.integers(0, keys, rows), chance), jsonl)


def rows_with_instants(
    folder: Path, files: int, rows: int, keys: int, *, jsonl: bool = False, skewed: bool = False
) -> None:
    """Write the same with times that windows take, 1,000 rows to a second; if `skewed`, nine in ten have one key."""
    chance = np.random.default_rng(1)
    for number in range(files):
        drawn = chance.integers(0, keys, rows)
        if skewed:
            drawn[np.arange(rows) % 10 != 0] = 0
        _write(folder, number, _rows(number, drawn, chance, zone="UTC"), jsonl)


def rows_of_all_keys(folder: Path, files: int, rows: int, keys: int) -> None:
    """Write as many files as it takes to have a row of every key, and then as many as asked for by chance."""
    chance = np.random.default_rng(1)
    filling = batches_to_fill(rows, keys)
    for number in range(filling + files):
        drawn = chance.integers(0, keys, rows)
        if number < filling:
            drawn = np.arange(number * rows, (number + 1) * rows) % keys
        _write(folder, number, _rows(number, drawn, chance))


def batches_to_fill(rows: int, keys: int) -> int:
    return -(-keys // rows)


def _rows(number: int, drawn: np.ndarray, chance: np.random.Generator, zone: str | None = None) -> pa.Table:
    rows = len(drawn)
    offsets = np.arange(number * rows, (number + 1) * rows)
    return pa.table(
        {
            "key": [f"user-{i}" for i in drawn.tolist()],
            "offset": offsets,
            "ts": pa.array(START + offsets * 1000).cast(pa.timestamp("us", zone)),
            "value": chance.integers(0, 100, rows).astype("float64"),
        }
    )


def _write(folder: Path, number: int, table: pa.Table, jsonl: bool = False) -> None:
    if not jsonl:
        pq.write_table(table, folder / f"p{number:04d}.parquet")
        return
    with (folder / f"p{number:04d}.jsonl").open("w") as file:
        for row in table.to_pylist():
            file.write(json.dumps({**row, "ts": row["ts"].isoformat()}) + "\n")


def minutes(folder: Path, files: int, rows: int, keys: int) -> None:
    """Write rows (key, ts, value), a minute of event time in each file, so that windows close in every batch."""
    chance = np.random.default_rng(1)
    for number in range(files):
        at = START + number * 60_000_000 + np.arange(rows) * (60_000_000 // rows)
        table = pa.table(
            {
                "key": [f"user-{i}" for i in chance.integers(0, keys, rows).tolist()],
                "ts": pa.array(at).cast(pa.timestamp("us", "UTC")),
                "value": chance.random(rows) * 1000,
            }
        )
        pq.write_table(table, folder / f"{number:05d}.parquet", row_group_size=rows // 4)  # a split is a row group
