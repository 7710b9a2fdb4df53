"""The running total over other sources, against Parquet files: lines of JSON, and a streaming DataFrame."""

from __future__ import annotations

from functools import partial

import peers
from harness import Bench
from inputs import rows_by_chance
from on_spark import batches
from running_total import running_total

import millpond as mp


def json_lines(bench: Bench) -> None:
    size, files = bench.size, 6 if bench.is_quick else 20
    text = bench.files(rows_by_chance, files=files, rows=size, keys=10_000, jsonl=True)
    parquet = bench.files(rows_by_chance, files=files, rows=size, keys=10_000)
    ways = [partial(batches, bench, mp.sources.files(folder), running_total, size) for folder in (text, parquet)]
    bench.warm_up(ways[0])
    one, other = (size / seconds for seconds in bench.in_turns(3, *ways))
    bench.note_rows("running total, JSON lines without a schema / Parquet", one, other)


def streaming_dataframe(bench: Bench) -> None:
    size = bench.size
    parquet = bench.files(rows_by_chance, files=6 if bench.is_quick else 40, rows=size, keys=10_000)
    frame = bench.spark.readStream.schema(peers.SCHEMA).option("maxFilesPerTrigger", 1).parquet(parquet)
    ours = [partial(batches, bench, source, running_total, size) for source in (frame, mp.sources.files(parquet))]
    bench.warm_up(ours[0])
    theirs = [partial(_batches_of_spark, bench, parquet)] if bench.has_peers else []
    framed, files, *counted = (size / seconds for seconds in bench.in_turns(2, *ours, *theirs))
    bench.note_rows("running total, streaming DataFrame as the source / our own file source", framed, files)
    if counted:
        bench.note_rows("the same DataFrame: Millpond / foreachBatch that only counts", framed, counted[0])


def _batches_of_spark(bench: Bench, folder: str) -> list[float]:
    found = peers.seconds_per_batch("count_only", folder)
    return found[len(found) // 2 :]  # the first half warms up its JVM
