"""Running totals without Spark, in a process of its own, as a first or a standby driver: what take-over tests kill.

`python standby_totals.py FOLDER first|standby [restarts]`. It prints what a run logs, and how it ended.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import millpond as mp
from millpond.backoff import Backoff
from millpond.clock import SystemClock
from millpond.driver import loop
from millpond.driver.claims import Claims
from millpond.driver.commit import Driver
from millpond.driver.loop import Settings, run_driver
from millpond.driver.settings import Controls, DriverSettings
from millpond.driver.standby import Standby
from millpond.runtimes.local import LocalRuntime
from millpond.storage import open_storage


def add(key: str, row: dict[str, Any], total: int) -> tuple[dict[str, Any], int]:
    if row.get("fail") == os.getpid():
        raise ValueError("this row fails in this process")
    total += row["value"]
    return {"id": row["id"], "key": key, "total": total}, total


def make_app(folder: Path) -> mp.App:
    app = mp.App("totals", str(folder / "state"), partitions=2, local_dir=str(folder / "local"))
    rows = app.stream("rows", mp.sources.files(folder / "in"))
    rows.key_by("key").stateful_map("total", add, initial=0).to("out", mp.sinks.files(folder / "out"))
    return app


def drive(folder: Path, is_standby: bool, restarts: int = 0) -> None:
    """Run the app until SIGTERM. A restart comes so late that a standby driver is always first."""
    loop.RESTARTS = Backoff(first=15.0, longest=60.0)
    app, clock, stop = make_app(folder), SystemClock(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    program, storage, claims = mp.lowlevel.program(app), open_storage(app.state_dir), Claims(clock)

    def make() -> Driver:
        return Driver.start(
            program,
            LocalRuntime(storage, clock),
            storage,
            clock,
            DriverSettings(partitions=2, home=app.local_dir),
            Controls(stop=stop, claims=claims),
        )

    standby = Standby(program, storage, clock, 2) if is_standby else None
    run_driver(make, Settings(every=0.05, max_rows=20, restarts=restarts), stop, clock, claims, standby)


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, level=logging.WARNING, format="%(message)s")
    logging.getLogger("millpond.run").setLevel(logging.INFO)
    try:
        drive(Path(sys.argv[1]), sys.argv[2] == "standby", *map(int, sys.argv[3:]))
    except mp.errors.MillpondError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(3)
    print("ended", flush=True)
