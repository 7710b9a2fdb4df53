"""Followers: copies of partitions on hosts that do not compute them, which follow the committed records.

`follow` runs on a host that the driver has chosen. It is the same `catch_up` as that of a task. A copy that is missing
or damaged is built from the log there, and the batches of the app do not wait for it.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from millpond.clock import SystemClock, elapsed
from millpond.errors import MillpondError
from millpond.log.point import LogPoint
from millpond.replica import folders
from millpond.replica.catch_up import MOST_REPLICA_ATTEMPTS, repeated_damage
from millpond.replica.cell_format import Damaged
from millpond.replica.lending import remove_store
from millpond.replica.local_stores import ONLY_LMDB, LocalStores, PartitionStores
from millpond.storage import Storage

READY_RECORDS = 50  # a copy that lacks more records than these is not ready to take over
MOST_SECONDS = 2.0  # of one call, about: it holds a slot that a task of the next batch may need
UNUSED_SECONDS = 600.0  # for which a copy must not have been written before it is removed
FORGOTTEN_SECONDS = 7 * 86_400.0  # the same, of another incarnation: it may belong to another copy of the state


@dataclass(frozen=True)
class FollowJob:
    """What a host is to do: catch up some partitions, and perhaps remove copies that are not needed there."""

    point: LogPoint
    home: str | None  # the folder of the replicas; the host chooses its own if this is None
    place: str = ""  # the id of that folder, if the driver knows it: any other host does nothing
    follow: tuple[int, ...] = ()  # partitions to catch up
    keep: frozenset[int] | None = None  # partitions that have a copy here; None removes nothing
    stores: LocalStores = ONLY_LMDB  # of the app
    steps: frozenset[str] | None = None  # of the program; None means all

    def with_log(self, point: LogPoint) -> FollowJob:
        """Return the job with as much of the log up to a point as it needs."""
        recent = {number: {p: found[p] for p in self.follow if p in found} for number, found in point.recent.items()}
        return replace(self, point=replace(point, recent=recent))

    def copy_of(self, partition: int, home: str) -> PartitionStores:
        """Return the copy of a partition in a folder of replicas."""
        return PartitionStores(home, partition, self.stores, self.steps)


@dataclass
class HostReport:
    """What a host has answered."""

    place: str  # the id of the folder of its replicas
    positions: dict[int, int] = field(default_factory=dict)  # partition → the record that its copy is at
    built: dict[int, float] = field(default_factory=dict)  # partition → seconds in which it was built from the log
    trouble: str = ""  # why a copy could not be kept there
    removed: int = 0  # copies that were not needed any more


def follow(storage: Storage, job: FollowJob) -> HostReport:
    """Catch up the partitions of a job, and report all copies of the app's partitions on this host.

    Partitions that take long are left to the next call. If the job is for another host, nothing is done.
    """
    began, point, home = elapsed(), job.point, job.home or folders.default_home()
    report = HostReport(folders.replica_place(home))
    if job.place and job.place != report.place:
        return report
    for partition in job.follow:
        if elapsed() - began > MOST_SECONDS:
            break
        try:
            _follow_partition(storage, point, job.copy_of(partition, home), report)
        except MillpondError as error:
            report.trouble = report.trouble or f"partition {partition}: {error}"
    for partition in range(point.partitions):
        copy = job.copy_of(partition, home)
        if partition not in report.positions and copy.folder(point).exists():
            position = copy.position(point)
            if position is not None:
                report.positions[partition] = position
    if job.keep is not None:
        needed = {place.folder for p in job.keep for place in job.copy_of(p, home).places(point)}
        report.removed = sum(
            remove_unneeded(folder, point, needed) for folder in (home, str(folders.memory_home(home)))
        )
    return report


def _follow_partition(storage: Storage, point: LogPoint, copy: PartitionStores, report: HostReport) -> None:
    began, rebuild = elapsed(), False
    is_there = copy.position(point) is not None
    for _ in range(MOST_REPLICA_ATTEMPTS):
        try:
            with copy.catch_up(storage, point, rebuild=rebuild) as view:
                report.positions[copy.partition] = view.position
            break
        except Damaged as damage:
            rebuild, trouble = True, repeated_damage(copy.folder(point), damage)
    else:
        raise trouble
    if rebuild or not is_there:
        report.built[copy.partition] = elapsed() - began


def remove_unneeded(home: str, point: LogPoint, needed: set[Path]) -> int:
    """Remove copies of the app's partitions below a folder that are not needed; return how many were removed.

    A copy that was written in the last minutes stays: a reader may use it, or another driver. Copies of other
    incarnations stay for days, because another copy of the state directory may be run with the same folder. A process
    that has a removed copy open can read it to the end, and builds another when it needs one.
    """
    now, removed = SystemClock().now(), 0
    mine = folders.app_folder(home, point.app, point.incarnation)
    for folder in folders.partition_folders(mine):
        if folder not in needed and now - _last_write(folder) > UNUSED_SECONDS:
            removed += remove_store(folder)
    with contextlib.suppress(OSError):
        for other in mine.parent.iterdir():
            if other != mine and other.is_dir() and now - _last_write(other) > FORGOTTEN_SECONDS:
                removed += sum([remove_store(folder) for folder in folders.replica_folders(other)])
                with contextlib.suppress(OSError):
                    other.rmdir()
    return removed


def _last_write(folder: Path) -> float:
    """Return when a file below a folder was last written, in seconds since the epoch."""
    newest = 0.0
    for parent, _, names in os.walk(folder):
        for path in [parent, *(os.path.join(parent, name) for name in names)]:
            with contextlib.suppress(OSError):
                newest = max(newest, os.stat(path).st_mtime)
    return newest
