"""`millpond run`: run the app in a file."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from millpond import lowlevel
from millpond.cli.load_program import loaded
from millpond.cli.output import note
from millpond.cli.progress_bar import meanwhile


class Until(StrEnum):
    """When a run ends by itself."""

    caught_up = "caught-up"


def run(
    target: Annotated[
        str, typer.Argument(metavar="APP.PY[:NAME]", help="The file, and the App in it if it has several.")
    ],
    until: Annotated[
        Until | None, typer.Option(help="End when all is read that is there now; without it, run until stopped.")
    ] = None,
    every: Annotated[str, typer.Option(help="How often a batch begins where there is little to do.")] = "1s",
    max_rows: Annotated[int, typer.Option(min=1, help="The most rows that a batch reads.")] = 100_000,
    max_bytes: Annotated[
        int | None, typer.Option(min=1, help="About how many bytes a batch reads; if not given, 256 MiB.")
    ] = None,
    restarts: Annotated[int, typer.Option(min=0, help="How often a run that failed is begun anew.")] = 0,
    close_at_end: Annotated[
        bool,
        typer.Option("--close-at-end", help="With --until caught-up: the input has ended, so all that is open closes."),
    ] = False,
    take_back: Annotated[
        list[str] | None,
        typer.Option(metavar="SINK", help="Empty what this sink's target has taken that the ledger does not contain."),
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(metavar="SINK", help="Leave this sink's target as it is, although the ledger does not match it."),
    ] = None,
) -> None:
    """Run the app in a Python file on Spark. Ctrl-C ends it after the batch in hand."""
    with loaded(target) as app:
        note(f"running app {app.name!r}; its state is in {lowlevel.storage(app).url}")
        app.run(
            until="caught-up" if until else None,
            every=every,
            max_rows=max_rows,
            max_bytes=max_bytes,
            restarts=restarts,
            close_at_end=close_at_end,
            progress=meanwhile("bringing the state into shape"),
            take_back=take_back or (),
            accept=accept or (),
        )
