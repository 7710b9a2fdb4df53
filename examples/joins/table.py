"""A table: the latest row of every key, which another stream looks up by its own key.

The table is partitioned by its key, like the orders, so both are in the same partition. Prices are read to their end
before the first order.

    python examples/joins/table.py

It reads one row of a stream per batch, and prints:

    worth: {"order": 1, "worth": 8}
    worth: {"order": 2, "worth": null}
"""

from __future__ import annotations

from typing import Any

import millpond as mp

ROWS: dict[str, list[dict[str, Any]]] = {
    "updates": [
        {"sku": "tea", "price": 3},
        {"sku": "pen", "price": 1},
        {"sku": "tea", "price": 4},
        {"sku": "pen", "price": None},
    ],
    "orders": [
        {"order": 1, "sku": "tea", "pieces": 2},
        {"order": 2, "sku": "pen", "pieces": 5},
    ],
}


def priced(order: dict[str, Any], price: dict[str, Any] | None) -> dict[str, Any]:
    return {"order": order["order"], "worth": order["pieces"] * price["price"] if price else None}


app = mp.App("table", state_dir="memory://")
updates = app.stream("updates", mp.sources.rows(ROWS["updates"]))
prices = app.table("prices", updates.key_by("sku"), deleted=lambda row: row["price"] is None)
orders = app.stream("orders", mp.sources.rows(ROWS["orders"]))
orders.key_by("sku").lookup("price", prices, merge=priced).to("worth", mp.sinks.console())

if __name__ == "__main__":
    app.run(until="caught-up", max_rows=1, close_at_end=True)
