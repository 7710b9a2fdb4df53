"""State that version 1 of the format has restored from a savepoint: rows kept under batch numbers that come again.

    cd tests && python -m golden.restored

It wrote the folder `restored-1` once, with a version that knew only that format; do not change either. Each batch
reads one row of each stream, all of one key and one time. An app read them in batches 1 to 9, and an app called `again`
was restored from its savepoint: the next batches of `again` have the numbers of those whose rows it keeps.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from golden.program import run

import millpond as mp

HERE = Path(__file__).parent / "restored-1"
BATCHES = 9


def app(folder: Path, name: str = "again") -> mp.App:
    """Windows and a join that keep rows in the order of arrival."""
    made = mp.App(name, str(folder / "state"), 1, local_dir=str(folder / "local"))
    left, right = (made.stream(s, mp.sources.files(folder / s), timestamp="t").key_by("k") for s in ("left", "right"))
    windows: dict[str, Any] = {"fixed": mp.tumbling(100), "session": mp.session(50), "sliding": mp.sliding(50)}
    for name_, window in windows.items():
        left.window(name_, window, grace=0).aggregate(all=mp.collect("v"), last=mp.last("v")).to(
            f"{name_} out", mp.sinks.files(folder / "out" / name_)
        )
    pairs = left.join_window("pairs", right, mp.tumbling(100), grace=0)
    pairs.to("pairs out", mp.sinks.files(folder / "out" / "pairs"))
    return made


def feed(folder: Path, batches: range, t: int = 5) -> None:
    for stream in ("left", "right"):
        (folder / stream).mkdir(parents=True, exist_ok=True)
        for batch in batches:
            row: Any = {"k": "a", "t": t, "v": batch} if stream == "left" else {"k": "a", "t": t, "w": batch}
            (folder / stream / f"{batch:04d}.jsonl").write_text(json.dumps(row) + "\n")


if __name__ == "__main__":
    HERE.mkdir()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        feed(folder, range(BATCHES))
        first = app(folder, "first")
        run(first)
        first.compact(keep=1)
        first.savepoint(folder / "saved")
        second = app(folder)
        second.restore(folder / "saved")
        second.savepoint(HERE / "savepoint")
        shutil.copytree(folder / "state" / "again", HERE / "state" / "again")
