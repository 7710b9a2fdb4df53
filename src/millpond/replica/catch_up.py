"""Catching up: a replica applies the records of the log that it lacks, and is read when it has reached a record.

`catch_up` is a context manager that yields a view. Whatever is wrong with a store before the view is there, it handles
itself: a store that is missing, damaged or stuck is built again. Damage that only shows while the view is read is
raised as `Damaged` out of the `with` block. The caller then runs the block again with `rebuild=True`; it makes at most
`MOST_REPLICA_ATTEMPTS` attempts, and raises `repeated_damage` after the last.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import lmdb

from millpond.clock import SystemClock
from millpond.errors import Corrupt, Unavailable
from millpond.log import checked, segment
from millpond.log.checked import Pointer
from millpond.log.ledger import Ledger
from millpond.log.manifest import Manifest, read_manifest
from millpond.log.point import LogPoint, RecordLink, SegmentsByStep, segments_by_partition
from millpond.log.reach import earlier_manifest
from millpond.log.recovery import RecoveryFile
from millpond.log.segment import Change, SegmentOrigin
from millpond.replica import folders
from millpond.replica.cell_format import Damaged
from millpond.replica.fill_progress import FillProgress
from millpond.replica.lending import build_store, lend_store
from millpond.replica.lmdb_store import LMDB
from millpond.replica.room import LocalLimit
from millpond.replica.store import OpenStore, RecordChanges, Replaced, StepChangeRows, Store, Stuck
from millpond.replica.view import View
from millpond.storage import Storage

log = logging.getLogger("millpond")

MOST_REMEMBERED = 200_000  # changes that one process remembers, to apply them without reading them back
MOST_REPLICA_ATTEMPTS = 6  # at opening a replica, and at reading it: other processes may be at work in its folder
_UNUSABLE = (Damaged, Stuck, lmdb.Error)
_UNREADABLE = (UnicodeDecodeError, OverflowError, struct.error)  # what else a damaged store may raise
_FULL = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT))


class ChangeReader(Protocol):
    """Reads the changes that a replica applies: those of one partition, or of one table in all partitions."""

    def read_manifest(self, manifest: Manifest) -> Iterator[tuple[str, StepChangeRows]]:
        """Return the state at the record of a manifest, file by file, each with its step."""
        ...

    def read_record(self, segments: dict[int, SegmentsByStep]) -> Mapping[str, Sequence[Change]]:
        """Return the changes of one record, by step, from its segments: partition → step → files."""
        ...


@dataclass(frozen=True)
class PartitionChanges:
    """The changes of one partition: of all steps, or of those for which `holds` is true.

    With `report`, the driver learns how much of a replica is loaded.
    """

    storage: Storage
    partition: int
    holds: Callable[[str], bool] | None = None
    report: RecoveryFile | None = None

    def read_manifest(self, manifest: Manifest) -> Iterator[tuple[str, StepChangeRows]]:
        runs = {step: found for step, found in manifest.runs.items() if self.holds is None or self.holds(step)}
        mine = [(step, run) for step, found in runs.items() for run in found.get(self.partition, [])]
        parts = [(step, part) for step, run in mine for part in run]
        progress = FillProgress(manifest.app, self.partition, [part.file for _, part in parts], self.report)
        try:
            for step, part in parts:
                yield step, segment.state_table(checked.read_file(self.storage, part.file))
                progress.done(part.file)
        finally:
            progress.close()

    def read_record(self, segments: dict[int, SegmentsByStep]) -> Mapping[str, Sequence[Change]]:
        mine = segments.get(self.partition, {})
        return {step: self._read(files) for step, files in mine.items() if self.holds is None or self.holds(step)}

    def _read(self, files: list[Pointer]) -> Sequence[Change]:
        if len(files) != 1:
            return list(read_segment_changes(self.storage, files))
        held = _written.pop(files[0].path, None)
        return segment.unpack_state(checked.read_file(self.storage, files[0])) if held is None else held


@dataclass(frozen=True)
class ReplicaPlace:
    """Where a replica is: its folder, the kind of store in it, and how large the replicas of the app may grow."""

    folder: Path
    store: Store = LMDB
    limit: LocalLimit | None = None

    def guard(self, record: RecordChanges, store: OpenStore | None) -> RecordChanges:
        """Return the record, with the limit checked; None is a store that is being built."""
        return record if self.limit is None else self.limit.guard(record, self.folder, store)


@contextmanager
def catch_up(
    storage: Storage,
    log_point: LogPoint,
    folder: Path | ReplicaPlace,
    changes: ChangeReader,
    *,
    rebuild: bool = False,
) -> Iterator[View]:
    """Yield a view of the replica in `folder`, which has reached the record of a log point, or a later one.

    The view is of this very ledger, whatever else shares the folder. If the newest manifest or a file that it names is
    damaged, an earlier one and more of the log are used, for as long as retention keeps them. A path stands for an
    LMDB store; a `ReplicaPlace` says which store it is, and how large it may grow.
    """
    manifest, below = log_point.manifest, log_point.number
    with ExitStack() as stack:
        while True:
            reader = _LogReader(storage, replace(log_point, manifest=manifest), changes)
            try:
                view = stack.enter_context(open_replica(folder, reader.missing, rebuild, reader.belongs))
                break
            except Corrupt:
                if manifest is None:
                    raise
                ledger = Ledger(storage, log_point.app, SystemClock())
                earlier = earlier_manifest(ledger, manifest, log_point.born, log_point.epoch, below)
                if earlier is None:
                    raise
                log.warning("%s: %s cannot be read; an earlier one is used", log_point.app, manifest.path)
                manifest, below = earlier.manifest, earlier.number
        yield view


@dataclass(frozen=True)
class _LogReader:
    """Reads the log up to a point."""

    storage: Storage
    point: LogPoint
    changes: ChangeReader

    def missing(self, position: int) -> Iterator[RecordChanges]:
        """Return the changes of the records after a position and up to the point."""
        point = self.point
        if position < 0 and point.manifest is not None:
            manifest = read_manifest(self.storage, point.manifest)
            yield RecordChanges(manifest.upto, self.changes.read_manifest(manifest), manifest.checksum)
            position = manifest.upto
        before: RecordLink | None = None
        for number in range(max(position + 1, point.born), point.number + 1):
            link, segments = self._record(number)
            if before is not None and link.previous != before.checksum:
                raise Corrupt(
                    f"{self.storage.url}: ledger record {self._ledger.paths.record(number)} does not follow the "
                    "record before it: records of different copies of the state directory were mixed. Put the ledger "
                    "back from one copy."
                )
            yield RecordChanges(number, self.changes.read_record(segments), link.checksum, link.previous)
            before = link

    def _record(self, number: int) -> tuple[RecordLink, dict[int, SegmentsByStep]]:
        segments = self.point.recent.get(number)
        if segments is not None:
            return self.point.links[number], segments
        record = next(self._ledger.between(number - 1, self.point.number))
        return RecordLink.of(record), segments_by_partition(record)

    @property
    def _ledger(self) -> Ledger:
        return Ledger(self.storage, self.point.app, SystemClock())

    def belongs(self, position: int, checksum: str) -> bool:
        """Return whether a store at this position, whose record has this checksum, was built from this very ledger.

        Another copy of the state directory has records of the same numbers, and may have another history.
        """
        if position < 0:
            return True
        link = self.point.links.get(position)
        if link is not None:
            return checksum == link.checksum
        record = self._ledger.read(position)
        return record is not None and checksum == record.checksum


def _always(position: int, checksum: str) -> bool:
    return True


@contextmanager
def open_replica(
    at: Path | ReplicaPlace,
    missing: Callable[[int], Iterable[RecordChanges]],
    rebuild: bool = False,
    belongs: Callable[[int, str], bool] = _always,
) -> Iterator[View]:
    """Yield a view of the replica at a place, brought up to date; build it if it is missing or cannot be used.

    `missing(position)` returns the records after a position, -1 being before the first of them all.
    `belongs(position, checksum)` is asked whether a store at that record is of this log at all: about the store as it
    is found, and about the very view that is yielded. If the store turns out to be damaged while the view is read,
    `Damaged` is raised, even if it was just rebuilt: another process may have replaced it, or may be damaging it.
    `Unavailable` if no view can be had. A path stands for an LMDB store.
    """
    place = at if isinstance(at, ReplicaPlace) else ReplicaPlace(at)
    view, opened = _open_view(place, missing, rebuild, belongs)
    with opened:
        try:
            yield view  # errors of the program's data may be of the kinds in _UNREADABLE: only a view raises `Damaged`
        except lmdb.Error as error:
            raise Damaged(str(error)) from error


def _open_view(
    place: ReplicaPlace,
    missing: Callable[[int], Iterable[RecordChanges]],
    rebuild: bool,
    belongs: Callable[[int, str], bool],
) -> tuple[View, ExitStack]:
    """Return a view that is up to date, and what closes it."""
    trouble: BaseException | None = None
    folder, store = place.folder, place.store
    for _ in range(MOST_REPLICA_ATTEMPTS):
        try:
            with ExitStack() as attempt:
                records = iter(missing(-1) if rebuild else ())
                try:
                    built = (
                        build_store(store, folder, (place.guard(each, None) for each in records)) if rebuild else None
                    )
                    replica = attempt.enter_context(lend_store(store, folder, built))
                    if not rebuild:
                        position, checksum = replica.newest_record()
                        _check_history(position, checksum, belongs)
                        records = iter(missing(position))
                    for record in records:  # which may be fetched here, before a lock of the store is taken
                        replica.apply(place.guard(record, replica))
                    view = attempt.enter_context(replica.view())
                    _check_history(view.position, view.record, belongs)
                except _UNREADABLE as error:
                    raise Damaged(f"{type(error).__name__}: {error}") from error
                return view, attempt.pop_all()
        except Replaced as error:
            trouble, rebuild = error, not folders.generations(folder)
        except _UNUSABLE as error:
            trouble, rebuild = error, True
            if _is_full(error):
                break
    raise _replica_unavailable(folder, trouble) from trouble


def replica_position(place: ReplicaPlace) -> int | None:
    """Return the record that the replica at a place is at, as it is; None if there is none that can be used."""
    try:
        with lend_store(place.store, place.folder, None) as replica:
            return replica.newest_record()[0]
    except (Replaced, *_UNUSABLE, *_UNREADABLE):
        return None


def _check_history(position: int, checksum: str, belongs: Callable[[int, str], bool]) -> None:
    if not belongs(position, checksum):
        raise Damaged(f"record {position} is of another history")


def repeated_damage(folder: Path, damage: BaseException) -> Unavailable:
    """Return the error of a replica that is damaged in the last of `MOST_REPLICA_ATTEMPTS` attempts at reading it."""
    return Unavailable(
        f"local replica {folder}: it is damaged again after {MOST_REPLICA_ATTEMPTS - 1} rebuilds: {damage}. Check the "
        "disk of this host and what else writes to the folder, or choose another local_dir; the state itself is safe "
        "in the log."
    )


def _replica_unavailable(folder: Path, trouble: BaseException | None) -> Unavailable:
    return Unavailable(
        f"local replica {folder}: it cannot be kept there: {trouble}. {_advice(folder, trouble)}, or choose another "
        "local_dir; the state itself is safe in the log."
    )


def _is_full(error: BaseException | None) -> bool:
    return any(text in str(error) for text in _FULL)  # LMDB gives no number


def _advice(folder: Path, error: BaseException | None) -> str:
    if not _is_full(error):
        return "See that the folder can be written"
    there = next((place for place in folder.parents if place.exists()), Path("/"))
    free = shutil.disk_usage(there).free
    return f"Its disk is full, with {free} bytes left of what this user may take: make room there"


# --- changes that this process has written ---

_written: dict[str, Sequence[Change]] = {}  # segment → its changes: no need to read them back
_last_segments: dict[tuple[str, str, int], str] = {}  # app, step, partition → the segment that was written last


def remember_changes(path: str, changes: Sequence[Change], origin: SegmentOrigin) -> None:
    """Remember the changes of a segment that this process has just written, until the replica applies them.

    Only the last segment of each partition is remembered. Another process may have taken the partition over and applied
    them, so the oldest make room.
    """
    place = (origin.app, origin.of, origin.partition)
    _written.pop(_last_segments.get(place, ""), None)
    _last_segments[place] = path
    while _written and sum(map(len, _written.values())) + len(changes) > MOST_REMEMBERED:
        del _written[next(iter(_written))]
    _written[path] = changes


def read_segment_changes(storage: Storage, files: list[Pointer]) -> Iterator[Change]:
    """Return the changes in some segments; those that this process remembers are not read from storage."""
    for file in files:
        held = _written.get(file.path)  # it stays: the partition's own replica is still to apply it
        yield from segment.unpack_state(checked.read_file(storage, file)) if held is None else held
