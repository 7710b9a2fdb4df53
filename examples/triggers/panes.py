"""Panes: all rows so far, those since the last pane, or all rows so far after a retraction of the last pane.

    python examples/triggers/panes.py

It reads one row per batch, and the input ends after the last one. It prints:

    accumulate: {"pane": 0, "final": false, "spent": 3}
    discard: {"pane": 0, "final": false, "spent": 3}
    retract: {"pane": 0, "final": false, "spent": 3}
    accumulate: {"pane": 1, "final": false, "spent": 10}
    discard: {"pane": 1, "final": false, "spent": 7}
    retract: {"pane": 0, "final": false, "spent": 3, "retracted": true}
    retract: {"pane": 1, "final": false, "spent": 10}
    accumulate: {"pane": 0, "final": true, "spent": 5}
    discard: {"pane": 0, "final": true, "spent": 5}
    retract: {"pane": 0, "final": true, "spent": 5}
"""

from __future__ import annotations

from typing import Any, Literal

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


def short(pane: dict[str, Any]) -> dict[str, Any]:
    return {name: pane[name] for name in ("pane", "final", "spent", "retracted") if name in pane}


app = mp.App("panes", state_dir="memory://")
orders = app.stream("orders", mp.sources.rows(ROWS["orders"]), timestamp="at").key_by("customer")
trigger = mp.triggers.every_rows(2)
panes: tuple[Literal["accumulate", "discard", "retract"], ...] = ("accumulate", "discard", "retract")
for kind in panes:
    windowed = orders.window(f"{kind}-tens", mp.tumbling(10), grace=mp.NO_GRACE, trigger=trigger, panes=kind)
    windowed.aggregate(spent=mp.sum("amount")).map(short).to(kind, mp.sinks.console())

if __name__ == "__main__":
    app.run(until="caught-up", max_rows=1, close_at_end=True)
