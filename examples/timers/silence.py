"""A timer of event time: report a machine that has sent nothing for 5 minutes, and that it is back.

Every row sets the timer anew. It fires when the watermark has come to it: also when only other machines go on sending.

    python examples/timers/silence.py

It reads a row per batch, and leaves open what is open when all is read:

    alerts: "m1 is silent since 2024-05-01T12:00:00Z"
    alerts: "m1 is back"
"""

from __future__ import annotations

from typing import Any

import millpond as mp

ROWS = {
    "beats": [
        {"machine": "m1", "at": "2024-05-01T12:00:00Z"},
        {"machine": "m2", "at": "2024-05-01T12:01:00Z"},
        {"machine": "m2", "at": "2024-05-01T12:04:00Z"},
        {"machine": "m2", "at": "2024-05-01T12:08:00Z"},
        {"machine": "m1", "at": "2024-05-01T12:09:00Z"},
    ]
}


class Silence:
    def on_row(self, machine: str, row: dict[str, Any], state: mp.State, timers: mp.Timers) -> str | None:
        timers.set("silent", after="5m", payload=row["at"])
        if not state.exists("silent"):
            return None
        state.delete("silent")
        return f"{machine} is back"

    def on_timer(self, machine: str, timer: mp.Timer, state: mp.State, timers: mp.Timers) -> str:
        state.set("silent", True)
        return f"{machine} is silent since {timer.payload}"


app = mp.App("silence", state_dir="memory://")
beats = app.stream("beats", mp.sources.rows(ROWS["beats"]), timestamp="at")
beats.key_by("machine").process("watch", Silence).to("alerts", mp.sinks.console())

if __name__ == "__main__":
    app.run(until="caught-up", max_rows=1)
