"""The command line: `millpond run`, `state`, `status`, `rescale`, `rollback` and so on.

What goes wrong on purpose is printed as one block, `error: …`, on standard error, and ends with code 1; wrong
usage ends with code 2. `MILLPOND_TRACE=1` shows where an error came from.
"""

from __future__ import annotations

import os
from typing import Any

import typer
from typer.core import TyperGroup

from millpond.cli import admin_commands as upkeep
from millpond.cli import changes, clear, demo, run, state, status, verify
from millpond.errors import MillpondError


class Commands(TyperGroup):
    """Turns every error of ours into words and an exit code, in whatever command it was raised."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except MillpondError as error:
            if os.environ.get("MILLPOND_TRACE", "") not in ("", "0"):
                raise
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(1) from None


commands = typer.Typer(
    name="millpond",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Stateful stream processing in Python on Apache Spark.",
)
commands.command()(run.run)
commands.add_typer(state.commands, name="state")
commands.command()(status.status)
commands.command()(changes.changes)
commands.command()(verify.verify)
commands.command()(upkeep.compact)
commands.command()(upkeep.rescale)
commands.command()(upkeep.rollback)
commands.command()(upkeep.savepoint)
commands.command()(upkeep.restore)
commands.command("drop-step")(upkeep.drop_step)
commands.command()(clear.clear)
commands.command()(demo.demo)


def main() -> None:
    """The `millpond` command."""
    commands()
