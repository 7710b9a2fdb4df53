"""`millpond state`: the state of a step for one key or all keys, and its history."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any

import typer

from millpond.cli.app_option import AppName, StateDir, open_chosen
from millpond.cli.load_program import load_or_open
from millpond.cli.output import OutputFormat, Printed, key_json, print_json, print_note, print_table, value_json
from millpond.codec import decode_key
from millpond.errors import Corrupt, InvalidUse
from millpond.state_view import StateView

MAX_KEYS = 100  # in a table, unless --limit is given

state_commands = typer.Typer(
    no_args_is_help=True, help="Show the state of a step, as of the newest or an earlier commit."
)

StepArgument = Annotated[str, typer.Argument(metavar="STEP", help="The name of the step.")]
KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The key: text, or with --json any key.")]
IsJson = Annotated[bool, typer.Option("--json", help='KEY is JSON as in the log: 1, true, "a", {"$tuple":[1,"a"]}.')]
AtOption = Annotated[int | None, typer.Option("--at", metavar="BATCH", help="The state as of this batch.")]

ProgramOption = Annotated[
    str | None,
    typer.Option(
        metavar="APP.PY[:NAME]", help="The program: values are shown as it reads them, migrated to its version."
    ),
]


@state_commands.command()
def get(
    step: StepArgument,
    key: KeyArgument,
    json: IsJson = False,
    at: AtOption = None,
    program: ProgramOption = None,
    state_dir: StateDir = "state",
    app: AppName = None,
    format: Printed = OutputFormat.table,
) -> None:
    """Show the state of one key."""
    found = _parse_key(key, json)
    with load_or_open(program, state_dir, app) as opened:
        value = _view_at(opened.state(step), at).get(found, _NO_STATE)
    if value is _NO_STATE:
        raise InvalidUse(_no_state(step, found, json))
    if format is OutputFormat.json:
        print_json(key=key_json(found), value=value_json(value))
    else:
        print_table(step, ["key", "value"], [(repr(found), repr(value))])


@state_commands.command("list")
def list_(
    step: StepArgument,
    at: AtOption = None,
    limit: Annotated[
        int | None,
        typer.Option(min=0, help=f"The maximum number of keys; by default, {MAX_KEYS} in a table, all as JSON."),
    ] = None,
    program: ProgramOption = None,
    state_dir: StateDir = "state",
    app: AppName = None,
    format: Printed = OutputFormat.table,
) -> None:
    """Show every key of a step and its state."""
    with load_or_open(program, state_dir, app) as opened:
        _print_items(step, _view_at(opened.state(step), at).items(), limit, format)


def _print_items(step: str, items: Iterator[tuple[Any, Any]], limit: int | None, format: OutputFormat) -> None:
    if format is OutputFormat.json:
        for key, value in islice(items, limit):
            print_json(key=key_json(key), value=value_json(value))
        return
    most = MAX_KEYS if limit is None else limit
    print_table(step, ["key", "value"], ((repr(key), repr(value)) for key, value in islice(items, most)))
    if next(items, None) is not None:
        print_note(f"There are more than {most} keys: --limit N shows more, --format json all of them.")


@state_commands.command()
def history(
    step: StepArgument,
    key: KeyArgument,
    json: IsJson = False,
    state_dir: StateDir = "state",
    app: AppName = None,
    format: Printed = OutputFormat.table,
) -> None:
    """Show every value that one key has had, oldest first."""
    found = _parse_key(key, json)
    moments = list(open_chosen(state_dir, app).state(step).history(found))
    if not moments:
        raise InvalidUse(_no_state(step, found, json))
    if format is OutputFormat.json:
        for moment in moments:
            print_json(
                batch=moment.batch,
                time=moment.time,
                value=value_json(moment.value),
                deleted=moment.deleted,
            )
        return
    print_table(
        f"{step}: {found!r}",
        ["batch", "time", "value"],
        (
            (str(m.batch), m.time.isoformat(" ", "milliseconds"), "(deleted)" if m.deleted else repr(m.value))
            for m in moments
        ),
        numbers=["batch"],
    )


_NO_STATE = object()


def _view_at(view: StateView, batch: int | None) -> StateView:
    return view if batch is None else view.at(batch)


def _parse_key(text: str, json: bool) -> Any:
    if not json:
        return text
    try:
        return decode_key(text.encode())
    except Corrupt:
        raise InvalidUse(
            f'KEY: with --json expected a key as in the log, such as 1, "a" or {{"$tuple":[1,"a"]}}, got {text}'
        ) from None


def _no_state(step: str, key: Any, json: bool) -> str:
    text = f"step {step!r} has no state for key {key!r}"
    return text if json else f"{text}. Give a key that is not text with --json, as in --json 1"
