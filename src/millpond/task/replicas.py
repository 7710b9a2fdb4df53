"""What a task catches up with: the replica of its partition, and whole tables that it looks rows up in."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import lmdb

from millpond.clock import SystemClock
from millpond.errors import Corrupt
from millpond.log import pointer, segment
from millpond.log.ledger import Ledger
from millpond.log.manifest import Manifest, read_manifest
from millpond.log.reach import earlier_manifest
from millpond.log.segment import Change, SegmentOrigin
from millpond.messages import BatchContext, Incomplete, RecordLink, SegmentsByStep, segments_by_partition
from millpond.pipeline.graph import Program
from millpond.replica import View
from millpond.replica import folders as home
from millpond.replica.cell_format import Damaged
from millpond.replica.fill_progress import Filling
from millpond.replica.host_lock import turn
from millpond.replica.lmdb_store import Applied, Changes, replicated
from millpond.steps.base import TableReader
from millpond.steps.state.lazy_migration import UNMARKED
from millpond.steps.state.migration import MARK
from millpond.steps.verbs.table import ROW
from millpond.storage import Storage

log = logging.getLogger("millpond")

MOST_REMEMBERED = 200_000  # changes that one process keeps to apply them without reading them back

T = TypeVar("T")

_own: dict[str, list[Change]] = {}  # what this process wrote last: no need to read it back
_places: dict[tuple[str, str, int], str] = {}  # app, step, partition → where it wrote that


def remember(path: str, changes: list[Change], origin: SegmentOrigin) -> None:
    """These changes were written to this segment just now."""
    # Another process may have taken the partition meanwhile, and nobody asks for what was before: the oldest make room.
    place = (origin.app, origin.of, origin.partition)
    _own.pop(_places.get(place, ""), None)
    _places[place] = path
    while _own and sum(map(len, _own.values())) + len(changes) > MOST_REMEMBERED:
        del _own[next(iter(_own))]
    _own[path] = changes


def replica_folder(context: BatchContext, partition: int) -> Path:
    place = context.home or home.default_home()
    return home.folder(place, context.app, context.incarnation, partition, context.partitions, context.epoch)


def caught_up(
    storage: Storage, context: BatchContext, partition: int, use: Callable[[View], T], *, anew: bool = False
) -> T:
    """Use a partition's replica, which has reached the record that the context names, or one after it.

    The view that `use` is given is of this very ledger, whatever else shares the folder.
    """

    def missing(context: BatchContext, position: int) -> Iterator[Applied]:
        return _missing(storage, context, partition, position)

    return _caught_up(storage, context, replica_folder(context, partition), missing, use, anew=anew)


def _caught_up(
    storage: Storage,
    context: BatchContext,
    folder: Path,
    missing: Callable[[BatchContext, int], Iterator[Applied]],
    use: Callable[[View], T],
    *,
    anew: bool = False,
) -> T:
    """If the newest manifest, or what it names, is damaged, an earlier one and more of the log do as well, for as
    long as they are kept.
    """
    below = context.base
    while True:
        now = context
        try:
            return replicated(
                folder,
                lambda position, now=now: missing(now, position),  # type: ignore[misc]
                use,
                anew=anew,
                belongs=lambda view, now=now: _belongs(storage, now, view),  # type: ignore[misc]
            )
        except Corrupt:
            if context.manifest is None:
                raise
            ledger = Ledger(storage, context.app, SystemClock())
            earlier = earlier_manifest(ledger, context.manifest, context.born, context.epoch, below)
            if earlier is None:
                raise
            below = earlier.number
            log.warning("%s: %s cannot be read; an earlier one is taken", context.app, context.manifest.path)
            context = replace(context, manifest=earlier.manifest)


def _missing(storage: Storage, context: BatchContext, partition: int, position: int) -> Iterator[Applied]:
    """The changes of the records after a position and up to the one that the batch builds on."""
    if position < 0 and context.manifest is not None:
        manifest = read_manifest(storage, context.manifest)
        yield Applied(manifest.upto, _compacted(storage, manifest, partition), manifest.checksum)
        position = manifest.upto
    for link, partitions in _records(storage, context, position):
        segments = partitions.get(partition, {})
        changes = {step: _read_changes(storage, pointers) for step, pointers in segments.items()}
        yield Applied(link.number, changes, link.checksum, link.previous)


def _compacted(storage: Storage, manifest: Manifest, partition: int) -> Iterator[tuple[str, Changes]]:
    """All of a partition's state at a manifest's record, file by file."""
    parts = [(step, part) for step, found in manifest.runs.items() for run in found.get(partition, []) for part in run]
    progress = Filling(manifest.app, partition, [part.file for _, part in parts])
    for step, part in parts:
        yield step, segment.state_table(pointer.read_file(storage, part.file))
        progress.done(part.file)


def _records(
    storage: Storage, context: BatchContext, position: int
) -> Iterator[tuple[RecordLink, dict[int, SegmentsByStep]]]:
    """Those records: where each stands in the ledger, and its segments."""
    ledger = Ledger(storage, context.app, SystemClock())
    before: RecordLink | None = None
    for number in range(max(position + 1, context.born), context.base + 1):
        known = context.recent.get(number)
        if known is not None:
            link, segments = context.links[number], known
        else:
            record = next(ledger.between(number - 1, context.base))
            link, segments = RecordLink.of(record), segments_by_partition(record)
        if before is not None and link.previous != before.checksum:
            raise Corrupt(
                f"{storage.url}: ledger record {ledger.paths.record(number)} does not follow the record before it: "
                "records of different copies of the state directory were mixed. Put the ledger back from one copy."
            )
        yield link, segments
        before = link


def _belongs(storage: Storage, context: BatchContext, view: View) -> bool:
    """Whether a view was built from this very ledger, up to the record that it stands at.

    Another copy of the state directory has records of the same numbers, and may have another history.
    """
    if view.position < 0:
        return True
    link = context.links.get(view.position)
    if link is not None:
        return view.record == link.checksum
    record = Ledger(storage, context.app, SystemClock()).read(view.position)
    return record is not None and view.record == record.checksum


def _read_changes(storage: Storage, pointers: list[pointer.Pointer]) -> list[Change]:
    if len(pointers) == 1 and pointers[0].path in _own:
        return _own.pop(pointers[0].path)
    return [change for p in pointers for change in segment.unpack_state(pointer.read_file(storage, p))]


# --- tables ---

Tables = dict[str, TableReader]  # step → the rows of a table that lies here as a whole


class _Astray(Exception):
    """The replica of a whole table is damaged. It is not the partition's, so that is not thrown away for it."""


