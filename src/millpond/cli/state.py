"""`millpond state`: what a step holds for a key, for all keys, and what it has held."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any

import typer

from millpond.cli.app_option import AppName, StateDir, chosen
from millpond.cli.load_program import of_program
from millpond.cli.output import Format, Printed, key_json, line, note, table, value_json
from millpond.codec import decode_key
from millpond.errors import Corrupt, InvalidUse
from millpond.state_view import StateView

FEW = 100  # keys that a table shows unless it is told otherwise

commands = typer.Typer(no_args_is_help=True, help="Look at the state of a step, as of the newest commit or earlier.")

Step = Annotated[str, typer.Argument(metavar="STEP", help="The step's name.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The key: text, or with --json any key.")]
IsJson = Annotated[
    bool, typer.Option("--json", help='KEY is JSON as the log writes it: 1, true, "a", {"$tuple":[1,"a"]}.')
]
At = Annotated[int | None, typer.Option("--at", metavar="BATCH", help="As it was when this batch was committed.")]

Program = Annotated[
    str | None,
    typer.Option(metavar="APP.PY[:NAME]", help="The program: values are shown as it reads them, in its version."),
]


@commands.command()
def get(
    step: Step,
    key: Key,
    json: IsJson = False,
    at: At = None,
    program: Program = None,
    state_dir: StateDir = "state",
    app: AppName = None,
    format: Printed = Format.table,
) -> None:
    """Show what a step holds for one key."""
    found = _key(key, json)
    with of_program(program, state_dir, app) as opened:
        value = _at(opened.state(step), at).get(found, _MISSING)
    if value is _MISSING:
        raise InvalidUse(_nothing(step, found, json))
    if format is Format.json:
        line(key=key_json(found), value=value_json(value))
    else:
        table(step, ["key", "value"], [(repr(found), repr(value))])


@commands.command("list")
def list_(
    step: Step,
    at: At = None,
    limit: Annotated[
        int | None, typer.Option(min=0, help=f"At most so many keys; if not given, {FEW} in a table, all as JSON.")
    ] = None,
    program: Program = None,
    state_dir: StateDir = "state",
    app: AppName = None,
    format: Printed = Format.table,
) -> None:
    """Show every key of a step and what it holds."""
    with of_program(program, state_dir, app) as opened:
        _list(step, _at(opened.state(step), at).items(), limit, format)


def _list(step: str, items: Iterator[tuple[Any, Any]], limit: int | None, format: Format) -> None:
    if format is Format.json:
        for key, value in islice(items, limit):
            line(key=key_json(key), value=value_json(value))
        return
    most = FEW if limit is None else limit
    table(step, ["key", "value"], ((repr(key), repr(value)) for key, value in islice(items, most)))
    if next(items, None) is not None:
        note(f"There are more than {most} keys: --limit N shows more, --format json all of them.")


@commands.command()
def history(
    step: Step,
    key: Key,
    json: IsJson = False,
    state_dir: StateDir = "state",
    app: AppName = None,
    format: Printed = Format.table,
) -> None:
    """Show every value that one key has had, oldest first."""
    found = _key(key, json)
    moments = list(chosen(state_dir, app).state(step).history(found))
    if not moments:
        raise InvalidUse(_nothing(step, found, json))
    if format is Format.json:
        for moment in moments:
            line(
                batch=moment.batch,
                time=moment.time,
                value=value_json(moment.value),
                deleted=moment.deleted,
            )
        return
    table(
        f"{step}: {found!r}",
        ["batch", "time", "value"],
        (
            (str(m.batch), m.time.isoformat(" ", "milliseconds"), "(deleted)" if m.deleted else repr(m.value))
            for m in moments
        ),
        numbers=["batch"],
    )


_MISSING = object()


def _at(view: StateView, batch: int | None) -> StateView:
    return view if batch is None else view.at(batch)


def _key(text: str, json: bool) -> Any:
    if not json:
        return text
    try:
        return decode_key(text.encode())
    except Corrupt:
        raise InvalidUse(
            f'KEY: with --json expected a key as the log writes it, such as 1, "a" or {{"$tuple":[1,"a"]}}, got {text}'
        ) from None


def _nothing(step: str, key: Any, json: bool) -> str:
    told = f"step {step!r} holds nothing for key {key!r}"
    return told if json else f"{told}. A key that is no text is given with --json, as in --json 1"
