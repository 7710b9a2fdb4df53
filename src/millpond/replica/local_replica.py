"""A replica in a folder of this host: of one partition, of one table in all partitions, or of a whole app."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import lmdb

from millpond.clock import SystemClock
from millpond.log import checked, segment
from millpond.log.ledger import Ledger
from millpond.log.manifest import Manifest
from millpond.log.point import LogPoint, SegmentsByStep
from millpond.log.segment import Change
from millpond.replica import folders
from millpond.replica.catch_up import (
    ChangeReader,
    PartitionChanges,
    catch_up,
    read_segment_changes,
)
from millpond.replica.cell_format import Damaged
from millpond.replica.fill_progress import FillProgress
from millpond.replica.lending import lend_store
from millpond.replica.lmdb_store import LMDB
from millpond.replica.protocol import ReplicaPosition
from millpond.replica.store import Replaced, StepChangeRows, Stuck
from millpond.replica.view import View
from millpond.storage import Storage


@dataclass(frozen=True)
class AppChanges:
    """The changes of all steps in all partitions.

    A store that applies them is the state of the whole app at one record: its steps and partitions always agree.
    """

    storage: Storage

    def read_manifest(self, manifest: Manifest) -> Iterator[tuple[str, StepChangeRows]]:
        parts = [
            (step, part)
            for step, partitions in manifest.runs.items()
            for _, runs in sorted(partitions.items())
            for run in runs
            for part in run
        ]
        progress = FillProgress(manifest.app, None, [part.file for _, part in parts])
        for step, part in parts:
            yield step, segment.state_table(checked.read_file(self.storage, part.file))
            progress.done(part.file)

    def read_record(self, segments: dict[int, SegmentsByStep]) -> Mapping[str, Sequence[Change]]:
        found: dict[str, list[Change]] = {}
        for _, by_step in sorted(segments.items()):
            for step, files in by_step.items():
                found.setdefault(step, []).extend(read_segment_changes(self.storage, files))
        return found


class LocalReplica:
    """A `LogReplica` in a folder of this host, which other processes of the host may catch up, too.

    Every incarnation, number of partitions and epoch has a folder of its own: `folder(log_point)` names it.
    """

    def __init__(
        self, storage: Storage, app: str, changes: ChangeReader, home: str, folder: Callable[[LogPoint], Path]
    ) -> None:
        self._storage, self._changes, self._folder = storage, changes, folder
        self._ledger, self._home = Ledger(storage, app, SystemClock()), folders.app_folder(home, app)

    @classmethod
    def of_partition(cls, storage: Storage, app: str, partition: int, home: str) -> LocalReplica:
        """Return the replica of one partition, as tasks use it."""
        changes = PartitionChanges(storage, partition)
        return cls(storage, app, changes, home, lambda point: folders.partition_folder(home, point, partition))

    @classmethod
    def of_app(cls, storage: Storage, app: str, home: str) -> LocalReplica:
        """Return a replica of all steps in all partitions, as readers use it."""
        return cls(storage, app, AppChanges(storage), home, lambda point: folders.reader_folder(home, point))

    @property
    def position(self) -> ReplicaPosition:
        """The newest record that a store of this replica on this host has reached."""
        found = [self._stored(point) for point in self._points()]
        return max(found, key=lambda position: position.number, default=ReplicaPosition())

    def _points(self) -> Iterator[LogPoint]:
        """Yield a point for each folder that may hold this replica."""
        for place in self._home.glob("*/*"):
            said = folders.parse_folder(place)
            if said is not None:
                point = LogPoint(self._ledger.app, place.parent.name, said[0], -1, 0, epoch=said[1])
                if self._folder(point) == place:
                    yield point

    def _stored(self, point: LogPoint) -> ReplicaPosition:
        try:
            with lend_store(LMDB, self._folder(point), None) as store:
                number, checksum = store.newest_record()
        except (Replaced, Stuck, Damaged, lmdb.Error):  # it is built again from the log
            return ReplicaPosition()
        return ReplicaPosition(number, checksum, point.incarnation, point.epoch) if number >= 0 else ReplicaPosition()

    def lag(self, newest: LogPoint) -> int:
        return max(0, newest.number - self.position.number)

    def catch_up(self, to: LogPoint) -> ReplicaPosition:
        held = self.position
        if held.number > to.number and self._has(held):
            return held
        with self.open(to) as view:
            reached = ReplicaPosition(view.position, view.record, to.incarnation, to.epoch)
        if (held.incarnation, held.epoch) != (to.incarnation, to.epoch):
            self.remove_others(to)  # or `position` might find state of another copy of the log
        return reached

    def _has(self, position: ReplicaPosition) -> bool:
        record = self._ledger.read(position.number)
        return record is not None and record.checksum == position.checksum

    @contextmanager
    def open(self, to: LogPoint, *, rebuild: bool = False) -> Iterator[View]:
        """Catch up with a record of the log, and yield a view of the replica, which stays as it is until it is closed.

        The view is at that record, or at a later one if another process has caught the replica up.
        """
        with catch_up(self._storage, to, self._folder(to), self._changes, rebuild=rebuild) as view:
            yield view

    def remove_others(self, to: LogPoint) -> None:
        """Remove the folders of this replica that are of another epoch or incarnation than a record.

        A process that has one of them open can still read it.
        """
        for point in self._points():
            if self._folder(point) != self._folder(to):
                shutil.rmtree(self._folder(point), ignore_errors=True)
