"""Drivers without Spark and without the TestDriver's comforts: real sources, one `home` for replicas, hooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import millpond as mp
from millpond.clock import ManualClock
from millpond.driver.commit import Driver
from millpond.driver.settings import Controls, DriverSettings
from millpond.runtimes.local import LocalRuntime
from millpond.storage import Storage

WHOLE = mp.lowlevel.Limit(1 << 40, 1 << 60)


class Lanes:
    """A source of many lanes, each a list of rows; a batch reads up to `width` new rows of each."""

    def __init__(self, lanes: Mapping[str, list[Any]], width: int = 1) -> None:
        self.lanes, self.width = lanes, width

    def plan(self, position: Mapping[str, Any], limit: mp.lowlevel.Limit, now: float) -> list[mp.lowlevel.Split]:
        found = []
        for place, rows in self.lanes.items():
            start = position.get(place, 0)
            stop = min(start + self.width, len(rows))
            if stop > start:
                found.append(mp.lowlevel.Split(place, start, stop, partition=place))
        return found

    def read(self, split: mp.lowlevel.Split) -> Iterator[mp.lowlevel.Chunk]:
        yield mp.lowlevel.Chunk(self.lanes[split.place][split.start : split.stop], split.stop)


def driver_of(app: mp.App, storage: Storage, home: Path | str, hook: Any = None) -> Driver:
    """A new process on this storage and this host."""
    clock = ManualClock()
    return Driver.start(
        mp.lowlevel.program(app),
        LocalRuntime(storage, clock),
        storage,
        clock,
        DriverSettings(partitions=app.partitions, home=str(home), threaded=False),
        Controls(hook=hook),
    )


def run_to_end(driver: Driver) -> int:
    """Batches until all is read; how many there were."""
    batches = 0
    while driver.batch(WHOLE):
        batches += 1
    return batches
