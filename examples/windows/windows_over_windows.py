"""Windows over windows: the busiest minute of every five.

The output of a window has a time, the last instant of the window, so it can be put into windows again. The watermark of
the outer step waits for what the inner one may still emit, so no output of the inner step is late.

    python examples/windows/windows_over_windows.py

It reads one row per batch, and the input ends after the last one. It prints:

    busiest: {"line": "1", "window_start": 0, "window_end": 300, "pane": 0, "final": true, "most": 3}
    busiest: {"line": "1", "window_start": 300, "window_end": 600, "pane": 0, "final": true, "most": 1}
    busiest: {"line": "1", "window_start": 600, "window_end": 900, "pane": 0, "final": true, "most": 1}
"""

from __future__ import annotations

import millpond as mp

ROWS = {"calls": [{"line": "1", "second": second} for second in (10, 70, 80, 90, 200, 310, 700)]}

app = mp.App("windows-over-windows", state_dir="memory://")
calls = app.stream("calls", mp.sources.rows(ROWS["calls"]), timestamp="second").key_by("line")
minutes = calls.window("minutes", mp.tumbling(60), grace=mp.NO_GRACE).aggregate(calls=mp.count())
fives = minutes.window("fives", mp.tumbling(300), grace=mp.NO_GRACE)
fives.aggregate(most=mp.max("calls")).to("busiest", mp.sinks.console())

if __name__ == "__main__":
    app.run(until="caught-up", max_rows=1, close_at_end=True)
