"""`apply_batch` against `stateful_map`: an exponential moving average per key."""

from __future__ import annotations

from typing import Any

import in_process
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from harness import Bench
from inputs import minutes

ALPHA = 0.1  # of the moving average


def average(key: str, row: dict[str, Any], before: float | None) -> tuple[dict[str, Any], float]:
    value = row["value"]
    ema = value if before is None else before + ALPHA * (value - before)
    return {"key": key, "value": value, "ema": ema}, ema


def average_column(rows: pa.Table, states: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Compute the average of the first rows of all keys at once, then of the second ones, and so on."""
    place = pc.index_in(rows["key"], states["key"]).to_numpy()
    counts = np.bincount(place, minlength=len(states))
    keys = np.argsort(-counts)  # the key with most rows comes first
    counts, rank = counts[keys], np.argsort(keys)
    by_key = pc.array_sort_indices(pa.array(rank[place])).to_numpy()  # rows of one key stay in their order
    nth = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    order = by_key[pc.array_sort_indices(pa.array(nth)).to_numpy()]  # the first rows of all keys, then the second ones
    values = rows["value"].to_numpy()[order]
    now = states["ema"].to_numpy()[keys]  # NaN where there is no state
    now = np.where(np.isnan(now), values[: len(keys)], now)
    found, start = np.empty(len(values)), 0
    for count in np.searchsorted(-counts, -np.arange(counts[0])).tolist():
        part = now[:count]  # of the keys that have another row
        part += ALPHA * (values[start : start + count] - part)
        found[start : start + count] = part
        start += count
    ema, after = np.empty(len(values)), np.empty(len(states))
    ema[order], after[keys] = found, now
    outputs = pa.table({"key": rows["key"], "value": rows["value"], "ema": ema})
    return outputs, pa.table({"key": states["key"], "ema": after})


def keep_average(key: str, row: dict[str, Any], before: float | None) -> tuple[None, float]:
    return None, average(key, row, before)[1]


def keep_average_column(rows: pa.Table, states: pa.Table) -> tuple[None, pa.Table]:
    return None, average_column(rows, states)[1]


def states_by_row(rows: Any) -> Any:
    return rows.key_by("key").stateful_map("ema", keep_average)


def states_by_column(rows: Any) -> Any:
    return rows.key_by("key").apply_batch("ema", keep_average_column, state={"ema": float})


def averages_by_row(rows: Any) -> Any:
    return rows.key_by("key").stateful_map("ema", average)


def averages_by_column(rows: Any) -> Any:
    return rows.key_by("key").apply_batch("ema", average_column, state={"ema": float})


def moving_average(bench: Bench) -> None:
    size = 2 * bench.size
    folder = bench.files(minutes, files=4 if bench.is_quick else 8, rows=size, keys=1000)
    for what, ways in (
        ("to files", (averages_by_column, averages_by_row)),
        ("state only", (states_by_column, states_by_row)),
    ):
        name = f"exponential moving average per key, {what}: apply_batch / stateful_map"
        in_process.compare(bench, name, ways, folder, size)
