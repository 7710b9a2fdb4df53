"""Prints results of commands: a table for people, JSON lines for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from millpond.codec import Codec, encode_key


class OutputFormat(StrEnum):
    """How a command prints its result."""

    table = "table"
    json = "json"


Printed = Annotated[OutputFormat, typer.Option("--format", help="A table for people, or JSON lines for programs.")]

_plain_codec = Codec(unknown="plain")


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str] = ()) -> None:
    """Print a table. Nothing is cut off, and text of the user is not interpreted as markup."""
    shown = Table(title=Text(title), title_justify="left", title_style="bold")
    for column in columns:
        shown.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        shown.add_row(*(Text(cell) for cell in row))
    Console().print(shown)


def print_note(text: str) -> None:
    """Print a line for people on standard error; it is not part of the result."""
    Console(stderr=True, markup=False, highlight=False, soft_wrap=True).print(text)


def print_json(**fields: Any) -> None:
    """Print one line of JSON."""
    typer.echo(msgspec.json.encode(fields))


def key_json(key: Any) -> msgspec.Raw:
    """Return a key as in the log, which is what `--json` takes."""
    return msgspec.Raw(encode_key(key))


def value_json(value: Any) -> msgspec.Raw:
    """Return a value as in the log: tagged, so that a tuple differs from a list and a Decimal from text."""
    return msgspec.Raw(_plain_codec.encode(value))


def format_bytes(count: int) -> str:
    """Return a number of bytes with a unit.

    >>> format_bytes(999), format_bytes(1_234_567)
    ('999 B', '1.2 MB')
    """
    amount, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while amount >= 999.95 and len(units) > 1:
        amount /= 1000
        units.pop(0)
    return f"{amount:.{0 if units[0] == 'B' else 1}f} {units[0]}"
