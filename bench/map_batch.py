"""`map_batch` against `map`, for a numeric column."""

from __future__ import annotations

from typing import Any

import in_process
import pyarrow as pa
import pyarrow.compute as pc
from harness import Bench
from inputs import minutes

import millpond as mp

RARE = 1_099.0  # about one value in a thousand is larger, once it is scaled


def scale(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "value": row["value"] * 1.1}


def scale_column(table: pa.Table) -> pa.Table:
    return table.set_column(table.column_names.index("value"), "value", pc.multiply(table["value"], 1.1))


def scale_and_choose(table: pa.Table) -> pa.Table:
    table = scale_column(table)
    return table.filter(pc.greater(table["value"], RARE))


def rare_by_row(rows: Any) -> Any:
    return rows.map(scale).filter(lambda row: row["value"] > RARE)


def rare_by_column(rows: Any) -> Any:
    return rows.map_batch(scale_and_choose)


def windows_by_row(rows: Any) -> Any:
    windows = rows.map(scale).key_by("key").window("minutes", mp.tumbling("1m"), grace=mp.NO_GRACE)
    return windows.aggregate(n=mp.count(), total=mp.sum("value"))


def windows_by_column(rows: Any) -> Any:
    windows = rows.map_batch(scale_column).key_by("key").window("minutes", mp.tumbling("1m"), grace=mp.NO_GRACE)
    return windows.aggregate(n=mp.count(), total=mp.sum("value"))


def scaled_column(bench: Bench) -> None:
    size = 2 * bench.size
    folder = bench.files(minutes, files=4 if bench.is_quick else 8, rows=size, keys=1000)
    for what, timestamp, ways in (
        ("scale a column and choose one row in a thousand, to files", None, (rare_by_column, rare_by_row)),
        ("scale a column, and count and sum per key and minute", "ts", (windows_by_column, windows_by_row)),
    ):
        in_process.compare(bench, f"{what}: map_batch / map", ways, folder, size, timestamp)
