"""Windows: a count and a sum per key and minute of event time, and windows of a key that has most of the rows.

Every batch is a file of 100 seconds of event time, so that windows close in nearly every one.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import peers
from harness import Bench
from inputs import rows_with_instants
from on_spark import batches

import millpond as mp


def value(row: dict[str, Any]) -> Any:
    return row["value"]


def by_columns(rows: Any) -> Any:
    minutes = rows.key_by("key").window("minutes", mp.tumbling("1m"), grace=mp.NO_GRACE)
    return minutes.aggregate(n=mp.count(), total=mp.sum("value"))


def by_rows(rows: Any) -> Any:
    """A function in place of a field: windows can only be computed row by row."""
    minutes = rows.key_by("key").window("minutes", mp.tumbling("1m"), grace=mp.NO_GRACE)
    return minutes.aggregate(n=mp.count(), total=mp.sum(value))


def against_spark(bench: Bench) -> None:
    size, files = bench.size, 6 if bench.is_quick else 40
    for keys in (10_000, 200_000):
        folder = bench.files(rows_with_instants, files=files, rows=size, keys=keys)
        columns, rows = (
            partial(batches, bench, mp.sources.files(folder), build, size, "ts") for build in (by_columns, by_rows)
        )
        bench.warm_up(columns)
        what = f"windows of {keys:,} keys, a count and a sum per minute: Millpond"
        if bench.has_peers:
            one, other = (size / seconds for seconds in bench.in_turns(2, columns, partial(_of_spark, bench, folder)))
            bench.note_rows(f"{what} / Spark's own groupBy(window, key)", one, other)
        one, other = (size / seconds for seconds in bench.in_turns(1, columns, rows))
        bench.note_rows(f"{what} / Millpond, row by row", one, other)


def _of_spark(bench: Bench, folder: str) -> list[float]:
    return bench.without_first(peers.seconds_per_batch("native_windows", folder))


def hot_key(bench: Bench) -> None:
    size, files = bench.size, 6 if bench.is_quick else 20
    for keys, jsonl in ((10_000, False), (100, False), (10_000, True)):
        ways = []
        for skewed in (True, False):
            folder = bench.files(rows_with_instants, files=files, rows=size, keys=keys, jsonl=jsonl, skewed=skewed)
            ways.append(partial(batches, bench, mp.sources.files(folder), by_columns, size, "ts"))
        bench.warm_up(ways[1])
        one, other = (size / seconds for seconds in bench.in_turns(3, *ways))
        form = "lines of JSON" if jsonl else "Parquet"
        bench.note_rows(f"windows of {keys:,} keys, {form}: one key has 90 % of the rows / uniform keys", one, other)
