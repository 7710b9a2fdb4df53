"""A list in the driver, as a sink."""

from __future__ import annotations

from typing import Any, Literal

from millpond.sinks.base import Delivery


class MemorySink:
    """Made by `millpond.sinks.memory`; `.rows` are the rows and `.deliveries` the names, as they came.

    A delivery that came before is not added again. A new process starts empty: what an earlier one was
    given is not there. The sink travels to workers without its rows, and nobody calls it there.

    >>> from millpond.sinks.base import Delivery
    >>> from millpond.sinks import memory
    >>> sink, delivery = memory(), Delivery("orders", "5e1f", "totals", 42, 3)
    >>> sink.deliver([{"n": 1}], delivery)
    >>> sink.deliver([{"n": 1}], delivery)
    >>> sink.rows
    [{'n': 1}]
    """

    where: Literal["driver", "workers"] = "driver"

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.deliveries: list[Delivery] = []
        self._known: set[str] = set()

    def deliver(self, rows: list[Any], delivery: Delivery) -> None:
        """Keep the rows, unless this delivery came before."""
        if delivery.id not in self._known:
            self._known.add(delivery.id)
            self.deliveries.append(delivery)
            self.rows.extend(rows)

    def __getstate__(self) -> dict[str, Any]:
        return {"rows": [], "deliveries": [], "_known": set()}

    def __repr__(self) -> str:
        return f"memory(<{len(self.rows)} rows>)"
