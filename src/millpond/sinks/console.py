"""A sink that prints rows on the driver's standard output."""

from __future__ import annotations

import sys
from typing import Any, Literal

import msgspec

from millpond.errors import InvalidUse
from millpond.rows.plain_json import encode_json
from millpond.sinks.base import Delivery


class ConsoleSink:
    """Made by `millpond.sinks.console`; a line per row: the sink's name, then the row.

    A terminal cannot remember what it has shown, so a delivery that is repeated after a crash is printed
    again: every row is printed at least once.

    >>> from millpond.sinks.base import Delivery
    >>> from millpond.sinks import console
    >>> console().deliver([{"n": 1}], Delivery("orders", "5e1f", "totals", 42, 3))
    totals: {"n": 1}
    """

    where: Literal["driver", "workers"] = "driver"

    def deliver(self, rows: list[Any], delivery: Delivery) -> None:
        """Print the rows, all in one write."""
        # looked up each time: notebooks and tests replace it
        sys.stdout.write("".join(f"{delivery.sink}: {format_row(row)}\n" for row in rows))
        sys.stdout.flush()

    def __repr__(self) -> str:
        return "console()"


def format_row(row: Any) -> str:
    """Return one row as JSON for people to read, or its `repr` if it cannot be JSON.

    >>> format_row({"n": 1, "tags": ("a", "b")})
    '{"n": 1, "tags": ["a", "b"]}'
    """
    try:
        return msgspec.json.format(encode_json(row), indent=0).decode()
    except (InvalidUse, RecursionError):
        return repr(row)
