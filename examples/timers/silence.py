"""A timer of event time: report a machine that has sent nothing for 5 minutes, and that it is back.

Every row sets the timer anew. It fires when the watermark has come to it: also when only other machines go on sending.
Timers fire after the rows of a batch, so a row looks whether the one that it replaces has fallen due with it.

    python examples/timers/silence.py

It reads a row per batch, and leaves open what is open when all is read:

    alerts: "m1 is silent since 2024-05-01T12:00:00Z"
    alerts: "m1 is back"
    alerts: "m1 is silent since 2024-05-01T12:09:00Z"
    alerts: "m1 is back"
    alerts: "m2 is silent since 2024-05-01T12:08:00Z"
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import millpond as mp

ROWS = {
    "beats": [
        {"machine": "m1", "at": "2024-05-01T12:00:00Z"},
        {"machine": "m2", "at": "2024-05-01T12:01:00Z"},
        {"machine": "m2", "at": "2024-05-01T12:04:00Z"},
        {"machine": "m2", "at": "2024-05-01T12:08:00Z"},
        {"machine": "m1", "at": "2024-05-01T12:09:00Z"},
        {"machine": "m1", "at": "2024-05-01T12:30:00Z"},
    ]
}


class Silence:
    def on_row(self, machine: str, row: dict[str, Any], state: mp.State, timers: mp.Timers) -> Iterator[str]:
        due = timers.get("silent")
        if due is not None and isinstance(due.at, datetime) and due.at <= datetime.fromisoformat(row["at"]):
            yield self.on_timer(machine, due, state, timers)
        timers.set("silent", after="5m", payload=row["at"])
        if state.exists("silent"):
            state.delete("silent")
            yield f"{machine} is back"

    def on_timer(self, machine: str, timer: mp.Timer, state: mp.State, timers: mp.Timers) -> str:
        state.set("silent", True)
        return f"{machine} is silent since {timer.payload}"


app = mp.App("silence", state_dir="memory://")
beats = app.stream("beats", mp.sources.rows(ROWS["beats"]), timestamp="at")
beats.key_by("machine").process("watch", Silence).to("alerts", mp.sinks.console())

if __name__ == "__main__":
    app.run(until="caught-up", max_rows=1)
