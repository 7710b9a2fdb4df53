"""A small app over files, run without Spark, with all of its log on a storage of the test's choice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from local_drivers import start_driver

import millpond as mp
from millpond.clock import ManualClock
from millpond.driver.commit import Driver
from millpond.sources.base import Limit
from millpond.storage import Storage

KEYS = 11


def shop(folder: Path, *, name: str = "shop", partitions: int | None = 2, **how: Any) -> mp.App:
    """Totals per key, and a second stage keyed by parity, so that rows change hands between two stages."""
    app = mp.App(name, str(folder / "state"), partitions, local_dir=str(folder / "local"), **how)
    rows = app.stream("rows", mp.sources.files(folder / "in")).key_by("k")
    sums = rows.stateful_map("total", add, initial=0)
    sums.to("out", mp.sinks.files(folder / f"out-{name}"))
    sums.key_by(even=lambda row: row["n"] % 2 == 0).aggregate("parity", count=mp.count())
    return app


def add(key: str, row: Any, total: int) -> tuple[Any, int]:
    return {"k": key, "n": total + row["v"]}, total + row["v"]


def feed(folder: Path, *numbers: int) -> None:
    """Write an input file for each number: one batch each."""
    (folder / "in").mkdir(exist_ok=True)
    for number in numbers:
        rows = [{"k": f"k{(number * 7 + i) % KEYS}", "v": 1 + i} for i in range(10)]
        (folder / "in" / f"{number:04d}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def driver_of(app: mp.App, storage: Storage | None = None) -> Driver:
    return start_driver(app, storage, ManualClock())


def run(app: mp.App, storage: Storage | None = None, batches: int = 1 << 30) -> int:
    """Read what is there, a file in a batch, at most so many of them; the number of the newest record."""
    driver = driver_of(app, storage)
    while batches > 0 and driver.batch(Limit(10, 1 << 20)):
        batches -= 1
    driver.release()
    driver.close()
    return driver.last.number


def totals(app: Any) -> dict[str, int]:
    return dict(app.state("total").items())


def fold(numbers: range) -> dict[str, int]:
    """The totals of all rows of some input files."""
    found: dict[str, int] = {}
    for number in numbers:
        for i in range(10):
            key = f"k{(number * 7 + i) % KEYS}"
            found[key] = found.get(key, 0) + 1 + i
    return found


def flip(path: Path, at: int, bit: int = 0) -> bytes:
    """Flip one bit of a file; its bytes before that."""
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :])
    return whole
