"""`millpond changes`: every change of a step's state, batch by batch."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from millpond.cli.app_option import AppName, StateDir, open_chosen
from millpond.cli.output import OutputFormat, Printed, key_json, print_json, print_note, print_table, value_json

MAX_CHANGES = 100  # in a table, unless --limit is given


def changes(
    step: Annotated[str, typer.Argument(metavar="STEP", help="The name of the step.")],
    after: Annotated[int, typer.Option(min=-1, help="Only changes after this batch.")] = -1,
    limit: Annotated[
        int | None,
        typer.Option(min=0, help=f"The maximum number of changes; by default, {MAX_CHANGES} in a table, all as JSON."),
    ] = None,
    state_dir: StateDir = "state",
    app: AppName = None,
    format: Printed = OutputFormat.table,
) -> None:
    """Show every retained change of the state of a step, oldest first."""
    found = open_chosen(state_dir, app).changes(step, after)
    if format is OutputFormat.json:
        for change in islice(found, limit):
            print_json(
                batch=change.batch,
                time=change.time,
                key=key_json(change.key),
                cell=change.cell,
                value=value_json(change.value),
                deleted=change.deleted,
            )
        return
    most = MAX_CHANGES if limit is None else limit
    rows = (
        (str(c.batch), repr(c.key), c.cell, "(deleted)" if c.deleted else repr(c.value)) for c in islice(found, most)
    )
    print_table(step, ["batch", "key", "cell", "value"], rows, numbers=["batch"])
    if next(found, None) is not None:
        print_note(f"There are more than {most} changes: --limit N shows more, --after BATCH later ones.")
