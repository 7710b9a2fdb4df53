"""`clock="key"`: each sensor's windows close by that sensor's own newest time.

Sensor b is an hour behind. By the watermark of the stream all of its rows would be late.

    python examples/windows/per_key_clock.py

It reads one row per batch, and the input ends after the last one. It prints:

    totals: {"sensor": "a", "window_start": 60, "window_end": 70, "pane": 0, "final": true, "total": 1}
    totals: {"sensor": "b", "window_start": 0, "window_end": 10, "pane": 0, "final": true, "total": 11}
    totals: {"sensor": "a", "window_start": 70, "window_end": 80, "pane": 0, "final": true, "total": 2}
    totals: {"sensor": "b", "window_start": 10, "window_end": 20, "pane": 0, "final": true, "total": 7}
"""

from __future__ import annotations

import millpond as mp

ROWS = {
    "values": [
        {"sensor": "a", "minute": 61, "value": 1},
        {"sensor": "b", "minute": 2, "value": 5},
        {"sensor": "b", "minute": 7, "value": 6},
        {"sensor": "a", "minute": 71, "value": 2},
        {"sensor": "b", "minute": 12, "value": 7},
    ]
}

app = mp.App("per-key-clock", state_dir="memory://")
values = app.stream("values", mp.sources.rows(ROWS["values"]), timestamp="minute")
windowed = values.key_by("sensor").window("tens", mp.tumbling(10), grace=mp.NO_GRACE, clock="key")
windowed.aggregate(total=mp.sum("value")).to("totals", mp.sinks.console())

if __name__ == "__main__":
    app.run(until="caught-up", max_rows=1, close_at_end=True)
