"""Running totals per key over a growing folder, until it is stopped: what the kill tests kill."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import millpond as mp

folder = Path(sys.argv[1])
app = mp.App("totals", str(folder / "state"), partitions=2, local_dir=str(folder / "local"))


def add(key: str, row: dict[str, Any], total: int) -> tuple[dict[str, Any], int]:
    total += row["value"]
    return {"id": row["id"], "key": key, "total": total}, total


rows = app.stream("rows", mp.sources.files(folder / "in"))
rows.key_by("key").stateful_map("total", add, initial=0).to("out", mp.sinks.files(folder / "out"))

if __name__ == "__main__":
    app.run(every="50ms", max_rows=400, standby="standby" in sys.argv[2:])
