"""Count windows that slide: the mean of the last 3 values, for every value from the third on.

If the input does not end, the incomplete windows stay open and are never emitted.

    python examples/windows/count_sliding.py

It reads one row per batch, and the input ends after the last one. It prints:

    means: {"sensor": "s1", "window_start": 0, "window_end": 3, "pane": 0, "final": true, "mean": 3.0}
    means: {"sensor": "s1", "window_start": 1, "window_end": 4, "pane": 0, "final": true, "mean": 4.0}
    means: {"sensor": "s1", "window_start": 2, "window_end": 5, "pane": 0, "final": true, "mean": 5.0}
    means: {"sensor": "s1", "window_start": 3, "window_end": 6, "pane": 0, "final": true, "mean": 4.0}
"""

from __future__ import annotations

import millpond as mp

ROWS = {"values": [{"sensor": "s1", "value": value} for value in (1, 2, 6, 4)]}

app = mp.App("count-sliding", state_dir="memory://")
values = app.stream("values", mp.sources.rows(ROWS["values"]))
windowed = values.key_by("sensor").window("threes", mp.count_sliding(3))
windowed.aggregate(mean=mp.mean("value")).to("means", mp.sinks.console())

if __name__ == "__main__":
    app.run(until="caught-up", max_rows=1, close_at_end=True)
