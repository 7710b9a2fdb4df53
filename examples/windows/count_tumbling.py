"""Count windows, one after the other: the mean of every 3 values of a sensor.

`window_start` and `window_end` are the indexes of the rows, counted per key from 0. The last window closes,
incomplete, when the input ends.

    python examples/windows/count_tumbling.py

It reads one row per batch, and the input ends after the last one. It prints:

    means: {"sensor": "s1", "window_start": 0, "window_end": 3, "pane": 0, "final": true, "mean": 3.0}
    means: {"sensor": "s1", "window_start": 3, "window_end": 6, "pane": 0, "final": true, "mean": 5.0}
    means: {"sensor": "s1", "window_start": 6, "window_end": 9, "pane": 0, "final": true, "mean": 5.0}
"""

from __future__ import annotations

import millpond as mp

ROWS = {"values": [{"sensor": "s1", "value": value} for value in (1, 2, 6, 4, 4, 7, 5)]}

app = mp.App("count-tumbling", state_dir="memory://")
values = app.stream("values", mp.sources.rows(ROWS["values"]))
windowed = values.key_by("sensor").window("threes", mp.count_tumbling(3))
windowed.aggregate(mean=mp.mean("value")).to("means", mp.sinks.console())

if __name__ == "__main__":
    app.run(until="caught-up", max_rows=1, close_at_end=True)
