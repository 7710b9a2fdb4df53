"""`when`: a pane when a function of the aggregates and the row returns true, here from 3 on.

The second window calls it before the row is counted: its pane does not include the row, which opens the next pane.

    python examples/triggers/when.py

It reads one row per batch, and the input ends after the last one. It prints:

    spent: {"customer": "ann", "window_start": 0, "window_end": 10, "pane": 0, "final": false, "spent": 3}
    spent: {"customer": "ann", "window_start": 0, "window_end": 10, "pane": 1, "final": false, "spent": 6}
    before: {"customer": "ann", "window_start": 0, "window_end": 10, "pane": 0, "final": false, "spent": 3}
    spent: {"customer": "ann", "window_start": 0, "window_end": 10, "pane": 2, "final": false, "spent": 10}
    before: {"customer": "ann", "window_start": 0, "window_end": 10, "pane": 1, "final": false, "spent": 6}
    spent: {"customer": "ann", "window_start": 10, "window_end": 20, "pane": 0, "final": false, "spent": 5}
    before: {"customer": "ann", "window_start": 0, "window_end": 10, "pane": 2, "final": true, "spent": 10}
    before: {"customer": "ann", "window_start": 10, "window_end": 20, "pane": 0, "final": true, "spent": 5}
"""

from __future__ import annotations

from typing import Any

import millpond as mp

ROWS = {
    "orders": [
        {"customer": "ann", "at": 1, "amount": 1},
        {"customer": "ann", "at": 3, "amount": 2},
        {"customer": "ann", "at": 6, "amount": 3},
        {"customer": "ann", "at": 8, "amount": 4},
        {"customer": "ann", "at": 12, "amount": 5},
    ]
}


def enough(result: dict[str, Any], order: dict[str, Any]) -> bool:
    return bool(result["spent"] >= 3)


app = mp.App("when", state_dir="memory://")
orders = app.stream("orders", mp.sources.rows(ROWS["orders"]), timestamp="at").key_by("customer")
windowed = orders.window("tens", mp.tumbling(10), grace=mp.NO_GRACE, trigger=mp.triggers.when(enough))
windowed.aggregate(spent=mp.sum("amount")).to("spent", mp.sinks.console())
early = orders.window("early", mp.tumbling(10), grace=mp.NO_GRACE, trigger=mp.triggers.when(enough, before=True))
early.aggregate(spent=mp.sum("amount")).to("before", mp.sinks.console())

if __name__ == "__main__":
    app.run(until="caught-up", max_rows=1, close_at_end=True)
