"""A running total per key against Spark's `transformWithState`, at few and many keys, and many keys against few."""

from __future__ import annotations

from functools import partial
from typing import Any

import peers
from harness import WARM_BATCHES, Bench
from inputs import batches_to_fill, rows_by_chance, rows_of_all_keys
from on_spark import all_batches, batches

import millpond as mp


def add_up(key: str, row: dict[str, Any], total: float) -> tuple[dict[str, Any], float]:
    total += row["value"]
    return {"key": key, "offset": row["offset"], "total": total}, total


def running_total(rows: Any) -> Any:
    return rows.key_by("key").stateful_map("total", add_up, initial=0.0)


def against_spark(bench: Bench) -> None:
    size = bench.size
    for keys in (10_000, 200_000):
        folder = bench.files(rows_by_chance, files=6 if bench.is_quick else 40, rows=size, keys=keys)
        ours = partial(batches, bench, mp.sources.files(folder), running_total, size)
        bench.warm_up(ours)
        what = f"running total, {keys:,} keys, batches of {size:,} rows: Millpond"
        if not bench.has_peers:
            bench.note_rows(what, *(size / seconds for seconds in bench.in_turns(1, ours)))
            continue
        few = 4 if bench.is_quick else 8 if keys == 10_000 else 5  # the peer has enough to do with so many
        short = bench.files(rows_by_chance, files=few, rows=size, keys=keys)
        theirs = partial(_batches_of_spark, bench, short)
        one, other = (size / seconds for seconds in bench.in_turns(2, ours, theirs))
        bench.note_rows(f"{what} / transformWithState (Row)", one, other)


def _batches_of_spark(bench: Bench, folder: str) -> list[float]:
    return bench.without_first(peers.seconds_per_batch("transform_with_state", folder))


def many_keys_against_few(bench: Bench) -> None:
    """All keys have state before the measured batches begin, whose keys are drawn from all of them."""
    size, few, many = bench.size, 10_000, 50_000 if bench.is_quick else 1_000_000
    ways = []
    for keys in (many, few):
        folder = bench.files(rows_of_all_keys, files=6 if bench.is_quick else 30, rows=size, keys=keys)
        ways.append(partial(_batches_once_filled, bench, folder, batches_to_fill(size, keys)))
    bench.warm_up(ways[1])
    one, other = (size / seconds for seconds in bench.in_turns(2, *ways))
    bench.note_rows(f"running total, batches of {size:,} rows: {many:,} keys / {few:,} keys", one, other)


def _batches_once_filled(bench: Bench, folder: str, filling: int) -> list[float]:
    return all_batches(bench, mp.sources.files(folder), running_total, bench.size)[filling + WARM_BATCHES :]
