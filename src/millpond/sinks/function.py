"""A sink that calls a Python function for each delivery."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from millpond.errors import InvalidUse
from millpond.sinks.base import Delivery
from millpond.user_functions import check_function


class FunctionSink:
    """Made by `millpond.sinks.function`; calls the user's function with each delivery.

    >>> from millpond.sinks.base import Delivery
    >>> from millpond.sinks import function
    >>> sink = function(lambda rows, delivery: print(delivery.id, rows))
    >>> sink.deliver([{"n": 1}], Delivery("orders", "5e1f", "totals", 42, 3))
    orders/5e1f/totals/42/3 [{'n': 1}]
    """

    def __init__(
        self,
        f: Callable[[list[Any], Delivery], object],
        where: Literal["driver", "workers"] = "driver",
    ) -> None:
        if not callable(f):
            raise InvalidUse(f"sinks.function(f): expected a function of rows and delivery, got {f!r}")
        check_function(f, "sinks.function(f)", "rows", "delivery")
        if where not in ("driver", "workers"):
            raise InvalidUse(f"sinks.function(where=): expected 'driver' or 'workers', got {where!r}")
        self._f = f
        self.where: Literal["driver", "workers"] = where

    def deliver(self, rows: list[Any], delivery: Delivery) -> None:
        """Call the function; its exceptions pass through."""
        self._f(rows, delivery)

    def __repr__(self) -> str:
        return f"function({getattr(self._f, '__name__', self._f)!s}, where={self.where!r})"
