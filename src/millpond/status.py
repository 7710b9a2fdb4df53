"""The status of an app, read from its ledger: its newest batch, streams, steps and sinks, and who seems to run it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

import msgspec

from millpond.clock import Clock, as_datetime
from millpond.driver.results import positions_of
from millpond.errors import MillpondError
from millpond.log.heartbeat import Beat, seems_running
from millpond.log.ledger import Ledger
from millpond.log.manifest import read_manifest
from millpond.log.paths import Paths, quote_name, unquote_name
from millpond.log.record import Record, StreamTime
from millpond.log.recovery import Recovery, read_recoveries
from millpond.log.standby_drivers import standby_drivers
from millpond.storage import Storage
from millpond.timing import as_user

SUMMED_RECORDS = 50  # records over which late, skipped and dead-letter rows are added up


@dataclass(frozen=True)
class StreamStatus:
    """How far a stream has been read, the rows of it in the last batch, and its watermark.

    `lost` counts the messages that were gone before they were read, since the app began.
    """

    position: str
    last_rows: int
    watermark: datetime | int | None
    lost: int = 0


@dataclass
class StepStatus:
    """The kind of a step and the size of its segments; the kind is None for a step that never committed."""

    kind: str | None
    segments: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class SinkStatus:
    """The batch up to which a sink has all outputs, and the number of later batches with outputs for it."""

    delivered: int
    open: int


@dataclass(frozen=True)
class LogStatus:
    """The oldest batch of the log that is retained, and the batch up to which it is compacted.

    `rewritten` is the batch with which the state was last rewritten, and `why` says why, in words.
    """

    first: int
    compacted: int | None
    rewritten: int | None
    why: str | None
    trouble: str | None  # why the manifest cannot be read, or None


@dataclass(frozen=True)
class RecentStatus:
    """Rows that the last batches left out: late ones by step or stream, and failed ones by step.

    `skipped` counts the rows that `on_error` skipped or made dead letters.
    """

    batches: int
    late: dict[str, int]
    skipped: dict[str, int]


@dataclass(frozen=True)
class StandbyStatus:
    """A standby of a partition: its host, how many records it lacks (None without a copy), and if it can take over."""

    host: str
    lag: int | None
    ready: bool


@dataclass(frozen=True)
class PartitionStatus:
    """The host that computes a partition, and its standbys, as the last heartbeat of a running app says."""

    host: str
    standbys: list[StandbyStatus]


@dataclass(frozen=True)
class Status:
    """The status of an app."""

    app: str
    state_dir: str
    incarnation: str
    partitions: int
    batch: int  # the newest record of any kind
    kind: str
    time: datetime
    last_commit: int | None
    running: dict[str, Any] | None
    standby_drivers: list[dict[str, Any]]
    streams: dict[str, StreamStatus]
    steps: dict[str, StepStatus]
    sinks: dict[str, SinkStatus]
    recent: RecentStatus
    log: LogStatus
    segment_bytes: int
    recovering: list[Recovery]  # partitions whose state workers rebuild from the log at the moment
    replicas: dict[int, PartitionStatus]  # by partition; empty if the app does not run, or runs on one host


def status_of(storage: Storage, app: str, clock: Clock) -> Status:
    """Return the status of an app that has run. Reads the ledger and lists the segments; opens no replica."""
    ledger = Ledger(storage, app, clock)
    newest = ledger.newest()
    assert newest is not None, "an app that was opened has a ledger"
    commit = next((record for record in _backwards(ledger, newest) if record.kind == "commit"), None)
    beat = seems_running(storage, app, clock)
    steps = _steps(storage, newest)
    return Status(
        app=app,
        state_dir=storage.url,
        incarnation=newest.incarnation,
        partitions=newest.partitions,
        batch=newest.number,
        kind=newest.kind,
        time=as_datetime(newest.time),
        last_commit=None if commit is None else commit.number,
        running=None if beat is None else {"host": beat.host, "pid": beat.pid, "batch": beat.number},
        standby_drivers=[{"host": it.host, "pid": it.pid} for it in standby_drivers(storage, app, clock)],
        streams=_streams(storage, newest, commit),
        steps=steps,
        sinks=_sinks(ledger, newest),
        recent=_recent(ledger, newest),
        log=_log(ledger, newest),
        segment_bytes=sum(step.bytes for step in steps.values()),
        recovering=[] if beat is None else _recovering(storage, app, beat, clock),
        replicas=_replicas(beat),
    )


def _replicas(beat: Beat | None) -> dict[int, PartitionStatus]:
    return {
        partition: PartitionStatus(
            copies.host, [StandbyStatus(copy.host, copy.lag, copy.ready) for copy in copies.standbys]
        )
        for partition, copies in sorted(({} if beat is None else beat.partitions).items())
    }


def _recovering(storage: Storage, app: str, beat: Beat, clock: Clock) -> list[Recovery]:
    """Return what the workers of the batch after the newest record say; nothing if they cannot be asked."""
    try:
        return read_recoveries(storage, app, beat.driver, beat.number + 1, clock)
    except MillpondError:
        return []


def _backwards(ledger: Ledger, newest: Record) -> Iterator[Record]:
    """Yield the records of this incarnation from the newest back; most of them are commits."""
    record: Record | None = newest
    while record is not None:
        yield record
        record = ledger.read(record.number - 1) if record.number > newest.born else None


def _streams(storage: Storage, newest: Record, commit: Record | None) -> dict[str, StreamStatus]:
    rows = {} if commit is None else commit.rows
    entries = positions_of(storage, newest)
    lost = {name: _count_lost(at) for name, at in entries.items()}
    positions = {name: _describe_position(at) for name, at in entries.items()}
    positions |= {name: f"Spark's batch {at.batch}" for name, at in newest.spark.items()}
    # with_time below a stream has a watermark of its own, but no position.
    times = {name: _time(time) for name, time in newest.watermarks.items()}
    return {
        name: StreamStatus(
            positions.get(name, "at its beginning" if name in rows else ""),
            rows.get(name, 0),
            times.get(name),
            lost.get(name, 0),
        )
        for name in sorted({*positions, *rows, *times})
    }


def _time(time: StreamTime) -> datetime | int | None:
    return None if time.watermark is None or time.unit is None else as_user(time.watermark, time.unit)


def _count_lost(entries: dict[str, Any]) -> int:
    """Add up what the places of a position have under `lost`, as those of Kafka partitions do."""
    return sum(entry.get("lost", 0) for entry in entries.values() if isinstance(entry, dict))


def _describe_position(entries: dict[str, Any]) -> str:
    """Describe a position in one line: the last of its places, and how many there are."""
    if not entries:
        return "at its beginning"
    place = max(entries)
    last = f"{place}: {msgspec.json.encode(entries[place]).decode()}"
    return last if len(entries) == 1 else f"{len(entries)} places, the last {last}"


def _steps(storage: Storage, newest: Record) -> dict[str, StepStatus]:
    found = {name: StepStatus(info.kind) for name, info in newest.steps.items()}
    folder, known = f"{Paths(newest.app).root}/steps", {quote_name(name): name for name in newest.steps}
    for item in storage.list(folder):
        element = item.path[len(folder) + 1 :].split("/", 1)[0]
        step = found.setdefault(known.get(element, unquote_name(element)), StepStatus(None))
        step.segments += 1
        step.bytes += item.size
    return dict(sorted(found.items()))


def _sinks(ledger: Ledger, newest: Record) -> dict[str, SinkStatus]:
    oldest = max(min(newest.deliveries.values(), default=newest.number), newest.born)
    later = list(ledger.between(max(oldest, ledger.floor() - 1), newest.number))  # older records may be pruned
    return {
        sink: SinkStatus(until, sum(record.number > until and sink in record.outputs for record in later))
        for sink, until in sorted(newest.deliveries.items())
    }


def _recent(ledger: Ledger, newest: Record) -> RecentStatus:
    late: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    batches = 0
    for record in islice(_backwards(ledger, newest), SUMMED_RECORDS):
        if record.kind == "commit":
            batches += 1
            late.update(record.late)
            skipped.update(record.skipped)
    return RecentStatus(batches, dict(sorted(late.items())), dict(sorted(skipped.items())))


def _log(ledger: Ledger, newest: Record) -> LogStatus:
    compacted = trouble = why = None
    if newest.manifest is not None:
        try:
            compacted = read_manifest(ledger.storage, newest.manifest).upto
        except MillpondError as error:  # shown as part of the status
            trouble = str(error)
    if newest.epoch:
        rewrite = ledger.read(newest.epoch)  # None if it is pruned
        why = None if rewrite is None else rewrite.why
    first = max(ledger.floor(), newest.born)
    return LogStatus(first, compacted, newest.epoch or None, why, trouble)
