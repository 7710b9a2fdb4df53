"""The four kinds of interval join differ in which unmatched rows they emit.

Matching rows are at most 5 apart, in either direction.

    python examples/joins/outer.py

It reads one row of each stream per batch, and the input ends after the last one. It prints:

    inner: [1, 1]
    left: [1, 1]
    right: [1, 1]
    outer: [1, 1]
    left: [2, null]
    right: [null, 3]
    outer: [2, null]
    outer: [null, 3]
"""

from __future__ import annotations

from typing import Any, Literal

import millpond as mp

ROWS = {
    "ours": [{"id": "a", "at": 10, "l": 1}, {"id": "b", "at": 12, "l": 2}],
    "theirs": [{"id": "a", "at": 14, "r": 1}, {"id": "c", "at": 13, "r": 3}],
}


def pair(left: dict[str, Any] | None, right: dict[str, Any] | None) -> list[Any]:
    return [left["l"] if left else None, right["r"] if right else None]


app = mp.App("outer", state_dir="memory://")
ours = app.stream("ours", mp.sources.rows(ROWS["ours"]), timestamp="at").key_by("id")
theirs = app.stream("theirs", mp.sources.rows(ROWS["theirs"]), timestamp="at").key_by("id")
hows: tuple[Literal["inner", "left", "right", "outer"], ...] = ("inner", "left", "right", "outer")
for how in hows:
    joined = ours.join_interval(f"{how}-join", theirs, before=5, after=5, grace=mp.NO_GRACE, how=how, merge=pair)
    joined.to(how, mp.sinks.console())

if __name__ == "__main__":
    app.run(until="caught-up", max_rows=1, close_at_end=True)
