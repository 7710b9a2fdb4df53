"""TTL: state that expires. A code is valid for 10 minutes, and can be tried 3 times.

Every entry of the step's state expires 10 minutes after it was last written, by event time: it is no longer read, and
is removed from storage.

    python examples/timers/ttl.py

It reads one row per batch, and the input ends after the last one. It prints:

    answers: {"user": "ann", "minute": 2, "good": false}
    answers: {"user": "ann", "minute": 5, "good": true}
    answers: {"user": "ann", "minute": 17, "good": false}
"""

from __future__ import annotations

from typing import Any

import millpond as mp

ROWS = {
    "tries": [
        {"user": "ann", "minute": 1, "send": "1234"},
        {"user": "ann", "minute": 2, "code": "1111"},
        {"user": "ann", "minute": 5, "code": "1234"},
        {"user": "ann", "minute": 6, "send": "5678"},
        {"user": "ann", "minute": 17, "code": "5678"},
    ]
}


def check(row: dict[str, Any], state: mp.State) -> dict[str, Any] | None:
    if "send" in row:
        state.set("code", row["send"])
        state.set("left", 3)
        return None
    good = state.get("left", 0) > 0 and row["code"] == state.get("code")
    state.set("left", state.get("left", 0) - 1)
    return {"user": row["user"], "minute": row["minute"], "good": good}


app = mp.App("codes", state_dir="memory://")
tries = app.stream("tries", mp.sources.rows(ROWS["tries"]), timestamp="minute")
tries.key_by("user").apply("codes", check, ttl=10).to("answers", mp.sinks.console())

if __name__ == "__main__":
    app.run(until="caught-up", max_rows=1, close_at_end=True)
