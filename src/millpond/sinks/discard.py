"""A sink that is never called: its outputs stay in the log."""

from __future__ import annotations

from typing import Any, Literal

from millpond.sinks.base import Delivery


class DiscardSink:
    """Made by `millpond.sinks.discard`: for measurements, and for outputs that only the log should contain.

    >>> from millpond.sinks.base import Delivery
    >>> from millpond.sinks import discard
    >>> discard().deliver([1], Delivery("orders", "5e1f", "totals", 42, 3))
    """

    where: Literal["nowhere"] = "nowhere"

    def deliver(self, rows: list[Any], delivery: Delivery) -> None:
        """Do nothing."""

    def __repr__(self) -> str:
        return "discard()"
