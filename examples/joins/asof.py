"""As-of join: each trade with the newest quote at or before its time.

`waiting` holds a trade until the watermark has passed it, so that a quote that arrives late is used, too.

    python examples/joins/asof.py

It reads one row of each stream per batch, and the input ends after the last one. It prints:

    quoted: {"at": 3, "size": 100, "bid": 9.5}
    quoted: {"at": 7, "size": 50, "bid": 9.5}
    waiting: {"at": 3, "size": 100, "bid": 9.5}
    quoted: {"at": 30, "size": 20, "bid": 9.8}
    waiting: {"at": 7, "size": 50, "bid": 9.7}
    waiting: {"at": 30, "size": 20, "bid": 9.8}
"""

from __future__ import annotations

from typing import Any

import millpond as mp

ROWS = {
    "trades": [
        {"paper": "X", "at": 3, "size": 100},
        {"paper": "X", "at": 7, "size": 50},
        {"paper": "X", "at": 30, "size": 20},
    ],
    "quotes": [
        {"paper": "X", "at": 1, "bid": 9.5},
        {"paper": "X", "at": 8, "bid": 9.8},
        {"paper": "X", "at": 6, "bid": 9.7},
    ],
}


def quoted(trade: dict[str, Any], quote: dict[str, Any] | None) -> dict[str, Any]:
    return {"at": trade["at"], "size": trade["size"], "bid": quote["bid"] if quote else None}


app = mp.App("asof", state_dir="memory://")
trades = app.stream("trades", mp.sources.rows(ROWS["trades"]), timestamp="at").key_by("paper")
quotes = app.stream("quotes", mp.sources.rows(ROWS["quotes"]), timestamp="at").key_by("paper")
trades.join_asof("at-once", quotes, keep=100, how="left", merge=quoted).to("quoted", mp.sinks.console())
trades.join_asof("later", quotes, keep=100, how="left", wait=True, merge=quoted).to("waiting", mp.sinks.console())

if __name__ == "__main__":
    app.run(until="caught-up", max_rows=1, close_at_end=True)
