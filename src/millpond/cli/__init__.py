"""The command line: `millpond run`, `state`, `status`, `rescale`, `rollback` and so on.

Errors of Millpond are printed as one block, `error: …`, on standard error, with exit code 1; wrong usage has exit
code 2. `MILLPOND_TRACE=1` prints the traceback of an error.
"""

from __future__ import annotations

import os
from typing import Any

import typer
from typer.core import TyperGroup

from millpond.cli import (
    admin_commands,
    changes_command,
    clear_command,
    demo_command,
    run_command,
    state_command,
    status_command,
    verify_command,
)
from millpond.errors import MillpondError


class Commands(TyperGroup):
    """Prints every error of Millpond as text and turns it into an exit code, for all commands."""

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
commands.command()(run_command.run)
commands.add_typer(state_command.state_commands, name="state")
commands.command()(status_command.status)
commands.command()(changes_command.changes)
commands.command()(verify_command.verify)
commands.command()(admin_commands.compact)
commands.command()(admin_commands.rescale)
commands.command()(admin_commands.drain)
commands.command()(admin_commands.rollback)
commands.command()(admin_commands.savepoint)
commands.command()(admin_commands.restore)
commands.command("drop-step")(admin_commands.drop_step)
commands.command()(clear_command.clear)
commands.command()(demo_command.demo)


def main() -> None:
    """Run the `millpond` command."""
    commands()
