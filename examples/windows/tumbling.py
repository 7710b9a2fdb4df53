"""Tumbling windows: what each customer spends per minute, one minute after the other.

The order of 12:00:40 arrives after the one of 12:01:05, within the grace. The one of 12:00:50 arrives after its minute
has closed: it is late, and goes to a separate stream.

    python examples/windows/tumbling.py

It reads one row per batch, and the input ends after the last one. It prints:

    minutes: "12:00 ann spent 4, orders: 2"
    minutes: "12:00 bob spent 5, orders: 1"
    late: "9 of ann came 0:00:40 late for 12:00 to 12:01"
    minutes: "12:01 ann spent 4, orders: 1"
    minutes: "12:01 bob spent 2, orders: 1"
"""

from __future__ import annotations

from typing import Any

import millpond as mp

ROWS = {
    "orders": [
        {"customer": "ann", "at": "2024-05-01T12:00:10Z", "amount": 3},
        {"customer": "bob", "at": "2024-05-01T12:00:20Z", "amount": 5},
        {"customer": "ann", "at": "2024-05-01T12:01:05Z", "amount": 4},
        {"customer": "ann", "at": "2024-05-01T12:00:40Z", "amount": 1},
        {"customer": "bob", "at": "2024-05-01T12:01:30Z", "amount": 2},
        {"customer": "ann", "at": "2024-05-01T12:00:50Z", "amount": 9},
    ]
}


def line(total: dict[str, Any]) -> str:
    return f"{total['window_start']:%H:%M} {total['customer']} spent {total['spent']}, orders: {total['n']}"


def late_line(late: dict[str, Any]) -> str:
    start, end = late["missed"][0]
    return f"{late['row']['amount']} of {late['key']} came {late['late_by']} late for {start:%H:%M} to {end:%H:%M}"


app = mp.App("tumbling", state_dir="memory://")
orders = app.stream("orders", mp.sources.rows(ROWS["orders"]), timestamp="at")
windowed = orders.key_by("customer").window("per-minute", mp.tumbling("1m"), grace="10s")
windowed.aggregate(n=mp.count(), spent=mp.sum("amount")).map(line).to("minutes", mp.sinks.console())
windowed.late.map(late_line).to("late", mp.sinks.console())

if __name__ == "__main__":
    app.run(until="caught-up", max_rows=1, close_at_end=True)
