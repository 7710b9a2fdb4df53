"""Running aggregates by columns against `stateful_map`, which computes the same."""

from __future__ import annotations

from typing import Any

import in_process
from harness import Bench
from inputs import minutes

import millpond as mp


def totals_by_row(rows: Any) -> Any:
    def add(key: str, row: dict[str, Any], state: tuple[float, int]) -> Any:
        total, n = state[0] + row["value"], state[1] + 1
        return {"key": key, "total": total, "n": n}, (total, n)

    return rows.key_by("key").stateful_map("totals", add, initial=(0.0, 0))


def totals_by_column(rows: Any) -> Any:
    return rows.key_by("key").aggregate("totals", total=mp.sum("value"), n=mp.count())


def total_by_row(rows: Any) -> Any:
    def add(key: str, row: dict[str, Any], total: float) -> Any:
        total += row["value"]
        return {"key": key, "total": total}, total

    return rows.key_by("key").stateful_map("totals", add, initial=0.0)


def total_by_column(rows: Any) -> Any:
    return rows.key_by("key").aggregate("totals", total=mp.sum("value"))


def running_aggregates(bench: Bench) -> None:
    folder = bench.files(minutes, files=4 if bench.is_quick else 12, rows=bench.size, keys=10_000)
    for what, ways in (
        ("a running sum and count per key, to files", (totals_by_column, totals_by_row)),
        ("a running sum per key, to files", (total_by_column, total_by_row)),
    ):
        in_process.compare(bench, f"{what}: aggregate / stateful_map", ways, folder, bench.size)
