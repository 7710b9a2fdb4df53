"""Interval join: orders with their payments within an hour, and orders that were not paid.

An order without a payment is emitted once, when no payment for it can arrive any more. A payment that arrives after
that is late.

    python examples/joins/interval.py

It reads one row of each stream per batch, and the input ends after the last one. It prints:

    paid: {"order": 1, "item": "tea", "paid": "card"}
    paid: {"order": 1, "item": "tea", "paid": "voucher"}
    paid: {"order": 2, "item": "pen", "paid": null}
    late: "right 2, by 1:00:00"
    paid: {"order": 3, "item": "cup", "paid": null}
"""

from __future__ import annotations

from typing import Any

import millpond as mp

ROWS = {
    "orders": [
        {"order": 1, "at": "2024-05-01T12:00:00Z", "item": "tea"},
        {"order": 2, "at": "2024-05-01T12:10:00Z", "item": "pen"},
        {"order": 3, "at": "2024-05-01T14:00:00Z", "item": "cup"},
    ],
    "payments": [
        {"order": 1, "at": "2024-05-01T12:20:00Z", "by": "card"},
        {"order": 1, "at": "2024-05-01T12:50:00Z", "by": "voucher"},
        {"order": 9, "at": "2024-05-01T14:00:00Z", "by": "card"},
        {"order": 2, "at": "2024-05-01T13:00:00Z", "by": "card"},
    ],
}


def paid(order: dict[str, Any], payment: dict[str, Any] | None) -> dict[str, Any]:
    return {"order": order["order"], "item": order["item"], "paid": payment["by"] if payment else None}


app = mp.App("interval", state_dir="memory://")
orders = app.stream("orders", mp.sources.rows(ROWS["orders"]), timestamp="at").key_by("order")
payments = app.stream("payments", mp.sources.rows(ROWS["payments"]), timestamp="at").key_by("order")
joined = orders.join_interval("pay", payments, after="1h", grace="5m", how="left", merge=paid)
joined.to("paid", mp.sinks.console())
joined.late.map(lambda late: f"{late['side']} {late['key']}, by {late['late_by']}").to("late", mp.sinks.console())

if __name__ == "__main__":
    app.run(until="caught-up", max_rows=1, close_at_end=True)
