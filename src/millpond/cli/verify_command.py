"""`millpond verify`: check that every file that an app needs exists and is intact."""

from __future__ import annotations

import typer

from millpond import lowlevel
from millpond.cli.app_option import AppName, StateDir, administer_chosen
from millpond.cli.output import OutputFormat, Printed, format_bytes, print_json, print_note


def verify(state_dir: StateDir = "state", app: AppName = None, format: Printed = OutputFormat.table) -> None:
    """Read every record and file that an app needs and compare the checksums. The app may be running.

    Prints how many files of each kind were checked. If a file is damaged or missing, it is listed, and the exit code is
    1. Orphans are files of failed attempts: they do no harm, and the next compaction removes them.
    """
    found = administer_chosen(state_dir, app)
    verdict = found.verify()
    if format is OutputFormat.json:
        print_json(
            ok=verdict.ok,
            records=verdict.records,
            files=verdict.files,
            bytes=verdict.bytes,
            kinds=verdict.kinds,
            damaged=verdict.damaged,
            orphans=verdict.orphans,
        )
    else:
        for text in verdict.damaged:
            typer.echo(f"damaged: {text}")
        for path in verdict.orphans:
            typer.echo(f"orphan: {path}")
        for kind, count in verdict.kinds.items():
            print_note(f"checked: {kind}: {count:,}")
        read = f"{verdict.records:,} records, {verdict.files:,} files, {format_bytes(verdict.bytes)}"
        came = "all is whole" if verdict.ok else f"{len(verdict.damaged)} damaged or missing"
        print_note(
            f"app {found.name!r} in {lowlevel.storage(found).url}: {read}: {came}, {len(verdict.orphans)} orphans"
        )
    if not verdict.ok:
        raise typer.Exit(1)
