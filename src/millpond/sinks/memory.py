"""A sink that keeps rows in a list in the driver."""

from __future__ import annotations

from typing import Any, Literal

from millpond.sinks.base import Delivery


class MemorySink:
    """Made by `millpond.sinks.memory`; `.rows` has the rows and `.deliveries` their names, in order.

    A repeated delivery is not added again. A new process starts empty. A pickled copy has no rows; it is never
    called in the workers.

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
        """Add the rows, unless this delivery was added before."""
        if delivery.id not in self._known:
            self._known.add(delivery.id)
            self.deliveries.append(delivery)
            self.rows.extend(rows)

    def __getstate__(self) -> dict[str, Any]:
        return {"rows": [], "deliveries": [], "_known": set()}

    def __repr__(self) -> str:
        return f"memory(<{len(self.rows)} rows>)"
