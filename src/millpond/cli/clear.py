"""`millpond clear`: forget all that an app knows."""

from __future__ import annotations

from typing import Annotated

import typer

from millpond import lowlevel
from millpond.app import App
from millpond.cli.admin_commands import Force
from millpond.cli.app_option import AppName, StateDir, name_of
from millpond.cli.output import note
from millpond.errors import InvalidUse


def clear(
    state_dir: StateDir = "state",
    app: AppName = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    force: Force = False,
) -> None:
    """Forget an app's state, positions and open outputs: its next run reads its input from the beginning.

    Refused while the app runs.
    """
    name = name_of(state_dir, app)
    found = App(name, state_dir=state_dir)
    if not yes and not _confirmed(name, lowlevel.storage(found).url):
        raise InvalidUse(f"app {name!r} was not cleared. Say --yes to do it without being asked.")
    found.clear_state(force=force)
    note(f"app {name!r} in {lowlevel.storage(found).url}: cleared; its next run reads its input from the beginning")


def _confirmed(name: str, where: str) -> bool:
    try:
        return typer.confirm(f"Forget all state of app {name!r} in {where}?", err=True)
    except typer.Abort:  # nobody is there to answer
        return False
