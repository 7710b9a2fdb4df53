"""`millpond run`: run the app in a file."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

import typer

from millpond import lowlevel
from millpond.cli.load_program import load_app
from millpond.cli.output import print_note
from millpond.cli.progress_bar import progress_bar_if_needed


class Until(StrEnum):
    """When a run ends without being stopped."""

    caught_up = "caught-up"


class _Notes(logging.Handler):
    """Prints log records as notes."""

    def emit(self, record: logging.LogRecord) -> None:
        print_note(record.getMessage())


@contextlib.contextmanager
def _printed_log() -> Iterator[None]:
    """Print what the run logs for people, also what is not a warning."""
    log, notes = logging.getLogger("millpond.run"), _Notes()
    before = log.level
    log.addHandler(notes)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(notes)
        log.setLevel(before)


def run(
    target: Annotated[
        str, typer.Argument(metavar="APP.PY[:NAME]", help="The file, and the App in it if it has several.")
    ],
    until: Annotated[
        Until | None, typer.Option(help="End when everything that is there now is read; without it, run until stopped.")
    ] = None,
    every: Annotated[str, typer.Option(help="How often a batch begins if there is little to do.")] = "1s",
    max_rows: Annotated[int, typer.Option(min=1, help="The maximum number of rows that a batch reads.")] = 100_000,
    max_bytes: Annotated[
        int | None, typer.Option(min=1, help="About how many bytes a batch reads; by default, 256 MiB.")
    ] = None,
    restarts: Annotated[int, typer.Option(min=0, help="How often a failed run is started again.")] = 0,
    close_at_end: Annotated[
        bool,
        typer.Option(
            "--close-at-end", help="With --until caught-up: the input has ended, so everything that is open closes."
        ),
    ] = False,
    take_back: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SINK", help="Void the deliveries in the target of this sink that the ledger does not contain."
        ),
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SINK", help="Leave the target of this sink as it is, although the ledger does not match it."
        ),
    ] = None,
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait while another driver runs the app, and take over when it is gone.")
    ] = False,
) -> None:
    """Run the app in a Python file on Spark. Ctrl-C ends it after the current batch."""
    with load_app(target) as app, _printed_log():
        doing = "starting a standby driver of" if standby else "running"
        print_note(f"{doing} app {app.name!r}; its state is in {lowlevel.storage(app).url}")
        app.run(
            until="caught-up" if until else None,
            every=every,
            max_rows=max_rows,
            max_bytes=max_bytes,
            restarts=restarts,
            close_at_end=close_at_end,
            progress=progress_bar_if_needed("rewriting state"),
            take_back=take_back or (),
            accept=accept or (),
            standby=standby,
        )
