"""`every`: a pane every 3 seconds of processing time if anything is new, as long as the window is open.

Rows arrive once a second, and it runs until you stop it with Ctrl-C. A pane does not need a row to arrive.

    python examples/triggers/every.py

With a batch every second it first prints:

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
