"""Tables that the steps of a task read: those of its partition, and whole tables with a replica on each host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import lmdb
import pyarrow as pa
import pyarrow.compute as pc

from millpond.log import checked, segment
from millpond.log.checked import Pointer
from millpond.log.manifest import Manifest
from millpond.log.point import LogPoint, SegmentsByStep
from millpond.log.segment import Change
from millpond.messages import BatchContext, Incomplete
from millpond.pipeline.graph import Program
from millpond.replica import View
from millpond.replica.catch_up import ReplicaPlace, catch_up, read_segment_changes
from millpond.replica.cell_format import Damaged
from millpond.replica.host_lock import host_turn
from millpond.replica.local_stores import table_store_folder
from millpond.steps.state.lazy_migration import UNMARKED
from millpond.steps.state.migration import MARK
from millpond.steps.state.table_rows import Overlay, PartitionRows, RowCache, RowDecoder, TableRows, WholeRows
from millpond.steps.verbs.table import ROW
from millpond.storage import Storage

T = TypeVar("T")

MOST_REMEMBERED = 50_000  # changes of a table for which what is remembered of it is changed, not forgotten


class DamagedTable(BaseException):
    """The replica of a whole table is damaged. The partition's own replica is not, and need not be rebuilt.

    Like `Damaged`, not an `Exception`: it is never an error of a row.
    """

    def __init__(self, table: str, folder: Path, damage: BaseException) -> None:
        super().__init__(table)
        self.table, self.folder, self.damage = table, folder, damage


@dataclass(frozen=True)
class TaskTables:
    """The tables that the steps of one task read."""

    storage: Storage
    program: Program
    context: BatchContext
    partition: int
    _whole: dict[str, WholeRows] = field(default_factory=dict)  # of whole tables that are open

    @contextmanager
    def open_whole(self, steps: Sequence[str], rebuild: set[str]) -> Iterator[None]:
        """Catch up the replicas of whole tables on this host; within the `with` block they can be read.

        Like a partition's replica they are exactly at the record that the batch builds on. `DamagedTable` is raised if
        a replica turns out to be damaged; the tables in `rebuild` are built from the log. What the process remembers
        of a table is forgotten if the block raises anything.
        """
        caches: dict[str, RowCache] = {}
        with ExitStack() as stack:
            for step in steps:
                place = self._place(step)
                folder = place.folder
                view = self._open(step, place, stack, step in rebuild)
                caches[step] = cache = self.program.table_caches.pop(step, None) or RowCache()
                self._bring_up(cache, step, folder, view)
                self._whole[step] = WholeRows(
                    RowDecoder(step, self.program.codec),
                    self.context.batch,
                    _CheckedTable(step, folder, self._upgrade(step, view)),
                    cache,
                    partial(self._read_overlay, step, cache),
                )
            yield
            for cache in caches.values():
                if len(cache.overlay.changes) > MOST_REMEMBERED:
                    cache.overlay = Overlay()
            self.program.table_caches.update(caches)

    def _place(self, step: str) -> ReplicaPlace:
        """Return where the replica of a whole table is on this host."""
        stores, log, home = self.program.local_stores, self.context.log, self.context.home
        store = stores.of_step(step)
        return ReplicaPlace(table_store_folder(home, log, step, store), store, stores.local_limit(log.app, home))

    def _open(self, step: str, place: ReplicaPlace, stack: ExitStack, rebuild: bool) -> View:
        log, changes = self.context.log, TableChanges(self.storage, step)
        with host_turn(place.folder):  # one process of the host reads what is missing; the others find it there
            view = stack.enter_context(catch_up(self.storage, log, place, changes, rebuild=rebuild))
        if view.position != log.number:
            raise Incomplete(f"table {step!r} at record {view.position}, batch {self.context.batch} needs {log.number}")
        return view

    def _bring_up(self, cache: RowCache, step: str, folder: Path, view: View) -> None:
        """Let a cache hold rows of the committed version that the view shows."""
        before, version = cache.version, (str(folder), view.position, view.record)
        if before == version:
            return
        changes = None
        if before is not None and before[0] == version[0] and not cache.is_empty:
            files = files_since(self.context.log, step, before[1], before[2])
            if files is not None and sum(file.rows for file in files) <= MOST_REMEMBERED:
                changes = self._read_rows(files)
        if changes is None:
            cache.clear()
        else:
            cache.advance(changes, RowDecoder(step, self.program.codec))
        cache.version = version

    def _read_overlay(self, step: str, cache: RowCache) -> Overlay:
        """Return what earlier stages of the batch have changed; tasks of one process and batch share it."""
        files = [file for part in self.context.table_changes.get(step, {}).values() for file in part]
        names = tuple(file.path for file in files)
        if cache.overlay.files != names:
            cache.overlay = Overlay(names, self._read_rows(files))
        return cache.overlay

    def _read_rows(self, files: list[Pointer]) -> dict[bytes, bytes | None]:
        return {change.key: change.value for change in read_segment_changes(self.storage, files) if change.cell == ROW}

    def rows(self, view: View, step: str) -> TableRows:
        """Return the rows of a table that an earlier stage may have changed; `view` is that of the partition."""
        if step in self._whole:
            return self._whole[step]
        changed = self._read_rows(self.context.table_changes.get(step, {}).get(self.partition, []))
        upgraded = self._upgrade(step, view)

        def read(keys: Sequence[bytes]) -> list[bytes | None]:
            committed = iter(upgraded.get_many(step, [key for key in keys if key not in changed]))
            return [changed[key] if key in changed else next(committed) for key in keys]

        return PartitionRows(RowDecoder(step, self.program.codec), read)

    def _upgrade(self, step: str, view: View) -> View:
        """Return a view of a table in its newest version, where some of it may be stored in an older one."""
        unmarked = self.context.event_time.details.get(step, {}).get(UNMARKED)
        return self.program.steps[step].upgraded_view(view, unmarked, self.program.types)


def files_since(log: LogPoint, step: str, number: int, checksum: str) -> list[Pointer] | None:
    """Return the segments of a step in the records after one, oldest first; None if they are not all known here.

    The checksum is that of the record: another copy of the ledger may have another record of that number.
    """
    numbers = range(number, log.number + 1)
    if not numbers or any(each not in log.links for each in numbers) or log.links[number].checksum != checksum:
        return None
    if any(log.links[later].previous != log.links[earlier].checksum for earlier, later in pairwise(numbers)):
        return None
    return [file for each in numbers[1:] for by_step in log.recent[each].values() for file in by_step.get(step, [])]


@dataclass(frozen=True)
class _CheckedTable:
    """A committed table that raises `DamagedTable` with its name for any damage."""

    step: str
    folder: Path
    view: View

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._check(lambda: self.view.get_many(self.step, keys))

    def scan(self, beginning: bytes) -> Iterator[tuple[bytes, bytes]]:
        pairs = self.view.scan_keys(self.step, beginning)
        while (pair := self._check(lambda: next(pairs, None))) is not None:
            yield pair

    def count(self) -> int:
        return self._check(lambda: self.view.count(self.step))

    def _check(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except (Damaged, lmdb.Error) as error:
            raise DamagedTable(self.step, self.folder, error) from error


class TableChanges:
    """The changes of one table in all partitions: its rows and their versions, without times and other cells."""

    def __init__(self, storage: Storage, step: str) -> None:
        self._storage, self._step = storage, step

    def read_manifest(self, manifest: Manifest) -> Iterator[tuple[str, pa.Table]]:
        for runs in manifest.runs.get(self._step, {}).values():
            for part in (part for run in runs for part in run):
                yield self._step, rows_and_marks(segment.state_table(checked.read_file(self._storage, part.file)))

    def read_record(self, segments: dict[int, SegmentsByStep]) -> Mapping[str, Sequence[Change]]:
        files = [file for by_step in segments.values() for file in by_step.get(self._step, [])]
        changes = [
            Change(change.key, change.cell, change.value)
            for change in read_segment_changes(self._storage, files)
            if change.cell in (ROW, MARK)
        ]
        return {self._step: changes} if changes else {}


def rows_and_marks(table: pa.Table) -> pa.Table:
    """Return the rows and marks in the state of a table step, without their times."""
    cells = pa.array([ROW.decode(), MARK.decode()])
    found = table.filter(pc.is_in(table.column("cell"), value_set=cells))
    nothing = pa.nulls(len(found), pa.int64())
    for name in ("due", "wall"):
        found = found.set_column(found.schema.get_field_index(name), name, nothing)
    return found
