"""Rewrites: the state is replaced by other state, in one commit.

Rescaling, renaming, migrating, rolling back and restoring work in the same way: new runs of segments are written beside
the old ones, a manifest names them, and one record makes them the state and begins a new epoch, so that replicas from
before are never taken for those after it. Until that record nothing has changed; if it is never written, the new files
are orphans and are removed later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from millpond.clock import new_id
from millpond.codec import decode_key, partitions_of
from millpond.errors import Incompatible
from millpond.log import checked, segment
from millpond.log import merge_runs as merge
from millpond.log.checked import Pointer
from millpond.log.jobs import When
from millpond.log.ledger import Ledger
from millpond.log.manifest import MANIFEST_FORMAT, Manifest, Part, Run, Runs, write_manifest
from millpond.log.paths import Attempt, Paths
from millpond.log.reach import readable_manifest
from millpond.log.record import Record
from millpond.log.segment import STATE, Change, SegmentOrigin
from millpond.storage import Storage

Upgrade = Callable[[list[Change]], list[Change]]  # the cells of one key to the cells that take their place


@dataclass(frozen=True)
class RewriteJob:
    """The rewrite of one partition: the state of its steps, and the partitions that it goes to."""

    app: str
    partition: int
    partitions: int  # after the rewrite
    moves: bool  # whether keys may belong to another partition than before
    attempt: Attempt
    steps: dict[str, tuple[str, list[Run], list[Pointer]]]  # old name → new name, runs, fresh segments


RewrittenRuns = dict[str, dict[int, list[Run]]]  # step → partition → runs


def rewrite_partition(storage: Storage, work: RewriteJob, upgrades: Mapping[str, Upgrade]) -> RewrittenRuns:
    """Rewrite one partition. Runs in a task, and writes files under new names."""
    found: RewrittenRuns = {}
    for old, (name, runs, fresh) in work.steps.items():
        upgrade = upgrades.get(old)
        if upgrade is None and not work.moves:
            found[name] = {work.partition: _on_top(storage, work, name, runs, fresh)}
            continue
        parts: dict[int, list[Run]] = {}
        for table in read_living_cells(storage, runs, fresh):
            if upgrade is not None:
                table = _upgrade_table(table, upgrade)
            for partition, mine in _divide_by_owner(table, work.partitions):
                run = list(_write_parts(storage, work, name, partition, mine))
                if upgrade is None and partition in parts:
                    parts[partition][-1] += run  # its keys follow those of the last table
                else:
                    parts.setdefault(partition, []).append(run)
        found[name] = parts
    return found


def move_partition_changes(storage: Storage, work: RewriteJob) -> RewrittenRuns:
    """Move the changes in the fresh segments of one partition, deletions included. Runs in a task."""
    found: RewrittenRuns = {}
    for name, _, fresh in work.steps.values():
        table = merge.newest_cells([segment.state_table(checked.read_file(storage, file)) for file in fresh])
        found[name] = {
            partition: [list(_write_parts(storage, work, name, partition, mine))]
            for partition, mine in _divide_by_owner(table, work.partitions)
        }
    return found


def add_runs(runs: Runs, newer: Runs) -> None:
    """Put newer runs on top of those of each partition."""
    for step, parts in newer.items():
        for partition, found in parts.items():
            runs.setdefault(step, {}).setdefault(partition, []).extend(found)


def _on_top(storage: Storage, work: RewriteJob, name: str, runs: list[Run], fresh: list[Pointer]) -> list[Run]:
    """Keep the runs, and make one more of the segments that are not compacted."""
    if not fresh:
        return runs
    table = merge.newest_cells([segment.state_table(checked.read_file(storage, file)) for file in fresh])
    run = list(_write_parts(storage, work, name, work.partition, table if runs else merge.drop_deleted(table)))
    return [*runs, run] if run else runs


def read_living_cells(storage: Storage, runs: list[Run], fresh: list[Pointer]) -> Iterator[pa.Table]:
    """Yield all cells of a step in one partition that are not deleted, as tables, in the order of their keys."""

    def table(file: Pointer) -> pa.Table:
        return segment.state_table(checked.read_file(storage, file))

    above = merge.newest_cells(
        [table(part.file) for run in runs[1:] for part in run] + [table(file) for file in fresh] or [_EMPTY]
    )
    if not runs:
        yield merge.drop_deleted(above)
        return
    for part, first, end in merge.part_bounds(runs[0]):
        yield merge.drop_deleted(merge.newest_cells([table(part.file), merge.rows_between(above, first, end)]))


_EMPTY = STATE.empty_table()


def _upgrade_table(table: pa.Table, upgrade: Upgrade) -> pa.Table:
    changes: list[Change] = []
    mine: list[Change] = []
    for change in segment.read_changes(table):
        if mine and mine[0].key != change.key:
            changes += upgrade(mine)
            mine = []
        mine.append(change)
    if mine:
        changes += upgrade(mine)
    return segment.changes_table(sorted(changes))


def _divide_by_owner(table: pa.Table, partitions: int) -> Iterator[tuple[int, pa.Table]]:
    keys = table.column("key").cast(pa.large_binary()).to_pylist()
    owner = np.asarray(partitions_of(keys, partitions))
    for partition in range(partitions):
        mine = np.flatnonzero(owner == partition)
        if len(mine):
            yield partition, table.take(pa.array(mine))


def _write_parts(storage: Storage, work: RewriteJob, name: str, partition: int, table: pa.Table) -> Iterator[Part]:
    for piece in merge.split_table(table):
        attempt = Attempt(work.attempt.batch, work.attempt.driver, new_id())
        path = Paths(work.app).state(name, partition, attempt)
        origin = SegmentOrigin(work.app, name, partition, attempt.batch)
        file = checked.write_file(storage, path, segment.pack_table(piece, origin), len(piece))
        yield Part(file, piece.column("key")[0].as_py())


@dataclass
class Rewriter:
    """Rewrites the state of an app that its caller owns."""

    storage: Storage
    ledger: Ledger
    each: Callable[[Callable[[Storage, Any], Any], list[Any]], list[Any]]
    driver: str
    at: Callable[[When], None] = field(default=lambda when: None)

    def plan_jobs(
        self, source: Record, last: Record, *, partitions: int | None = None, names: Mapping[str, str] | None = None
    ) -> list[RewriteJob]:
        """Return the jobs that replace the state of the last record by that of another; both may be the same."""
        names, count = names or {}, partitions or source.partitions
        held = readable_manifest(self.ledger, source) or Manifest(MANIFEST_FORMAT, source.app, source.born - 1, "")
        found: dict[int, dict[str, tuple[str, list[Run], list[Pointer]]]] = {}
        for step, parts in held.runs.items():
            for partition, runs in parts.items():
                found.setdefault(partition, {})[step] = (names.get(step, step), runs, [])
        for record in self.ledger.between(max(held.upto, source.epoch - 1), source.number):
            for step, segments in record.segments.items():
                for partition, files in segments.items():
                    mine = found.setdefault(partition, {})
                    mine.setdefault(step, (names.get(step, step), [], []))[2].extend(files)
        attempt = Attempt(last.number + 1, self.driver, "")
        moves = count != source.partitions
        return [RewriteJob(source.app, p, count, moves, attempt, steps) for p, steps in sorted(found.items())]

    def rewrite(self, works: list[RewriteJob], last: Record, upgrades: Mapping[str, Upgrade] | None = None) -> Pointer:
        """Run the jobs, and return the manifest of the new state. It replaces the log up to `last`."""
        runs = self.run_jobs(works, upgrades)
        return self.write_manifest(runs, last)

    def run_jobs(self, works: list[RewriteJob], upgrades: Mapping[str, Upgrade] | None = None) -> Runs:
        """Run the jobs, and return the runs of the new state."""
        self.at("before")
        results = self.each(partial(rewrite_partition, upgrades=dict(upgrades or {})), works) if works else []
        self.at("during")
        runs: Runs = {}
        for result in results:
            add_runs(runs, result)
        self._check_keys_differ(
            runs, {name for work in works for old, (name, *_) in work.steps.items() if old in (upgrades or {})}
        )
        return runs

    def write_manifest(self, runs: Runs, last: Record) -> Pointer:
        """Write the manifest of the new state, which replaces the log up to `last`."""
        path = Paths(last.app).manifest(Attempt(last.number + 1, self.driver, new_id()))
        made = Manifest(MANIFEST_FORMAT, last.app, last.number, last.checksum, runs)
        found_pointer = write_manifest(self.storage, path, made)
        self.at("after")
        return found_pointer

    def plan_changes(self, after: Record, last: Record, partitions: int) -> list[RewriteJob]:
        """Return the jobs that move the changes of the records after one and up to another, of the same epoch."""
        found: dict[int, dict[str, tuple[str, list[Run], list[Pointer]]]] = {}
        for record in self.ledger.between(after.number, last.number):
            for step, segments in record.segments.items():
                for partition, files in segments.items():
                    found.setdefault(partition, {}).setdefault(step, (step, [], []))[2].extend(files)
        attempt = Attempt(last.number + 1, self.driver, "")
        return [RewriteJob(last.app, p, partitions, True, attempt, steps) for p, steps in sorted(found.items())]

    def move_changes(self, works: list[RewriteJob]) -> Runs:
        """Run jobs of `plan_changes`; the result goes on top of the runs of the state before."""
        runs: Runs = {}
        for result in self.each(move_partition_changes, works) if works else []:
            add_runs(runs, result)
        return runs

    def _check_keys_differ(self, runs: Runs, steps: set[str]) -> None:
        """Raise `Incompatible` if a migration gives two keys the same new one: the state of one would be lost."""
        for step in sorted(steps):
            parts = list(runs.get(step, {}).values())
            doubled = [key for key in (self.each(find_doubled_key_in, parts) if parts else []) if key is not None]
            if doubled:
                key = decode_key(doubled[0])
                raise Incompatible(
                    f"step {step!r}: its migration gives several keys the state of {key!r}, and one of them would be "
                    "lost. Give every key a new one of its own; nothing was changed."
                )


def find_doubled_key_in(storage: Storage, runs: list[Run]) -> bytes | None:
    """Return a key with a cell that is in the runs more than once; None if there is none. Runs in a task."""
    tables = [segment.state_table(checked.read_file(storage, part.file)) for run in runs for part in run]
    return merge.find_doubled_key(tables) if tables else None


def rewrite_fields(manifest: Pointer, last: Record, why: str, **own: Any) -> dict[str, Any]:
    """Return the fields of a record that replaces the state."""
    return {"manifest": manifest, "epoch": last.number + 1, "why": why, **own}
