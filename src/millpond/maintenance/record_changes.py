"""What one record of the ledger has changed in the state of a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from millpond.codec import partition_of
from millpond.log import checked, segment
from millpond.log.checked import Pointer
from millpond.log.reach import within_reach
from millpond.log.record import Record
from millpond.log.segment import Change
from millpond.maintenance.stopped_app import StoppedApp
from millpond.storage import Storage


def changes_in(app: StoppedApp, record: Record, step: str, partition: int | None = None) -> list[Change]:
    """Return what a record changed in a step's state, in all partitions or in one.

    A rollback changes back what was changed since its target.
    """
    if partition is not None:
        if record.back is None:
            return list(_read_segments(app.storage, record.segments.get(step, {}).get(partition, [])))
        return [c for c in changes_in(app, record, step) if partition_of(c.key, record.partitions) == partition]
    if record.back is None:
        return list(_read_step(app.storage, [record], step))
    ledger = app.ledger
    before, newest = ledger.read(record.number - 1), ledger.newest() or record
    if before is None or not all(within_reach(ledger, each.number, newest) for each in (before, record)):
        return []
    since = ledger.between(max(record.back, record.born - 1, ledger.floor() - 1), before.number)
    keys = {change.key for change in _read_step(app.storage, since, step)}
    old, new = (_cells_at(app, each, step, keys) for each in (before, record))
    gone = [Change(*place, None) for place in old if place not in new]
    return sorted([*gone, *(change for place, change in new.items() if old.get(place) != change)])


def _read_step(storage: Storage, records: Iterable[Record], step: str) -> Iterator[Change]:
    for record in records:
        for files in record.segments.get(step, {}).values():
            yield from _read_segments(storage, files)


def _read_segments(storage: Storage, files: Iterable[Pointer]) -> Iterator[Change]:
    for file in files:
        yield from segment.unpack_state(checked.read_file(storage, file))


def _cells_at(app: StoppedApp, record: Record, step: str, keys: set[bytes]) -> dict[tuple[bytes, bytes], Change]:
    """Return the cells of some keys as they were at a record."""
    found: dict[tuple[bytes, bytes], Change] = {}
    for job in app.rewriter.plan_jobs(record, record):
        _, runs, fresh = job.steps.get(step, ("", [], []))
        for change in _read_segments(app.storage, [*(part.file for run in runs for part in run), *fresh]):
            if change.key in keys:
                if change.value is None:
                    found.pop((change.key, change.cell), None)
                else:
                    found[change.key, change.cell] = change
    return found
