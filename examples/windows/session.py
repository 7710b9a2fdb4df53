"""Session windows: visits to a site, ended by more than 30 minutes without a click.

Clicks arrive out of order. The one of 12:25 is between two visits and merges them; all pages are kept, in the order of
arrival.

    python examples/windows/session.py

It reads one row per batch, and the input ends after the last one. It prints:

    visits: "ann 12:00 to 12:50: / /pay /cart"
    visits: "ann 14:00 to 14:00: /"
"""

from __future__ import annotations

from typing import Any

import millpond as mp

ROWS = {
    "clicks": [
        {"user": "ann", "at": "2024-05-01T12:00:00Z", "page": "/"},
        {"user": "ann", "at": "2024-05-01T12:50:00Z", "page": "/pay"},
        {"user": "ann", "at": "2024-05-01T12:25:00Z", "page": "/cart"},
        {"user": "ann", "at": "2024-05-01T14:00:00Z", "page": "/"},
    ]
}


def line(visit: dict[str, Any]) -> str:
    return f"{visit['user']} {visit['window_start']:%H:%M} to {visit['window_end']:%H:%M}: {' '.join(visit['pages'])}"


app = mp.App("session", state_dir="memory://")
clicks = app.stream("clicks", mp.sources.rows(ROWS["clicks"]), timestamp="at")
windowed = clicks.key_by("user").window("sessions", mp.session("30m"), grace="1h")
windowed.aggregate(pages=mp.collect("page")).map(line).to("visits", mp.sinks.console())

if __name__ == "__main__":
    app.run(until="caught-up", max_rows=1, close_at_end=True)
