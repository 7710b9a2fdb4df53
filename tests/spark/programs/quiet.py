"""Windows and timers over a stream of which nothing more comes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import millpond as mp

folder = Path(sys.argv[1])


class Alarm:
    def on_row(self, key: str, row: dict[str, Any], state: mp.State, timers: mp.Timers) -> None:
        timers.set_wall("alarm", after="2s")

    def on_timer(self, key: str, timer: mp.Timer, state: mp.State, timers: mp.Timers) -> Iterator[dict[str, Any]]:
        yield {"k": key, "quiet": True}


app = mp.App("quiet", str(folder / "state"), partitions=2, local_dir=str(folder / "local"))
rows = app.stream("rows", mp.sources.files(folder / "in"), timestamp="at", idle_after="1s").key_by("k")
rows.window("seconds", mp.tumbling("1s"), grace=mp.NO_GRACE).aggregate(n=mp.count()).to(
    "out", mp.sinks.files(folder / "out")
)
rows.process("alarm", Alarm).to("told", mp.sinks.files(folder / "told"))

if __name__ == "__main__":
    app.run(every="200ms")
