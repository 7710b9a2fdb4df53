"""Sliding windows: for every payment, how much its card has paid in the 10 minutes up to it, both ends inclusive.

There is one window per key and distinct time. Times are whole numbers here, minutes of some clock.

    python examples/windows/sliding.py

It reads one row per batch, and the input ends after the last one. It prints:

    recent: {"card": "visa", "window_start": 1, "window_end": 11, "pane": 0, "final": true, "n": 1, "cents": 300}
    recent: {"card": "visa", "window_start": 11, "window_end": 21, "pane": 0, "final": true, "n": 2, "cents": 800}
    recent: {"card": "visa", "window_start": 12, "window_end": 22, "pane": 0, "final": true, "n": 2, "cents": 600}
    recent: {"card": "visa", "window_start": 30, "window_end": 40, "pane": 0, "final": true, "n": 1, "cents": 50}
"""

from __future__ import annotations

import millpond as mp

ROWS = {
    "payments": [
        {"card": "visa", "minute": 11, "cents": 300},
        {"card": "visa", "minute": 21, "cents": 500},
        {"card": "visa", "minute": 22, "cents": 100},
        {"card": "visa", "minute": 40, "cents": 50},
    ]
}

app = mp.App("sliding", state_dir="memory://")
payments = app.stream("payments", mp.sources.rows(ROWS["payments"]), timestamp="minute")
windowed = payments.key_by("card").window("ten-minutes", mp.sliding(10), grace=mp.NO_GRACE)
windowed.aggregate(n=mp.count(), cents=mp.sum("cents")).to("recent", mp.sinks.console())

if __name__ == "__main__":
    app.run(until="caught-up", max_rows=1, close_at_end=True)
