"""The global window: all rows of a key, forever. A trigger decides when it emits its result.

It needs no time and accepts no grace. Rows since the last pane are emitted when the input ends.

    python examples/windows/global_window.py

It reads one row per batch, and the input ends after the last one. It prints:

    ratings: {"city": "Rome", "window_start": null, "window_end": null, "pane": 0, "final": false, "n": 2, "mean": 4.5}
    ratings: {"city": "Rome", "window_start": null, "window_end": null, "pane": 1, "final": false, "n": 4, "mean": 4.25}
    ratings: {"city": "Rome", "window_start": null, "window_end": null, "pane": 2, "final": true, "n": 5, "mean": 3.6}
"""

from __future__ import annotations

import millpond as mp

ROWS = {"votes": [{"city": "Rome", "stars": stars} for stars in (4, 5, 3, 5, 1)]}

app = mp.App("global", state_dir="memory://")
votes = app.stream("votes", mp.sources.rows(ROWS["votes"]))
windowed = votes.key_by("city").window("ever", mp.global_window(), trigger=mp.triggers.every_rows(2))
windowed.aggregate(n=mp.count(), mean=mp.mean("stars")).to("ratings", mp.sinks.console())

if __name__ == "__main__":
    app.run(until="caught-up", max_rows=1, close_at_end=True)
