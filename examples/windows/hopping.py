"""Hopping windows: the last 10 minutes, every 5 minutes. Windows overlap, and each row is in two of them.

Times are whole numbers here, minutes of some clock, and so are the size, the hop and the grace.

    python examples/windows/hopping.py

It reads one row per batch, and the input ends after the last one. It prints:

    traffic: {"road": "A1", "window_start": -5, "window_end": 5, "pane": 0, "final": true, "cars": 1}
    traffic: {"road": "A1", "window_start": 0, "window_end": 10, "pane": 0, "final": true, "cars": 3}
    traffic: {"road": "A1", "window_start": 5, "window_end": 15, "pane": 0, "final": true, "cars": 3}
    traffic: {"road": "A1", "window_start": 10, "window_end": 20, "pane": 0, "final": true, "cars": 1}
    traffic: {"road": "A1", "window_start": 15, "window_end": 25, "pane": 0, "final": true, "cars": 1}
    traffic: {"road": "A1", "window_start": 20, "window_end": 30, "pane": 0, "final": true, "cars": 1}
"""

from __future__ import annotations

import millpond as mp

ROWS = {
    "cars": [
        {"road": "A1", "minute": 2},
        {"road": "A1", "minute": 6},
        {"road": "A1", "minute": 7},
        {"road": "A1", "minute": 13},
        {"road": "A1", "minute": 21},
    ]
}

app = mp.App("hopping", state_dir="memory://")
cars = app.stream("cars", mp.sources.rows(ROWS["cars"]), timestamp="minute")
windowed = cars.key_by("road").window("ten-minutes", mp.hopping(10, every=5), grace=mp.NO_GRACE)
windowed.aggregate(cars=mp.count()).to("traffic", mp.sinks.console())

if __name__ == "__main__":
    app.run(until="caught-up", max_rows=1, close_at_end=True)
