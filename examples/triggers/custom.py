"""A custom trigger: three functions. This one fires when a price is twice the one before.

Its state, the last two prices, is stored with the window and survives a crash like the window.

    python examples/triggers/custom.py

It reads one row per batch, and the input ends after the last one. It prints:

    jumps: {"paper": "X", "window_start": 0, "window_end": 100, "pane": 0, "final": false, "high": 25, "low": 10}
    jumps: {"paper": "X", "window_start": 0, "window_end": 100, "pane": 1, "final": true, "high": 25, "low": 10}
"""

from __future__ import annotations

import millpond as mp

ROWS = {
    "trades": [
        {"paper": "X", "at": 1, "price": 10},
        {"paper": "X", "at": 2, "price": 12},
        {"paper": "X", "at": 3, "price": 25},
        {"paper": "X", "at": 4, "price": 24},
    ]
}


def advance(seen: list[int], event: mp.triggers.Event) -> list[int]:
    return [seen[1], event.row["price"]]


def fires(seen: list[int], event: mp.triggers.Event) -> bool:
    return seen[1] >= 2 * seen[0] > 0


app = mp.App("custom", state_dir="memory://")
trades = app.stream("trades", mp.sources.rows(ROWS["trades"]), timestamp="at").key_by("paper")
jump = mp.triggers.custom(initial=[0, 0], advance=advance, fires=fires)
windowed = trades.window("hundreds", mp.tumbling(100), grace=mp.NO_GRACE, trigger=jump)
windowed.aggregate(high=mp.max("price"), low=mp.min("price")).to("jumps", mp.sinks.console())

if __name__ == "__main__":
    app.run(until="caught-up", max_rows=1, close_at_end=True)
