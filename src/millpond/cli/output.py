"""What commands print: a table for people, JSON lines for programs."""

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


class Format(StrEnum):
    """How a command prints what it found."""

    table = "table"
    json = "json"


Printed = Annotated[Format, typer.Option("--format", help="A table for people, or JSON lines for programs.")]

_CODEC = Codec(unknown="plain")


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str] = ()) -> None:
    """Print a table; nothing is cut off, and nothing in a user's text is taken for markup."""
    shown = Table(title=Text(title), title_justify="left", title_style="bold")
    for column in columns:
        shown.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        shown.add_row(*(Text(cell) for cell in row))
    Console().print(shown)


def note(text: str) -> None:
    """Print a line for people that is no part of the result."""
    Console(stderr=True, markup=False, highlight=False, soft_wrap=True).print(text)


def line(**fields: Any) -> None:
    """Print one line of JSON."""
    typer.echo(msgspec.json.encode(fields))


def key_json(key: Any) -> msgspec.Raw:
    """A key as the log writes it: what `--json` takes."""
    return msgspec.Raw(encode_key(key))


def value_json(value: Any) -> msgspec.Raw:
    """A value as the log writes it: tagged, so that a tuple is no list and a Decimal no text."""
    return msgspec.Raw(_CODEC.encode(value))


def size(count: int) -> str:
    """So many bytes, in words.

    >>> size(999), size(1_234_567)
    ('999 B', '1.2 MB')
    """
    amount, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while amount >= 999.95 and len(units) > 1:
        amount /= 1000
        units.pop(0)
    return f"{amount:.{0 if units[0] == 'B' else 1}f} {units[0]}"
