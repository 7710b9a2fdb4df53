"""`millpond verify`: whether all that an app needs is there and whole."""

from __future__ import annotations

import typer

from millpond import lowlevel
from millpond.cli.app_option import AppName, StateDir, chosen
from millpond.cli.output import Format, Printed, line, note, size


def verify(state_dir: StateDir = "state", app: AppName = None, format: Printed = Format.table) -> None:
    """Read every record and every file that an app needs, and compare their checksums. The app may run meanwhile.

    It says how many files of each kind were checked. What is damaged or missing is listed, and the command ends with
    code 1. Orphans are files of attempts that failed: they do no harm, and go with the next compaction.
    """
    found = chosen(state_dir, app)
    verdict = found.verify()
    if format is Format.json:
        line(
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
            note(f"checked: {kind}: {count:,}")
        read = f"{verdict.records:,} records, {verdict.files:,} files, {size(verdict.bytes)}"
        came = "all is whole" if verdict.ok else f"{len(verdict.damaged)} damaged or missing"
        note(f"app {found.name!r} in {lowlevel.storage(found).url}: {read}: {came}, {len(verdict.orphans)} orphans")
    if not verdict.ok:
        raise typer.Exit(1)
