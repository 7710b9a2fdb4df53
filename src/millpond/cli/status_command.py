"""`millpond status`: the status of an app, read from its ledger."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from rich.console import Console
from rich.text import Text

from millpond.cli.app_option import AppName, StateDir, open_chosen
from millpond.cli.output import OutputFormat, Printed, format_bytes, print_json, print_table
from millpond.status import LogStatus, PartitionStatus, Status


def status(state_dir: StateDir = "state", app: AppName = None, format: Printed = OutputFormat.table) -> None:
    """Show the status of an app: its newest batch, streams, steps and sinks, and the process that seems to run it."""
    found = open_chosen(state_dir, app).status()
    if format is OutputFormat.json:
        print_json(**msgspec.to_builtins(found))
    else:
        _print(found)


def _print(found: Status) -> None:
    who = found.running
    lines = {
        "app": found.app,
        "state": f"{found.state_dir}, {format_bytes(found.segment_bytes)} in segments",
        "incarnation": found.incarnation,
        "partitions": str(found.partitions),
        "newest batch": f"{found.batch} ({found.kind}), {found.time.isoformat(' ', 'seconds')}",
        "running": "no process seems to run it"
        if who is None
        else f"process {who['pid']} on {who['host']}, batch {who['batch']}",
    }
    if found.standby_drivers:
        lines["standing by"] = ", ".join(f"process {it['pid']} on {it['host']}" for it in found.standby_drivers)
    lines |= _describe_log(found.log)
    console = Console()
    for name, value in [*lines.items(), *(("recovering", each.describe()) for each in found.recovering)]:
        console.print(Text.assemble((f"{name:<14}", "bold"), value), soft_wrap=True)
    if found.streams:
        rows = (
            (name, s.position, "" if s.watermark is None else str(s.watermark), f"{s.last_rows:,}")
            for name, s in found.streams.items()
        )
        head = ["stream", "position", "watermark", "rows in last commit"]
        print_table("streams", head, rows, numbers=["rows in last commit"])
        for name, stream in found.streams.items():
            if stream.lost:
                lost = f"{stream.lost:,} messages were lost: they were gone before they were read"
                console.print(Text.assemble((f"{name}: ", "bold"), lost), soft_wrap=True)
    if found.steps:
        parts = ((name, s.kind or "?", f"{s.segments:,}", format_bytes(s.bytes)) for name, s in found.steps.items())
        print_table("steps", ["step", "kind", "segments", "size"], parts, numbers=["segments", "size"])
    if found.sinks:
        sinks = ((name, f"batch {s.delivered}", str(s.open)) for name, s in found.sinks.items())
        print_table("sinks", ["sink", "delivered up to", "open batches"], sinks, numbers=["open batches"])
    if found.replicas:
        head = ["partition", "host", "standby", "lag", "ready"]
        print_table("partitions", head, _replica_rows(found.replicas), numbers=["partition", "lag"])
    recent = found.recent
    if recent.late or recent.skipped:
        names = sorted({*recent.late, *recent.skipped})
        counts = ((name, f"{recent.late.get(name, 0):,}", f"{recent.skipped.get(name, 0):,}") for name in names)
        title = f"rows left out in the last {recent.batches} batch{'' if recent.batches == 1 else 'es'}"
        failed = "skipped or dead letters"
        print_table(title, ["step or stream", "late", failed], counts, numbers=["late", failed])


def _replica_rows(replicas: dict[int, PartitionStatus]) -> Iterator[tuple[str, ...]]:
    """Yield a row of the table for each standby, and one for a partition without any."""
    for partition, copies in replicas.items():
        if not copies.standbys:
            yield str(partition), copies.host, "none", "", ""
        for standby in copies.standbys:
            lag = "" if standby.lag is None else f"{standby.lag:,}"
            yield str(partition), copies.host, standby.host, lag, "yes" if standby.ready else "no"


def _describe_log(log: LogStatus) -> dict[str, str]:
    compacted = "never" if log.compacted is None else f"up to batch {log.compacted}"
    found = {"within reach": f"from batch {log.first}", "compacted": log.trouble or compacted}
    if log.rewritten is not None:
        found["rewritten"] = f"in batch {log.rewritten}" + (f": {log.why}" if log.why else "")
    return found
