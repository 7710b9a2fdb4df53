"""The driver's standard output, as a sink."""

from __future__ import annotations

import sys
from typing import Any, Literal

from millpond.sinks import json_text as text
from millpond.sinks.base import Delivery


class ConsoleSink:
    """Made by `millpond.sinks.console`; a line per row: the sink's name, then the row.

    A terminal cannot take anything back or say what it showed, so a delivery that is repeated after a
    crash is printed again: every row at least once.

    >>> from millpond.sinks.base import Delivery
    >>> from millpond.sinks import console
    >>> console().deliver([{"n": 1}], Delivery("orders", "5e1f", "totals", 42, 3))
    totals: {"n": 1}
    """

    where: Literal["driver", "workers"] = "driver"

    def deliver(self, rows: list[Any], delivery: Delivery) -> None:
        """Print the rows, all in one write."""
        # the stream is looked up each time: notebooks and tests put their own in its place
        sys.stdout.write("".join(f"{delivery.sink}: {text.line(row)}\n" for row in rows))
        sys.stdout.flush()

    def __repr__(self) -> str:
        return "console()"
