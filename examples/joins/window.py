"""Window join: every pair of a click and a purchase of the same user in the same ten minutes, emitted after these.

A purchase without a click is emitted alone.

    python examples/joins/window.py

It reads one row of each stream per batch, and the input ends after the last one. It prints:

    seen: {"user": "ann", "minute": 1, "page": "/", "minute_right": 5, "item": "tea"}
    seen: {"user": "ann", "minute": 4, "page": "/tea", "minute_right": 5, "item": "tea"}
    seen: {"user": "bob", "minute": 8, "item": "cup"}
    seen: {"user": "ann", "minute": 25, "page": "/", "minute_right": 26, "item": "pen"}
"""

from __future__ import annotations

import millpond as mp

ROWS = {
    "clicks": [
        {"user": "ann", "minute": 1, "page": "/"},
        {"user": "ann", "minute": 4, "page": "/tea"},
        {"user": "ann", "minute": 13, "page": "/pen"},
        {"user": "ann", "minute": 25, "page": "/"},
    ],
    "purchases": [
        {"user": "ann", "minute": 5, "item": "tea"},
        {"user": "bob", "minute": 8, "item": "cup"},
        {"user": "ann", "minute": 26, "item": "pen"},
    ],
}

app = mp.App("window-join", state_dir="memory://")
clicks = app.stream("clicks", mp.sources.rows(ROWS["clicks"]), timestamp="minute").key_by("user")
purchases = app.stream("purchases", mp.sources.rows(ROWS["purchases"]), timestamp="minute").key_by("user")
joined = clicks.join_window("tens", purchases, mp.tumbling(10), grace=mp.NO_GRACE, how="right")
joined.to("seen", mp.sinks.console())

if __name__ == "__main__":
    app.run(until="caught-up", max_rows=1, close_at_end=True)
