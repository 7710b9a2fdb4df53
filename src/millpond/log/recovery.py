"""Recovery progress: small files in which workers say how much of a replica they have rebuilt from the log.

A worker's log is rarely read. While it builds a replica that takes more than a few seconds, it writes one file for its
partition every few seconds, and removes it at the end. The driver and `millpond status` read them. Nothing depends
on these files: one that cannot be written, read or removed is ignored, and so is one of another batch or driver.
"""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass

import msgspec

from millpond.clock import Clock, SystemClock
from millpond.errors import Corrupt
from millpond.log.checked import read_checked, write_checked
from millpond.log.paths import Paths
from millpond.storage import Storage

STALE_SECONDS = 60.0  # a file that is older, or so far in the future, is that of a worker that has died


class Recovery(msgspec.Struct):
    """The contents of such a file: how many cells of a partition's replica are loaded, after how many seconds."""

    driver: str
    batch: int  # whose task waits for the replica
    partition: int
    host: str
    time: float
    done: int
    cells: int
    seconds: float

    def describe(self) -> str:
        """Return the progress in words.

        >>> Recovery("d", 7, 3, "host-a", 0.0, done=250_000, cells=1_000_000, seconds=10.0).describe()
        'partition 3 on host-a: 250,000 of 1,000,000 cells, about 30 s left'
        """
        return f"partition {self.partition} on {self.host}: {remaining_text(self.done, self.cells, self.seconds)}"


def remaining_text(done: int, cells: int, seconds: float) -> str:
    """Return how much is loaded, and about how long the rest will take, in words.

    >>> remaining_text(250_000, 1_000_000, 2.0)
    '250,000 of 1,000,000 cells, about 6 s left'
    """
    rest = seconds * (cells - done) / done if done else 0.0
    return f"{done:,} of {cells:,} cells, about {rest:.0f} s left"


@dataclass
class RecoveryFile:
    """Writes the progress of one partition, in a task. It never raises: a task does not fail because of it."""

    storage: Storage
    app: str
    driver: str
    batch: int
    partition: int
    is_written: bool = False

    def write(self, done: int, cells: int, seconds: float) -> None:
        """Replace the file."""
        now = SystemClock().now()
        found = Recovery(self.driver, self.batch, self.partition, socket.gethostname(), now, done, cells, seconds)
        with contextlib.suppress(Exception):
            write_checked(self.storage, Paths(self.app).recovery(self.partition), found)
            self.is_written = True

    def remove(self) -> None:
        """Remove the file, if this task has written one."""
        if self.is_written:
            self.is_written = False
            with contextlib.suppress(Exception):
                self.storage.delete([Paths(self.app).recovery(self.partition)])


def read_recoveries(storage: Storage, app: str, driver: str, batch: int, clock: Clock) -> list[Recovery]:
    """Return what the workers of a driver's batch have written, by partition. Lists one folder, empty as a rule."""
    found: list[Recovery] = []
    for item in storage.list(Paths(app).recoveries):
        try:
            data = read_checked(storage, item.path)
            read = None if data is None else msgspec.json.decode(data, type=Recovery)
        except (Corrupt, msgspec.MsgspecError):  # it is only progress
            continue
        if read is None or (read.driver, read.batch) != (driver, batch):
            continue
        if abs(clock.now() - read.time) < STALE_SECONDS:
            found.append(read)
    return sorted(found, key=lambda each: each.partition)


def remove_old_recoveries(storage: Storage, app: str, driver: str) -> None:
    """Remove the files that workers of other drivers have left behind. Called by the owner of the app."""
    for item in list(storage.list(Paths(app).recoveries)):
        try:
            data = read_checked(storage, item.path)
            is_old = data is not None and msgspec.json.decode(data, type=Recovery).driver != driver
        except (Corrupt, msgspec.MsgspecError):
            is_old = True
        if is_old:
            storage.delete([item.path])
