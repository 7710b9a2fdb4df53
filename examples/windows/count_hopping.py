"""Count windows that overlap: the last 4 values of a sensor, for every 2 values.

    python examples/windows/count_hopping.py

It reads one row per batch, and the input ends after the last one. It prints:

    means: {"sensor": "s1", "window_start": 0, "window_end": 4, "pane": 0, "final": true, "mean": 3.0}
    means: {"sensor": "s1", "window_start": 2, "window_end": 6, "pane": 0, "final": true, "mean": 5.0}
    means: {"sensor": "s1", "window_start": 4, "window_end": 8, "pane": 0, "final": true, "mean": 5.5}
"""

from __future__ import annotations

import millpond as mp

ROWS = {"values": [{"sensor": "s1", "value": value} for value in (1, 2, 6, 3, 4, 7)]}

app = mp.App("count-hopping", state_dir="memory://")
values = app.stream("values", mp.sources.rows(ROWS["values"]))
windowed = values.key_by("sensor").window("fours", mp.count_hopping(4, every=2))
windowed.aggregate(mean=mp.mean("value")).to("means", mp.sinks.console())

if __name__ == "__main__":
    app.run(until="caught-up", max_rows=1, close_at_end=True)
