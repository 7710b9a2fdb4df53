"""Two streams in one window: the clicks and the purchases of a user in the same ten minutes, side by side.

`join_window` emits pairs; this emits one row per window. The two streams are united, and each aggregate uses the rows
of one of them.

    python examples/joins/side_by_side.py

It reads one row of each stream per batch, and the input ends after the last one. It prints:

    both: [0, "ann", ["/", "/tea"], ["tea"]]
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
        {"user": "bob", "minute": 26, "item": "pen"},
    ],
}


def field(name: str) -> mp.Aggregation:
    """The values of a field, of the rows that have it."""
    return mp.aggregation(
        initial=[],
        update=lambda found, row: [*found, row[name]] if name in row else found,
        merge=lambda one, other: one + other,
    )


app = mp.App("side-by-side", state_dir="memory://")
clicks = app.stream("clicks", mp.sources.rows(ROWS["clicks"]), timestamp="minute")
purchases = app.stream("purchases", mp.sources.rows(ROWS["purchases"]), timestamp="minute")
windowed = clicks.union(purchases).key_by("user").window("tens", mp.tumbling(10), grace=mp.NO_GRACE)
together = windowed.aggregate(pages=field("page"), items=field("item"))
both = together.filter(lambda pane: pane["pages"] and pane["items"])
both.map(lambda pane: [pane["window_start"], pane["user"], pane["pages"], pane["items"]]).to("both", mp.sinks.console())

if __name__ == "__main__":
    app.run(until="caught-up", max_rows=1, close_at_end=True)
