"""Tables that a task looks rows up in: those of its partition, and whole tables with a replica on each host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import lmdb

from millpond.log import checked, segment
from millpond.log.checked import Pointer
from millpond.log.manifest import Manifest
from millpond.log.point import SegmentsByStep
from millpond.log.segment import Change
from millpond.messages import BatchContext, Incomplete
from millpond.pipeline.graph import Program
from millpond.replica import View
from millpond.replica.catch_up import ReplicaPlace, catch_up, read_segment_changes
from millpond.replica.cell_format import Damaged
from millpond.replica.host_lock import host_turn
from millpond.replica.local_stores import table_store_folder
from millpond.steps.base import TableReader
from millpond.steps.state.lazy_migration import UNMARKED
from millpond.steps.state.migration import MARK
from millpond.steps.verbs.table import ROW
from millpond.storage import Storage


class DamagedTable(BaseException):
    """The replica of a whole table is damaged. The partition's own replica is not, and need not be rebuilt.

    Like `Damaged`, not an `Exception`: it is never an error of a row.
    """

    def __init__(self, table: str, folder: Path, damage: BaseException) -> None:
        super().__init__(table)
        self.table, self.folder, self.damage = table, folder, damage


class TableOverlay:
    """A `TableReader` within a batch: what was committed, overlaid with the changes of the batch's earlier stages."""

    def __init__(self, step: str, view: View, storage: Storage, changed: list[Pointer]) -> None:
        self._step, self._view, self._storage, self._changed = step, view, storage, changed
        self._overlay: dict[bytes, bytes | None] | None = None  # key → row; read with the first lookup

    def __call__(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if self._overlay is None:
            changes = read_segment_changes(self._storage, self._changed)
            self._overlay = {change.key: change.value for change in changes if change.cell == ROW}
        overlay = self._overlay
        if not overlay:
            return self._view.get_many(self._step, keys)
        committed = iter(self._view.get_many(self._step, [key for key in keys if key not in overlay]))
        return [overlay[key] if key in overlay else next(committed) for key in keys]


@dataclass(frozen=True)
class TaskTables:
    """The tables that the steps of one task look rows up in."""

    storage: Storage
    program: Program
    context: BatchContext
    partition: int
    _whole: dict[str, TableReader] = field(default_factory=dict)  # readers of whole tables that are open

    @contextmanager
    def open_whole(self, steps: Sequence[str], rebuild: set[str]) -> Iterator[None]:
        """Catch up the replicas of whole tables on this host; within the `with` block they can be read.

        Like a partition's replica they are exactly at the record that the batch builds on. A reader raises
        `DamagedTable` if its replica turns out to be damaged; the tables in `rebuild` are built from the log.
        """
        storage, log = self.storage, self.context.log
        with ExitStack() as stack:
            for step in steps:
                place, changes = self._place(step), TableChanges(storage, step)
                folder = place.folder
                with host_turn(folder), catch_up(storage, log, place, changes, rebuild=step in rebuild):
                    pass  # one process of the host reads what is missing; the others find it there
                view = stack.enter_context(catch_up(storage, log, place, changes))
                if view.position != log.number:
                    raise Incomplete(
                        f"table {step!r} at record {view.position}, batch {self.context.batch} needs {log.number}"
                    )
                changed = [file for files in self.context.table_changes.get(step, {}).values() for file in files]
                self._whole[step] = _name_damage(
                    step, folder, TableOverlay(step, self._upgrade(step, view), storage, changed)
                )
            yield

    def _place(self, step: str) -> ReplicaPlace:
        """Return where the replica of a whole table is on this host."""
        stores, log, home = self.program.local_stores, self.context.log, self.context.home
        store = stores.of_step(step)
        return ReplicaPlace(table_store_folder(home, log, step, store), store, stores.local_limit(log.app, home))

    def reader(self, view: View, step: str) -> TableReader:
        """Return the reader of a table that an earlier stage may have changed; `view` is that of the partition."""
        if step in self._whole:
            return self._whole[step]
        changed = self.context.table_changes.get(step, {}).get(self.partition, [])
        return TableOverlay(step, self._upgrade(step, view), self.storage, changed)

    def _upgrade(self, step: str, view: View) -> View:
        """Return a view of a table in its newest version, where some of it may be stored in an older one."""
        unmarked = self.context.event_time.details.get(step, {}).get(UNMARKED)
        return self.program.steps[step].upgraded_view(view, unmarked, self.program.types)


def _name_damage(step: str, folder: Path, read: TableReader) -> TableReader:
    """Return a reader that raises `DamagedTable` with the table's name for any damage."""

    def read_table(keys: Sequence[bytes]) -> list[bytes | None]:
        try:
            return read(keys)
        except (Damaged, lmdb.Error) as error:
            raise DamagedTable(step, folder, error) from error

    return read_table


class TableChanges:
    """The changes of one table in all partitions: its rows and their versions, without times and other cells."""

    def __init__(self, storage: Storage, step: str) -> None:
        self._storage, self._step = storage, step

    def read_manifest(self, manifest: Manifest) -> Iterator[tuple[str, Sequence[Change]]]:
        for runs in manifest.runs.get(self._step, {}).values():
            for part in (part for run in runs for part in run):
                changes = segment.unpack_state(checked.read_file(self._storage, part.file))
                yield self._step, [Change(c.key, c.cell, c.value) for c in changes if c.cell in (ROW, MARK)]

    def read_record(self, segments: dict[int, SegmentsByStep]) -> Mapping[str, Sequence[Change]]:
        changes = [
            Change(change.key, change.cell, change.value)
            for by_step in segments.values()
            for change in read_segment_changes(self._storage, by_step.get(self._step, []))
            if change.cell in (ROW, MARK)
        ]
        return {self._step: changes}
