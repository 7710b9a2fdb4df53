"""An event-time timer: report when a machine has sent nothing for 5 minutes, and when it is back.

Every row replaces the timer. It fires when the watermark reaches it, even if only other machines send rows. Timers fire
after the rows of a batch, so a row first checks whether the timer that it replaces has become due in the same batch.

    python examples/timers/silence.py

It reads one row per batch, and does not close what is open at the end. It prints:

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
