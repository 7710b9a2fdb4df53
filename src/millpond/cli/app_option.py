"""Which app a command is about: `--state-dir` and `--app`, the same for every command that reads state."""

from __future__ import annotations

from typing import Annotated

import typer

from millpond.admin import ReadOnlyApp
from millpond.admin import open as open_app
from millpond.errors import InvalidUse
from millpond.log.apps import list_apps
from millpond.storage import open_storage

StateDir = Annotated[str, typer.Option("--state-dir", help="The app's state_dir: a path or an object-store URL.")]
AppName = Annotated[str | None, typer.Option("--app", help="The app's name; not needed where only one app is there.")]


def chosen(state_dir: str, app: str | None) -> ReadOnlyApp:
    """The app that is meant, read-only, or an error that says which ones there are."""
    return open_app(state_dir, name_of(state_dir, app))


def name_of(state_dir: str, app: str | None) -> str:
    """The name that was given, if such an app is there, or that of the only one."""
    storage = open_storage(state_dir)
    there = list_apps(storage)
    if not there:
        raise InvalidUse(
            f"{storage.url} holds no app. Say with --state-dir where the state of one is; nothing was made."
        )
    listed = ", ".join(map(repr, there))
    if app is None:
        if len(there) > 1:
            raise InvalidUse(f"{storage.url} holds several apps: {listed}. Say with --app which one is meant.")
        return there[0]
    if app not in there:
        raise InvalidUse(f"{storage.url} holds no app {app!r}; it holds: {listed}. Mend --app or --state-dir.")
    return app
