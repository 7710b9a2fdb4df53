"""Processing-time timers: send a reminder 10 seconds after a basket was filled, unless it was paid meanwhile.

Rows have no event time here. The timer is set again from `on_timer`, so that there are two reminders.

    python examples/timers/basket.py

It runs until you stop it with Ctrl-C. Add clicks from another terminal:

    mkdir -p clicks
    echo '{"customer": "ann", "what": "fill"}' >> clicks/monday.jsonl
    echo '{"customer": "bob", "what": "fill"}' >> clicks/monday.jsonl
    echo '{"customer": "bob", "what": "pay"}' >> clicks/monday.jsonl

Ten seconds later, and again after ten more, it prints:

    remind: {"customer": "ann", "reminder": 1}
    remind: {"customer": "ann", "reminder": 2}
"""

from __future__ import annotations

from typing import Any

import millpond as mp


class Reminder:
    def on_row(self, customer: str, row: dict[str, Any], state: mp.State, timers: mp.Timers) -> None:
        if row["what"] == "pay":
            timers.cancel("remind")
        else:
            timers.set_wall("remind", after="10s", payload=1)

    def on_timer(self, customer: str, timer: mp.Timer, state: mp.State, timers: mp.Timers) -> dict[str, Any]:
        if timer.payload < 2:
            timers.set_wall("remind", after="10s", payload=timer.payload + 1)
        return {"customer": customer, "reminder": timer.payload}


app = mp.App("basket", state_dir="memory://")
clicks = app.stream("clicks", mp.sources.files("clicks/*.jsonl"))
clicks.key_by("customer").process("reminders", Reminder).to("remind", mp.sinks.console())

if __name__ == "__main__":
    app.run(every="1s")
