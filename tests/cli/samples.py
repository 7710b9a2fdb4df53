"""An app to look at: running totals by customer."""

from __future__ import annotations

from typing import Any

import millpond as mp


def totals_app(name: str, **how: Any) -> mp.App:
    app = mp.App(name, **how)

    def add_up(key: Any, order: dict[str, Any], total: int) -> tuple[dict[str, Any], int | None]:
        total += order["amount"]
        return {"customer": key, "total": total}, None if order.get("last") else total

    totals = app.stream("orders", mp.sources.rows([])).key_by("customer").stateful_map("total", add_up, initial=0)
    totals.to("totals", mp.sinks.memory())
    return app


def order(customer: Any, amount: int, **more: Any) -> dict[str, Any]:
    return {"customer": customer, "amount": amount, **more}
