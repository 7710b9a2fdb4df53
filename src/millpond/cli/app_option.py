"""`--state-dir` and `--app`, which choose the app of a command, for every command that reads state."""

from __future__ import annotations

from typing import Annotated

import typer

from millpond.admin import Admin
from millpond.admin import admin as administer
from millpond.errors import InvalidUse
from millpond.log.apps import list_apps
from millpond.reader import ReadOnlyApp
from millpond.reader import open as open_app
from millpond.storage import open_storage

StateDir = Annotated[str, typer.Option("--state-dir", help="The app's state_dir: a path or an object-store URL.")]
AppName = Annotated[str | None, typer.Option("--app", help="The name of the app; not needed if there is only one.")]


def open_chosen(state_dir: str, app: str | None) -> ReadOnlyApp:
    """Open the chosen app, read-only; the error says which apps there are."""
    return open_app(state_dir, chosen_name(state_dir, app))


def administer_chosen(state_dir: str, app: str | None) -> Admin:
    """Return what can be done to the state of the chosen app; the error says which apps there are."""
    return administer(state_dir, chosen_name(state_dir, app))


def chosen_name(state_dir: str, app: str | None) -> str:
    """Return the given name if there is such an app, or the name of the only one."""
    storage = open_storage(state_dir)
    there = list_apps(storage)
    if not there:
        raise InvalidUse(
            f"{storage.url} holds no app. Give the state_dir of an app with --state-dir; nothing was created."
        )
    listed = ", ".join(map(repr, there))
    if app is None:
        if len(there) > 1:
            raise InvalidUse(f"{storage.url} holds several apps: {listed}. Choose one with --app.")
        return there[0]
    if app not in there:
        raise InvalidUse(f"{storage.url} holds no app {app!r}; it holds: {listed}. Correct --app or --state-dir.")
    return app
