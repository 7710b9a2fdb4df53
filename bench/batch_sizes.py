"""The running total in small and in large batches; small ones against Spark, which only counts their rows."""

from __future__ import annotations

from functools import partial

import peers
from harness import Bench, ratio
from inputs import rows_by_chance
from on_spark import batches
from running_total import running_total

import millpond as mp


def small_batches(bench: Bench) -> None:
    folder = bench.files(rows_by_chance, files=30 if bench.is_quick else 160, rows=100, keys=100)
    ours = partial(batches, bench, mp.sources.files(folder), running_total, 100)
    bench.warm_up(ours)
    if not bench.has_peers:
        (seconds,) = bench.in_turns(2, ours)
        bench.note("running total, a batch of 100 rows: Millpond", f"{seconds:.3f} s")
        return
    one, other = bench.in_turns(2, ours, lambda: bench.without_first(peers.seconds_per_batch("count_only", folder)))
    bench.note(
        "running total, a batch of 100 rows: Millpond / foreachBatch that only counts",
        f"{one:.3f} / {other:.3f} s = {ratio(one, other)}",
    )


def large_batches(bench: Bench) -> None:
    size = bench.size * 10
    folder = bench.files(rows_by_chance, files=4 if bench.is_quick else 6, rows=size, keys=10_000)
    (seconds,) = bench.in_turns(1, partial(batches, bench, mp.sources.files(folder), running_total, size))
    bench.note_rows(f"running total, 10,000 keys, batches of {size:,} rows: Millpond", size / seconds)
