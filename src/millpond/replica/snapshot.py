"""Snapshots: the state of several partitions at one record, while other processes may catch their replicas up."""

from __future__ import annotations

import marshal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

from millpond.errors import Corrupt
from millpond.log.ledger import Ledger
from millpond.log.point import LogPoint
from millpond.log.record import Record
from millpond.replica.catch_up import MOST_REPLICA_ATTEMPTS, repeated_damage
from millpond.replica.cell_format import Damaged
from millpond.replica.lending import MOST_OPEN
from millpond.replica.local_stores import ONLY_LMDB, LocalStores, PartitionStores
from millpond.replica.view import View

MOST_VIEWS = MOST_OPEN // 2  # that are open at a time: other stores of the process need room, too
MOST_MEMORY = 64 << 20  # bytes of a snapshot; a larger one is in a temporary file

CellRow = tuple[bytes, bytes, bytes]
"""Key, cell and value."""

ReadView = Callable[[View], Iterable[CellRow]]


class Apart(Exception):
    """Replicas are at different records, because another process has caught some of them up meanwhile."""

    def __init__(self, newest: int) -> None:
        super().__init__(newest)
        self.newest = newest  # of the records that they are at


class Snapshot:
    """Rows of some partitions as they were at one record. It is a copy: no replica is kept open for it."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self._file = tempfile.SpooledTemporaryFile(MOST_MEMORY)  # noqa: SIM115
        self._places: list[tuple[int, int]] = []  # offset and size of the rows of each partition
        self._end = 0

    def __iter__(self) -> Iterator[list[CellRow]]:
        """Yield the rows of each partition; the rows of one partition are in memory at a time."""
        for offset, size in self._places:
            self._file.seek(offset)
            yield marshal.loads(self._file.read(size))

    def add(self, rows: Iterable[CellRow]) -> None:
        """Add the rows of the next partition."""
        data = marshal.dumps(list(rows))
        self._file.seek(self._end)
        self._file.write(data)
        self._places.append((self._end, len(data)))
        self._end += len(data)

    def keep_first(self, count: int) -> None:
        """Remove the rows of all partitions but the first ones."""
        del self._places[count:]

    def __len__(self) -> int:
        return len(self._places)

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True)
class SnapshotReader:
    """Takes snapshots by way of the replicas in one folder. `steps` are those that are read; None means any."""

    ledger: Ledger
    home: str | None
    stores: LocalStores = ONLY_LMDB
    steps: tuple[str, ...] | None = None

    def take(self, record: Record, partitions: Sequence[int], reader: Callable[[Record], ReadView]) -> Snapshot:
        """Return a snapshot of partitions at a record, or at a later one that the replicas of all have reached.

        `reader(record)` is called when the views are open, and returns what reads each of them. `Apart` if the replicas
        are at different records.
        """
        snapshot = Snapshot(record)
        try:
            for start in range(0, len(partitions), MOST_VIEWS):
                self._add_group(snapshot, partitions[start : start + MOST_VIEWS], reader)
        except BaseException:
            snapshot.close()
            raise
        return snapshot

    def _add_group(self, snapshot: Snapshot, group: Sequence[int], reader: Callable[[Record], ReadView]) -> None:
        """Add partitions whose views are open at the same time. A replica that turns out to be damaged is rebuilt."""
        log = LogPoint.of(snapshot.record)
        count, damages, rebuild = len(snapshot), Counter[int](), -1
        while True:
            try:
                with ExitStack() as stack:
                    views = [stack.enter_context(self._open(log, each, each == rebuild)) for each in group]
                    self._agree(snapshot, views)
                    read = reader(snapshot.record)
                    for view in views:
                        snapshot.add(read(view))
                    return
            except Damaged as damage:
                rebuild = group[len(snapshot) - count]
                snapshot.keep_first(count)
                damages[rebuild] += 1
                if damages[rebuild] == MOST_REPLICA_ATTEMPTS:
                    raise repeated_damage(self._stores(rebuild).folder(log), damage) from damage

    def _open(self, log: LogPoint, partition: int, rebuild: bool) -> AbstractContextManager[View]:
        return self._stores(partition).catch_up(self.ledger.storage, log, rebuild=rebuild)

    def _stores(self, partition: int) -> PartitionStores:
        return PartitionStores(self.home, partition, self.stores, self.steps)

    def _agree(self, snapshot: Snapshot, views: list[View]) -> None:
        """Let the snapshot be of the record that all views are at. `Apart` if there is none."""
        positions = {view.position for view in views}
        if positions == {snapshot.record.number}:
            return
        newest = max(positions)
        if len(positions) > 1 or len(snapshot):
            raise Apart(newest)
        record = self.ledger.read(newest)
        if record is None:
            raise Corrupt(f"{self.ledger.storage.url}: ledger record {self.ledger.paths.record(newest)} is missing")
        snapshot.record = record
