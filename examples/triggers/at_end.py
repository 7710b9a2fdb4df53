"""`at_end`: a pane when the watermark reaches the window's end, although the grace is longer.

An early result, and a corrected one when the window closes, if more rows have arrived meanwhile.

    python examples/triggers/at_end.py

It reads one row per batch, and the input ends after the last one. It prints:

    spent: {"customer": "ann", "window_start": 0, "window_end": 10, "pane": 0, "final": false, "spent": 1}
    spent: {"customer": "ann", "window_start": 0, "window_end": 10, "pane": 1, "final": true, "spent": 5}
    spent: {"customer": "ann", "window_start": 10, "window_end": 20, "pane": 0, "final": true, "spent": 10}
"""

from __future__ import annotations

import millpond as mp

ROWS = {
    "orders": [
        {"customer": "ann", "at": 1, "amount": 1},
        {"customer": "ann", "at": 11, "amount": 2},
        {"customer": "ann", "at": 8, "amount": 4},
        {"customer": "ann", "at": 16, "amount": 8},
    ]
}

app = mp.App("at-end", state_dir="memory://")
orders = app.stream("orders", mp.sources.rows(ROWS["orders"]), timestamp="at").key_by("customer")
windowed = orders.window("tens", mp.tumbling(10), grace=5, trigger=mp.triggers.at_end())
windowed.aggregate(spent=mp.sum("amount")).to("spent", mp.sinks.console())

if __name__ == "__main__":
    app.run(until="caught-up", max_rows=1, close_at_end=True)
