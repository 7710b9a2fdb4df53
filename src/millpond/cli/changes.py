"""`millpond changes`: every change of a step's state, batch by batch."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from millpond.cli.app_option import AppName, StateDir, chosen
from millpond.cli.output import Format, Printed, key_json, line, note, table, value_json

FEW = 100  # changes that a table shows unless it is told otherwise


def changes(
    step: Annotated[str, typer.Argument(metavar="STEP", help="The step's name.")],
    after: Annotated[int, typer.Option(min=-1, help="Only those after this batch.")] = -1,
    limit: Annotated[
        int | None, typer.Option(min=0, help=f"At most so many changes; if not given, {FEW} in a table, all as JSON.")
    ] = None,
    state_dir: StateDir = "state",
    app: AppName = None,
    format: Printed = Format.table,
) -> None:
    """Show every change of a step's state that is within reach, oldest first."""
    found = chosen(state_dir, app).changes(step, after)
    if format is Format.json:
        for change in islice(found, limit):
            line(
                batch=change.batch,
                time=change.time,
                key=key_json(change.key),
                cell=change.cell,
                value=value_json(change.value),
                deleted=change.deleted,
            )
        return
    most = FEW if limit is None else limit
    rows = (
        (str(c.batch), repr(c.key), c.cell, "(deleted)" if c.deleted else repr(c.value)) for c in islice(found, most)
    )
    table(step, ["batch", "key", "cell", "value"], rows, numbers=["batch"])
    if next(found, None) is not None:
        note(f"There are more than {most} changes: --limit N shows more, --after BATCH later ones.")
