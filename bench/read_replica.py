"""Reads of a read replica beside a running stream: how many per second, and what the stream loses to them.

The stream is a running total per key in a process of its own, without Spark; the reader is another process, which
follows it and gets the values of keys at random. Both have all the time of one core, so that on two cores neither waits
for the other.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

from harness import WARM_BATCHES, Bench
from inputs import batches_to_fill, rows_of_all_keys
from running_total import running_total

import millpond as mp
from millpond.clock import SystemClock
from millpond.driver.commit import Driver
from millpond.driver.settings import DriverSettings
from millpond.runtimes.local import LocalRuntime
from millpond.sources.base import Limit

NAME, EVERY, GETS = (
    "read",
    0.2,
    200,
)  # the reader looks for commits so often; so many gets between two looks at the clock


def beside_a_stream(bench: Bench) -> None:
    size, keys = (2_000, 5_000) if bench.is_quick else (20_000, 100_000)
    folder = bench.files(rows_of_all_keys, files=10 if bench.is_quick else 60, rows=size, keys=keys)
    filling = batches_to_fill(size, keys)
    alone, beside, rates, late = [], [], [], 0
    for _ in range(bench.rounds(2)):
        alone += Stream(folder, bench.new_folder("stream"), size, filling).wait_for_batches()[filling + WARM_BATCHES :]
        stream = Stream(folder, bench.new_folder("stream"), size, filling)
        rate, lag = _read_until_it_ends(stream, keys)
        rates.append(rate)
        late = max(late, lag)
        beside += stream.wait_for_batches()[filling + WARM_BATCHES :]
    what = f"read replica of {keys:,} keys beside a stream"
    bench.note(f"{what}: gets", f"{statistics.median(rates):,.0f} gets/s, at most {late} commits behind")
    one, other = (size / statistics.median(found) for found in (beside, alone))
    bench.note_rows(f"{what}: the stream with the reader / without it", one, other)


class Stream:
    """A stream in a process of its own."""

    def __init__(self, folder: str, home: Path, size: int, filling: int) -> None:
        self.home = home
        home.mkdir(parents=True)
        self.process = subprocess.Popen([sys.executable, __file__, folder, str(home), str(size), str(filling)])

    def wait_for_batches(self) -> list[float]:
        """Wait until it has read everything; return the seconds of its batches."""
        if self.process.wait() != 0:
            raise SystemExit("the stream has failed")
        found: list[float] = json.loads((self.home / "seconds").read_text())
        return found


def _read_until_it_ends(stream: Stream, keys: int) -> tuple[float, int]:
    """Return the gets per second while a stream ran, and by how many commits the replica was behind at most."""
    while not (stream.home / "filled").exists():
        if stream.process.poll() is not None:
            raise SystemExit("the stream has ended before all keys had state")
        time.sleep(0.05)
    chance, gets, lag, busy = random.Random(1), 0, 0, 0.0
    with mp.open(str(stream.home / "state"), NAME).follow(every=EVERY) as live:
        total, looked = live.state("total"), time.perf_counter()
        while stream.process.poll() is None:
            names = [f"user-{chance.randrange(keys)}" for _ in range(GETS)]
            began = time.perf_counter()
            for name in names:
                assert total.get(name) is not None
            busy += time.perf_counter() - began
            gets += GETS
            if time.perf_counter() - looked > 2 * EVERY:
                lag, looked = max(lag, live.lag), time.perf_counter()
    return gets / busy, lag


def run(folder: str, home: Path, size: int, filling: int) -> None:
    """Run the stream over all files of a folder, a file in a batch. After the first ones all keys have state."""
    app = mp.App(NAME, str(home / "state"), partitions=2, local_dir=str(home / "local"))
    rows = app.stream("rows", mp.sources.files(folder))
    running_total(rows).to("out", mp.sinks.files(home / "out", format="parquet"))
    storage, clock = mp.lowlevel.storage(app), SystemClock()
    settings = DriverSettings(partitions=app.partitions, home=app.local_dir, threaded=False)
    driver = Driver.start(mp.lowlevel.program(app), LocalRuntime(storage, clock), storage, clock, settings)
    found, began = [], time.perf_counter()
    while driver.batch(Limit(size, 1 << 60)):
        found.append(time.perf_counter() - began)
        if len(found) == filling:
            (home / "filled").touch()
        began = time.perf_counter()
    driver.close()
    (home / "seconds").write_text(json.dumps(found))


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
