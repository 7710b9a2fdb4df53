"""The Python work of a running total, from reading to changelog and outputs, without Spark."""

from __future__ import annotations

import gc
import shutil

import in_process
from harness import Bench
from inputs import rows_by_chance
from running_total import running_total

import millpond as mp


def python_alone(bench: Bench) -> None:
    """The best batch counts: whatever else runs on the machine makes batches slower."""
    folder = bench.files(rows_by_chance, files=6 if bench.is_quick else 12, rows=bench.size, keys=10_000)
    home = bench.new_folder("state")
    app = mp.App("bench", str(home / "state"), partitions=2, local_dir=str(home / "local"))
    running_total(app.stream("rows", mp.sources.files(folder))).to("out", mp.sinks.discard())
    gc.disable()
    best = min(in_process.batches(app, bench.size))
    gc.enable()
    shutil.rmtree(home)
    bench.note_rows(
        "running total, the Python work alone, reading to changelog and outputs, one core", bench.size / best
    )
