"""A table on every worker: each worker holds all of it, and any stream can look rows up by any field.

Orders keep their key, the customer, and do not have to be shuffled by country.

    python examples/joins/everywhere.py

It reads one row of a stream per batch, and prints:

    sent: {"customer": "ann", "to": "IT", "amount": 3, "code": "IT", "name": "Italy"}
    sent: {"customer": "ann", "to": "NZ", "amount": 4, "code": "NZ", "name": "New Zealand"}
"""

from __future__ import annotations

from typing import Any

import millpond as mp

ROWS: dict[str, list[dict[str, Any]]] = {
    "countries": [{"code": "NZ", "name": "New Zealand"}, {"code": "IT", "name": "Italy"}],
    "orders": [
        {"customer": "ann", "to": "IT", "amount": 3},
        {"customer": "bob", "to": "XX", "amount": 5},
        {"customer": "ann", "to": "NZ", "amount": 4},
    ],
}

app = mp.App("everywhere", state_dir="memory://")
rows = app.stream("countries", mp.sources.rows(ROWS["countries"])).key_by("code")
countries = app.table("names", rows, everywhere=True)
orders = app.stream("orders", mp.sources.rows(ROWS["orders"])).key_by("customer")
orders.lookup("country", countries, on="to", how="inner").to("sent", mp.sinks.console())

if __name__ == "__main__":
    app.run(until="caught-up", max_rows=1, close_at_end=True)
