"""A lookup in an external database: one query for many keys, with a cache.

A worker makes one query for all keys of its rows that are not cached. Each answer is cached for five minutes, also if
there is no row.

    python examples/joins/external.py

It reads one row per batch, and prints:

    named: {"order": 1, "customer": 7, "name": "Ann"}
    named: {"order": 2, "customer": 8, "name": "Bob"}
    named: {"order": 3, "customer": 99}
    named: {"order": 4, "customer": 7, "name": "Ann"}
"""

from __future__ import annotations

from typing import Any

import millpond as mp

ROWS: dict[str, list[dict[str, Any]]] = {
    "orders": [
        {"order": 1, "customer": 7},
        {"order": 2, "customer": 8},
        {"order": 3, "customer": 99},
        {"order": 4, "customer": 7},
    ]
}

PEOPLE = {7: "Ann", 8: "Bob"}  # stands for a database


def customers(ids: list[int]) -> dict[int, dict[str, str]]:
    """The rows of some keys, none of which comes twice; those that are not there are left out."""
    return {id: {"name": PEOPLE[id]} for id in ids if id in PEOPLE}  # SELECT … WHERE id = ANY(ids)


app = mp.App("external", state_dir="memory://")
orders = app.stream("orders", mp.sources.rows(ROWS["orders"]))
known = mp.external(customers, cache=10_000, expire="5m")
orders.lookup("customer", known, on="customer").to("named", mp.sinks.console())

if __name__ == "__main__":
    app.run(until="caught-up", max_rows=1, close_at_end=True)
