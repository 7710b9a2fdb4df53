"""`millpond clear`: delete the state of an app."""

from __future__ import annotations

from typing import Annotated

import typer

from millpond import lowlevel
from millpond.app import App
from millpond.cli.admin_commands import Force, confirm
from millpond.cli.app_option import AppName, StateDir, chosen_name
from millpond.cli.output import print_note
from millpond.errors import InvalidUse


def clear(
    state_dir: StateDir = "state",
    app: AppName = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    force: Force = False,
) -> None:
    """Delete the state, positions and open outputs of an app: its next run reads its input from the beginning.

    The app must be stopped.
    """
    name = chosen_name(state_dir, app)
    found = App(name, state_dir=state_dir)
    if not yes and not confirm(f"Delete all state of app {name!r} in {lowlevel.storage(found).url}?"):
        raise InvalidUse(f"app {name!r} was not cleared. Use --yes to do it without confirmation.")
    found.clear_state(force=force)
    print_note(
        f"app {name!r} in {lowlevel.storage(found).url}: cleared; its next run reads its input from the beginning"
    )
