"""`every`: a pane every 3 seconds of the clock, where anything is new, for as long as the window is open.

Rows come once a second, and it goes on until you stop it with Ctrl-C. No row needs to come for a pane.

    python examples/triggers/every.py

With a batch every second it prints, to begin with:

    panes: "pane 0: 3 rows, the last is number 2"
    panes: "pane 1: 6 rows, the last is number 5"
"""

from __future__ import annotations

from typing import Any

import millpond as mp


def line(pane: dict[str, Any]) -> str:
    return f"pane {pane['pane']}: {pane['n']} rows, the last is number {pane['last']}"


app = mp.App("every", state_dir="memory://")
ticks = app.stream("ticks", mp.sources.rate(1), timestamp="timestamp")
windowed = ticks.key_by(lambda tick: 0).window("all", mp.global_window(), trigger=mp.triggers.every("3s"))
windowed.aggregate(n=mp.count(), last=mp.last("value")).map(line).to("panes", mp.sinks.console())

if __name__ == "__main__":
    app.run(every="1s")
