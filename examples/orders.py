"""Totals per customer: how much each has spent so far, with one output per order.

Reads JSON lines from orders/ and writes to totals/. Run it, add lines or files, run it again:

    mkdir -p orders
    echo '{"customer": "ann", "amount": 3}' >> orders/monday.jsonl
    python examples/orders.py
    cat totals/*.jsonl
"""

from __future__ import annotations

from typing import Any

import millpond as mp

Row = dict[str, Any]


def add_up(customer: str, order: Row, total: float) -> tuple[Row, float]:
    """State in, output and new state out."""
    total += order["amount"]
    return {"customer": customer, "amount": order["amount"], "total": total}, total


app = mp.App("orders", state_dir="state")
orders = app.stream("orders", mp.sources.files("orders"))
totals = orders.key_by("customer").stateful_map("total", add_up, initial=0.0)
totals.to("totals", mp.sinks.files("totals"))

if __name__ == "__main__":
    app.run(until="caught-up")
    for customer, total in sorted(app.state("total").items()):
        print(f"{customer}: {total:.2f}")