class _Laid:
    """A table as it is within a batch: what was committed, with what an earlier stage has changed laid over it."""

    def __init__(self, step: str, view: View, changes: Callable[[], Iterable[Change]]) -> None:
        self._step, self._view, self._changes = step, view, changes
        self._over: dict[bytes, bytes | None] | None = None

    def __call__(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if self._over is None:
            self._over = {change.key: change.value for change in self._changes() if change.cell == ROW}
        over = self._over
        if not over:
            return self._view.get_many(self._step, keys)
        committed = iter(self._view.get_many(self._step, [key for key in keys if key not in over]))
        return [over[key] if key in over else next(committed) for key in keys]


def laid_over(
    storage: Storage, program: Program, context: BatchContext, partition: int, view: View
) -> Callable[[str], TableReader]:
    """Readers of the tables of this partition whose stage has been run."""

    def reader(step: str) -> TableReader:
        made = context.table_changes.get(step, {}).get(partition, [])
        return _Laid(step, _newest(program, context, step, view), lambda: _made(storage, made))

    return reader


def _newest(program: Program, context: BatchContext, step: str, view: View) -> View:
    """A table in its newest version, where some of it may be older."""
    unmarked = context.event_time.details.get(step, {}).get(UNMARKED)
    return program.steps[step].upgraded_view(view, unmarked, program.types)


def with_tables(
    storage: Storage, program: Program, context: BatchContext, steps: Sequence[str], use: Callable[[Tables], T]
) -> T:
    """Catch up the replicas of whole tables on this host, and use them; what is damaged is built anew.

    Like a partition's replica they stand exactly at the record that the batch builds on. `use` may be called again.
    """
    if not steps:
        return use({})
    step, *others = steps

    def with_this(view: View) -> T:
        if view.position != context.base:
            raise Incomplete(f"table {step!r} at record {view.position}, batch {context.batch} needs {context.base}")
        made = [p for part in context.table_changes.get(step, {}).values() for p in part]
        laid = _Laid(step, _newest(program, context, step, view), lambda: _made(storage, made))

        def read(keys: Sequence[bytes]) -> list[bytes | None]:
            try:
                return laid(keys)
            except (Damaged, lmdb.Error) as error:
                raise _Astray(step) from error

        try:
            return with_tables(storage, program, context, others, lambda tables: use({step: read, **tables}))
        except _Astray as error:
            raise (Damaged(str(error.__cause__)) if error.args == (step,) else error) from error

    place = context.home or home.default_home()
    folder = home.table_folder(place, context.app, context.incarnation, step, context.partitions, context.epoch)

    def missing(context: BatchContext, position: int) -> Iterator[Applied]:
        return _missing_everywhere(storage, context, step, position)

    with turn(folder):  # one process of the host reads what is missing; the others find it there
        _caught_up(storage, context, folder, missing, lambda view: None)
    return _caught_up(storage, context, folder, missing, with_this)


def _missing_everywhere(storage: Storage, context: BatchContext, step: str, position: int) -> Iterator[Applied]:
    """The same for all of one table, and for its rows and their versions alone."""
    if position < 0 and context.manifest is not None:
        manifest = read_manifest(storage, context.manifest)
        yield Applied(manifest.upto, _compacted_everywhere(storage, manifest, step), manifest.checksum)
        position = manifest.upto
    for link, partitions in _records(storage, context, position):
        changes = [
            Change(change.key, change.cell, change.value)
            for segments in partitions.values()
            for change in _made(storage, segments.get(step, []))
            if change.cell in (ROW, MARK)
        ]
        yield Applied(link.number, {step: changes}, link.checksum, link.previous)


def _compacted_everywhere(storage: Storage, manifest: Manifest, step: str) -> Iterator[tuple[str, Sequence[Change]]]:
    for runs in manifest.runs.get(step, {}).values():
        for part in (part for run in runs for part in run):
            changes = segment.unpack_state(pointer.read_file(storage, part.file))
            yield step, [Change(c.key, c.cell, c.value) for c in changes if c.cell in (ROW, MARK)]


def _made(storage: Storage, pointers: list[pointer.Pointer]) -> Iterator[Change]:
    for p in pointers:
        held = _own.get(p.path)  # it stays: the partition's own replica is still to apply it
        yield from segment.unpack_state(pointer.read_file(storage, p)) if held is None else held
