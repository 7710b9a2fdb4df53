"""What can be done to the state of an app that does not run: `millpond rescale`, `rollback`, `compact` and so on."""

from __future__ import annotations

from typing import Annotated

import typer

from millpond import lowlevel
from millpond.admin import ReadOnlyApp
from millpond.app import App
from millpond.cli.app_option import AppName, StateDir, chosen
from millpond.cli.load_program import of_program
from millpond.cli.progress_bar import waiting
from millpond.errors import InvalidUse
from millpond.maintenance.savepoint import read_savepoint
from millpond.storage import open_storage

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Force = Annotated[
    bool, typer.Option("--force", help="Go on even if the app seems to run; a driver that does is fenced.")
]
Place = Annotated[str, typer.Argument(metavar="PATH", help="Where the savepoint is: a path or an object-store URL.")]


def rescale(
    partitions: Annotated[int, typer.Argument(min=1, max=10_000, help="How many partitions there are to be.")],
    state_dir: StateDir = "state",
    app: AppName = None,
    dry_run: DryRun = False,
    force: Force = False,
) -> None:
    """Move an app's state to another number of partitions. Refused while the app runs."""
    found = chosen(state_dir, app)
    with waiting("rescale") as progress:
        said = found.rescale(partitions, dry_run=dry_run, progress=progress, force=force)
    _tell(found, "would rescale" if dry_run else "rescaled", said)


def rollback(
    batch: Annotated[int, typer.Argument(min=0, help="The batch to go back to.")],
    program: Annotated[
        str | None,
        typer.Option(metavar="APP.PY[:NAME]", help="The program: its sinks give back what came later, where they can."),
    ] = None,
    state_dir: StateDir = "state",
    app: AppName = None,
    dry_run: DryRun = False,
    force: Force = False,
    yes: Yes = False,
) -> None:
    """Go back to an earlier batch: state, positions in the sources and event time. Refused while the app runs.

    Without --program the sinks give back what came later when the program next starts, where they can. With it they do
    so at once, and the program says where the state is.
    """
    with of_program(program, state_dir, app) as found:
        would = found.rollback(
            batch, dry_run=True, force=force
        )  # what cannot be done is refused before anyone is asked
        if dry_run:
            return _tell(found, "would go", would)
        if not yes and not _confirmed(f"Take app {found.name!r} in {lowlevel.storage(found).url} {would}?"):
            raise InvalidUse(f"app {found.name!r} was not rolled back. Say --yes to do it without being asked.")
        with waiting("rollback") as progress:
            said = found.rollback(batch, progress=progress, force=force)
        _tell(found, "went", said)


def compact(
    keep: Annotated[
        str | None,
        typer.Option(help="How much of the past stays within reach: so many batches, or a duration such as 7d."),
    ] = None,
    state_dir: StateDir = "state",
    app: AppName = None,
    dry_run: DryRun = False,
    force: Force = False,
) -> None:
    """Merge an app's whole log, and remove what nothing needs. Refused while the app runs.

    Without --keep all that is within reach stays so.
    """
    found = chosen(state_dir, app)
    past = None if keep is None else int(keep) if keep.isdigit() else keep
    with waiting("compact") as progress:
        said = found.compact(past, dry_run=dry_run, progress=progress, force=force)
    _tell(found, "would compact" if dry_run else "compacted", said)


def drop_step(
    step: Annotated[str, typer.Argument(metavar="STEP", help="The step's name.")],
    state_dir: StateDir = "state",
    app: AppName = None,
    dry_run: DryRun = False,
    force: Force = False,
    yes: Yes = False,
) -> None:
    """Forget the state of a step that is no longer in the program. Refused while the app runs."""
    found = chosen(state_dir, app)
    said = found.drop_step(step, dry_run=True, force=force)
    if dry_run:
        return _tell(found, "would drop", said)
    if not yes and not _confirmed(f"Forget {said} of app {found.name!r} in {lowlevel.storage(found).url}?"):
        raise InvalidUse(f"step {step!r} was not dropped. Say --yes to do it without being asked.")
    _tell(found, "dropped", found.drop_step(step, force=force))


def savepoint(
    path: Place,
    batch: Annotated[int | None, typer.Option(min=0, help="As it was at this batch; else the newest.")] = None,
    state_dir: StateDir = "state",
    app: AppName = None,
    dry_run: DryRun = False,
) -> None:
    """Write a copy of an app's state that needs nothing else. The app may run meanwhile."""
    found = chosen(state_dir, app)
    with waiting("savepoint") as progress:
        said = found.savepoint(path, batch, dry_run=dry_run, progress=progress)
    _tell(found, "would save" if dry_run else "saved", f"{said}, in {open_storage(path).url}")


def restore(
    path: Place,
    state_dir: StateDir = "state",
    app: Annotated[str | None, typer.Option("--app", help="The new app's name; else that of the one saved.")] = None,
    dry_run: DryRun = False,
    force: Force = False,
) -> None:
    """Begin an app with the state of a savepoint. Refused if it has state already."""
    found = App(app or read_savepoint(open_storage(path)).record.app, state_dir=state_dir)
    with waiting("restore") as progress:
        said = found.restore(path, dry_run=dry_run, progress=progress, force=force)
    _tell(found, "would restore" if dry_run else "restored", said)


def _tell(app: App | ReadOnlyApp, what: str, said: str) -> None:
    typer.echo(f"app {app.name!r} in {lowlevel.storage(app).url}: {what}: {said}")


def _confirmed(question: str) -> bool:
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:  # nobody is there to answer
        return False
