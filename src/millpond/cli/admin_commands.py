"""Commands that change the state of an app as a whole: `millpond rescale`, `rollback`, `compact` and so on."""

from __future__ import annotations

from typing import Annotated

import typer

from millpond import lowlevel
from millpond.admin import Admin
from millpond.app import App
from millpond.cli.app_option import AppName, StateDir, administer_chosen
from millpond.cli.load_program import load_or_administer
from millpond.cli.progress_bar import progress_bar
from millpond.errors import InvalidUse
from millpond.log.requests import EXPIRE_SECONDS
from millpond.maintenance.savepoint import read_savepoint
from millpond.storage import open_storage

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
Force = Annotated[
    bool, typer.Option("--force", help="Continue even if the app seems to be running; its driver is then fenced.")
]
SavepointPath = Annotated[str, typer.Argument(metavar="PATH", help="The savepoint: a path or an object-store URL.")]


def rescale(
    partitions: Annotated[int, typer.Argument(min=1, max=10_000, help="The new number of partitions.")],
    state_dir: StateDir = "state",
    app: AppName = None,
    dry_run: DryRun = False,
    force: Force = False,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="How many seconds to wait for the driver of a running app.")
    ] = EXPIRE_SECONDS,
) -> None:
    """Move the state of an app to another number of partitions. The app may be running: its driver then does it.

    The number stays until the program's partitions= is changed.
    """
    found = administer_chosen(state_dir, app)
    with progress_bar("rescale") as progress:
        said = found.rescale(partitions, dry_run=dry_run, progress=progress, force=force, timeout=timeout)
    _report(found, "would rescale" if dry_run else "rescaled", said)


def drain(
    host: Annotated[str, typer.Argument(metavar="HOST", help="The host, as `millpond status` shows it.")],
    state_dir: StateDir = "state",
    app: AppName = None,
    undo: Annotated[bool, typer.Option("--undo", help="Let the host get partitions again.")] = False,
    timeout: Annotated[float, typer.Option(min=1.0, help="How many seconds to wait.")] = EXPIRE_SECONDS,
) -> None:
    """Let all partitions and standbys of a running app leave a host, before the host is taken away.

    The driver builds copies on other hosts first. The command waits until the host has no partitions.
    """
    found = administer_chosen(state_dir, app)
    _report(found, "undrained" if undo else "drained", found.drain(host, undo=undo, timeout=timeout))


def rollback(
    batch: Annotated[int, typer.Argument(min=0, help="The batch to return to.")],
    program: Annotated[
        str | None,
        typer.Option(metavar="APP.PY[:NAME]", help="The program, whose sinks then void later deliveries at once."),
    ] = None,
    state_dir: StateDir = "state",
    app: AppName = None,
    dry_run: DryRun = False,
    force: Force = False,
    yes: Yes = False,
) -> None:
    """Return to an earlier batch: state, positions in the sources and event time. The app must be stopped.

    Sinks that can do so void what was delivered later. Without --program this happens when the program next starts;
    with it, at once, and the program determines where the state is.
    """
    with load_or_administer(program, state_dir, app) as found:
        would = found.rollback(batch, dry_run=True, force=force)  # raises before the question if it is impossible
        if dry_run:
            return _report(found, "would go", would)
        if not yes and not confirm(f"Take app {found.name!r} in {lowlevel.storage(found).url} {would}?"):
            raise InvalidUse(f"app {found.name!r} was not rolled back. Use --yes to do it without confirmation.")
        with progress_bar("rollback") as progress:
            said = found.rollback(batch, progress=progress, force=force)
        _report(found, "went", said)


def compact(
    keep: Annotated[
        str | None,
        typer.Option(help="How much history to keep: a number of batches, or a duration such as 7d."),
    ] = None,
    state_dir: StateDir = "state",
    app: AppName = None,
    dry_run: DryRun = False,
    force: Force = False,
) -> None:
    """Merge the whole log of an app and remove files that are no longer needed. The app must be stopped.

    Without --keep, no history is removed.
    """
    found = administer_chosen(state_dir, app)
    past = None if keep is None else int(keep) if keep.isdigit() else keep
    with progress_bar("compact") as progress:
        said = found.compact(past, dry_run=dry_run, progress=progress, force=force)
    _report(found, "would compact" if dry_run else "compacted", said)


def drop_step(
    step: Annotated[str, typer.Argument(metavar="STEP", help="The step's name.")],
    state_dir: StateDir = "state",
    app: AppName = None,
    dry_run: DryRun = False,
    force: Force = False,
    yes: Yes = False,
) -> None:
    """Delete the state of a step that is no longer in the program. The app must be stopped.

    The program is not read: the state of a step that is still in it is deleted, too.
    """
    found = administer_chosen(state_dir, app)
    said = found.drop_step(step, dry_run=True, force=force)
    if dry_run:
        return _report(found, "would drop", said)
    if not yes and not confirm(f"Delete {said} of app {found.name!r} in {lowlevel.storage(found).url}?"):
        raise InvalidUse(f"step {step!r} was not dropped. Use --yes to do it without confirmation.")
    _report(found, "dropped", found.drop_step(step, force=force))


def savepoint(
    path: SavepointPath,
    batch: Annotated[
        int | None, typer.Option(min=0, help="The state as of this batch; by default, the newest.")
    ] = None,
    state_dir: StateDir = "state",
    app: AppName = None,
    dry_run: DryRun = False,
) -> None:
    """Write a self-contained copy of the state of an app. The app may be running."""
    found = administer_chosen(state_dir, app)
    with progress_bar("savepoint") as progress:
        said = found.savepoint(path, batch, dry_run=dry_run, progress=progress)
    _report(found, "would save" if dry_run else "saved", f"{said}, in {open_storage(path).url}")


def restore(
    path: SavepointPath,
    state_dir: StateDir = "state",
    app: Annotated[
        str | None, typer.Option("--app", help="The name of the new app; by default, that of the saved one.")
    ] = None,
    step: Annotated[
        list[str] | None,
        typer.Option(
            "--step", metavar="NAME", help="Add only the state of this step, which the app lacks. Repeatable."
        ),
    ] = None,
    dry_run: DryRun = False,
    force: Force = False,
) -> None:
    """Start an app with the state of a savepoint, or add that of single steps. Refused if the app has that state."""
    found = App(app or read_savepoint(open_storage(path)).record.app, state_dir=state_dir)
    with progress_bar("restore") as progress:
        said = found.restore(path, steps=step or None, dry_run=dry_run, progress=progress, force=force)
    _report(found, "would restore" if dry_run else "restored", said)


def _report(app: App | Admin, what: str, said: str) -> None:
    typer.echo(f"app {app.name!r} in {lowlevel.storage(app).url}: {what}: {said}")


def confirm(question: str) -> bool:
    """Ask on standard error; return False if there is no terminal to answer."""
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:
        return False
