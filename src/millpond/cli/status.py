"""`millpond status`: where an app stands, read from its ledger."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from millpond.app import ReadOnlyApp
from millpond.cli.output import Format, Printed, line, size, table
from millpond.cli.place import AppName, StateDir, chosen
from millpond.clock import SystemClock, as_datetime
from millpond.log.ledger import Ledger
from millpond.log.paths import Paths, unsafe
from millpond.log.record import Record
from millpond.run.batch import positions_of
from millpond.run.heartbeat import seems_running
from millpond.storage import Storage


@dataclass(frozen=True)
class StreamStatus:
    """How far a stream has been read, and how many of its rows the last batch took."""

    position: str
    last_rows: int


@dataclass
class StepStatus:
    """What a step is, and how much of the log is its own; the kind of a step that never committed is unknown."""

    kind: str | None
    segments: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class SinkStatus:
    """Up to which batch a sink has everything, and how many batches with outputs for it come after that."""

    delivered: int
    open: int


@dataclass(frozen=True)
class Status:
    """Where an app stands."""

    app: str
    state_dir: str
    incarnation: str
    partitions: int
    batch: int  # the newest record of any kind
    kind: str
    time: datetime
    last_commit: int | None
    running: dict[str, Any] | None
    streams: dict[str, StreamStatus]
    steps: dict[str, StepStatus]
    sinks: dict[str, SinkStatus]
    segment_bytes: int


def status(state_dir: StateDir = "state", app: AppName = None, format: Printed = Format.table) -> None:
    """Show where an app stands: its newest batch, its streams, steps and sinks, and who seems to run it."""
    found = status_of(chosen(state_dir, app))
    if format is Format.json:
        line(**msgspec.to_builtins(found))
    else:
        _print(found)


def status_of(app: ReadOnlyApp) -> Status:
    """Where an app stands; reads the ledger and lists the segments, and opens no replica."""
    storage, clock = app.storage, SystemClock()
    ledger = Ledger(storage, app.name, clock)
    newest = ledger.newest()
    assert newest is not None, "an app that was opened has a ledger"
    commit = next((record for record in _backwards(ledger, newest) if record.kind == "commit"), None)
    beat = seems_running(storage, app.name, clock)
    steps = _steps(storage, newest)
    return Status(
        app=app.name,
        state_dir=storage.url,
        incarnation=newest.incarnation,
        partitions=newest.partitions,
        batch=newest.number,
        kind=newest.kind,
        time=as_datetime(newest.time),
        last_commit=None if commit is None else commit.number,
        running=None if beat is None else {"host": beat.host, "pid": beat.pid, "batch": beat.number},
        streams=_streams(storage, newest, commit),
        steps=steps,
        sinks=_sinks(ledger, newest),
        segment_bytes=sum(step.bytes for step in steps.values()),
    )


def _backwards(ledger: Ledger, newest: Record) -> Iterator[Record]:
    """The records of this incarnation from the newest on; all but a few of an app's records are commits."""
    record: Record | None = newest
    while record is not None:
        yield record
        record = ledger.read(record.number - 1) if record.number > newest.born else None


def _streams(storage: Storage, newest: Record, commit: Record | None) -> dict[str, StreamStatus]:
    rows = {} if commit is None else commit.rows
    told = {name: _position(at) for name, at in positions_of(storage, newest).items()}
    told |= {name: f"Spark's batch {at.batch}" for name, at in newest.spark.items()}
    return {
        name: StreamStatus(told.get(name, "at its beginning"), rows.get(name, 0)) for name in sorted({*told, *rows})
    }


def _position(entries: dict[str, Any]) -> str:
    """A position in one line: the last of its places, and how many there are."""
    if not entries:
        return "at its beginning"
    place = max(entries)
    last = f"{place}: {msgspec.json.encode(entries[place]).decode()}"
    return last if len(entries) == 1 else f"{len(entries)} places, the last {last}"


def _steps(storage: Storage, newest: Record) -> dict[str, StepStatus]:
    found = {name: StepStatus(info.kind) for name, info in newest.steps.items()}
    folder = f"{Paths(newest.app).root}/steps"
    for item in storage.list(folder):
        name = unsafe(item.path[len(folder) + 1 :].split("/", 1)[0])
        step = found.setdefault(name, StepStatus(None))
        step.segments += 1
        step.bytes += item.size
    return dict(sorted(found.items()))


def _sinks(ledger: Ledger, newest: Record) -> dict[str, SinkStatus]:
    oldest = max(min(newest.deliveries.values(), default=newest.number), newest.born)
    later = list(ledger.between(oldest, newest.number))
    return {
        sink: SinkStatus(upto, sum(record.number > upto and sink in record.outputs for record in later))
        for sink, upto in sorted(newest.deliveries.items())
    }


def _print(found: Status) -> None:
    who = found.running
    told = {
        "app": found.app,
        "state": f"{found.state_dir}, {size(found.segment_bytes)} in segments",
        "incarnation": found.incarnation,
        "partitions": str(found.partitions),
        "newest batch": f"{found.batch} ({found.kind}), {found.time.isoformat(' ', 'seconds')}",
        "running": "nobody seems to" if who is None else f"process {who['pid']} on {who['host']}, batch {who['batch']}",
    }
    console = Console()
    for name, value in told.items():
        console.print(Text.assemble((f"{name:<14}", "bold"), value), soft_wrap=True)
    if found.streams:
        rows = ((name, s.position, f"{s.last_rows:,}") for name, s in found.streams.items())
        table("streams", ["stream", "position", "rows in last commit"], rows, numbers=["rows in last commit"])
    if found.steps:
        parts = ((name, s.kind or "?", f"{s.segments:,}", size(s.bytes)) for name, s in found.steps.items())
        table("steps", ["step", "kind", "segments", "size"], parts, numbers=["segments", "size"])
    if found.sinks:
        sinks = ((name, f"batch {s.delivered}", str(s.open)) for name, s in found.sinks.items())
        table("sinks", ["sink", "delivered up to", "open batches"], sinks, numbers=["open batches"])
