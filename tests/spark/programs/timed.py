"""Windows, timers, a TTL and a join over two growing folders: what the kill test of event time kills."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import millpond as mp

DISORDER, BUCKET, NEAR = 40, 100, 3
folder = Path(sys.argv[1])


class Buckets:
    """Counts the rows of each bucket of time, and tells when it is over."""

    def on_row(self, key: str, row: dict[str, Any], state: mp.State, timers: mp.Timers) -> None:
        bucket = row["at"] // BUCKET
        counts = state.map("counts")
        counts[bucket] = counts.get(bucket, 0) + 1
        timers.set(f"end of {bucket}", at=(bucket + 1) * BUCKET, payload=bucket)

    def on_timer(self, key: str, timer: mp.Timer, state: mp.State, timers: mp.Timers) -> Iterator[dict[str, Any]]:
        yield {"key": key, "bucket": timer.payload, "n": state.map("counts").pop(timer.payload)}


def both(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    return {"left": left["id"], "right": None if right is None else right["id"]}


def build() -> mp.App:
    app = mp.App(
        "timed", str(folder / "state"), partitions=2, local_dir=str(folder / "local"), compact_every=10, keep=30
    )
    rows = app.stream("rows", mp.sources.files(folder / "in"), timestamp="at", disorder=DISORDER)
    others = app.stream("others", mp.sources.files(folder / "other"), timestamp="at", disorder=DISORDER)
    keyed = rows.key_by("key")
    windowed = keyed.window("sums", mp.tumbling(BUCKET), grace=mp.NO_GRACE)
    windowed.aggregate(n=mp.count(), total=mp.sum("value")).to("windows", mp.sinks.files(folder / "windows"))
    windowed.late.to("late", mp.sinks.files(folder / "late"))
    keyed.process("buckets", Buckets).to("timers", mp.sinks.files(folder / "timers"))
    keyed.deduplicate("once", by="id", within=5 * BUCKET).to("ids", mp.sinks.files(folder / "ids"))
    keyed.join_interval(
        "near", others.key_by("key"), before=NEAR, after=NEAR, grace=mp.NO_GRACE, how="left", merge=both
    ).to("pairs", mp.sinks.files(folder / "pairs"))
    return app


if __name__ == "__main__":
    if len(sys.argv) > 2:
        build().run(until="caught-up", close_at_end=True)
    else:
        build().run(every="50ms", max_rows=300)
