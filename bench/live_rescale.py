"""The longest pause of a stream that is rescaled while it runs, against one that is stopped, rescaled and started.

A pause is the time from one commit to the next. Rows come at a steady rate, in a process with a JVM of its own, over
state that was filled before. The command is `millpond rescale` in both cases.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import millpond as mp

if TYPE_CHECKING:
    from harness import Bench

ROWS_A_SECOND = 2_000
STEADY_SECONDS = 5.0


def pauses(bench: Bench) -> None:
    """Add a line with the longest pause of both ways."""
    keys = 20_000 if bench.is_quick else 1_000_000
    folder = bench.new_folder("pauses")
    (folder / "in").mkdir(parents=True)
    pq.write_table(pa.table({"value": np.arange(keys)}), folder / "in" / "keys.parquet", row_group_size=50_000)
    seconds = 2.0 if bench.is_quick else STEADY_SECONDS
    running = _start(folder, keys)
    try:
        _wait_for_commit(folder, rows=keys)
        live: list[float] = []
        for partitions in (5,) if bench.is_quick else (5, 3, 8):
            time.sleep(seconds)
            began = time.time()
            print(f"  {_rescale(folder, partitions)}", flush=True)
            time.sleep(seconds)
            _wait_for_commit(folder, after=time.time())
            live.append(_longest_pause(folder, began - 1.0))
        began = time.time()
        running.send_signal(signal.SIGTERM)
        running.wait()
        _rescale(folder, 4)
        running = _start(folder, keys)
        _wait_for_commit(folder, after=time.time())
        time.sleep(seconds)
        _wait_for_commit(folder, after=time.time())
        stopped = _longest_pause(folder, began - 1.0)
    finally:
        running.kill()
        running.wait()
    what = f"rescale with {keys:,} keys: longest pause while it runs / stop, rescale and start"
    bench.note(what, f"{max(live):.1f} / {stopped:.1f} s = {max(live) / stopped:.2f}x")


def _start(folder: Path, keys: int) -> subprocess.Popen[bytes]:
    with open(folder / "log", "ab") as log:
        return subprocess.Popen([sys.executable, __file__, str(folder), str(keys)], stdout=log, stderr=log)


def _rescale(folder: Path, partitions: int) -> str:
    return mp.App("pauses", str(folder / "state")).admin.rescale(partitions)


def _commits(folder: Path, since: float) -> list[tuple[float, dict[str, Any]]]:
    """Return the commits since a time and the one before, oldest first: when each was written, and its record."""
    found: list[tuple[float, dict[str, Any]]] = []
    for file in sorted((folder / "state/pauses/ledger").glob("*.json"), reverse=True):
        record = json.loads(file.read_bytes())
        if record["kind"] == "commit":
            found.append((file.stat().st_mtime, record))
            if found[-1][0] < since:
                break
    return found[::-1]


def _longest_pause(folder: Path, since: float) -> float:
    return max(later - earlier for (earlier, _), (later, _) in pairwise(_commits(folder, since)))


def _wait_for_commit(folder: Path, after: float = 0.0, rows: int = 0) -> None:
    """Wait for a commit after a time, and until so many rows have been read."""
    while True:
        found = [record for written, record in _commits(folder, after) if written > after]
        if found and sum(record.get("rows", {}).get("keys", 0) for record in found) >= rows:
            return
        time.sleep(0.2)


def run_app(folder: Path, keys: int) -> None:
    """Count the rows of each key, until a signal."""
    app = mp.App("pauses", str(folder / "state"), 2, local_dir=str(folder / "local"), keep=100_000)
    filled = app.stream("keys", mp.sources.files(folder / "in", format="parquet"))
    rows = app.stream("rows", mp.sources.rate(ROWS_A_SECOND)).map(lambda row: {"value": row["value"] * 7919 % keys})
    keyed = filled.union(rows).key_by("value")
    keyed.stateful_map("count", lambda key, row, n: (None, n + 1), initial=0).to("out", mp.sinks.discard())
    app.run(every="100ms")


if __name__ == "__main__":
    run_app(Path(sys.argv[1]), int(sys.argv[2]))
