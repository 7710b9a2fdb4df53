"""Running aggregates of format 3 that were stored as whole values, before batches stored what they change.

    cd tests && python -m golden.running

It wrote the folder `running-3` once, with a version that stored them so; do not change either.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from golden.program import run

import millpond as mp

HERE = Path(__file__).parent / "running-3"
BATCHES = 6


def app(folder: Path, **own: Any) -> mp.App:
    """Aggregates that grow, beside one that does not."""
    made = mp.App("running", str(folder / "state"), 2, local_dir=str(folder / "local"))
    keyed = made.stream("rows", mp.sources.files(folder / "in")).key_by("k")
    keyed.aggregate(
        "agg",
        n=mp.count(),
        all=mp.collect("v"),
        seen=mp.distinct("tag"),
        own=mp.aggregation(**(own or {"initial": list, "update": lambda acc, row: [*acc, row["v"]]})),
    )
    return made


def feed(folder: Path, batches: range) -> None:
    (folder / "in").mkdir(parents=True, exist_ok=True)
    for batch in batches:
        rows = [{"k": key, "v": batch * 10 + i, "tag": f"t{batch % 4}"} for i, key in enumerate("aba")]
        (folder / "in" / f"{batch:04d}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    HERE.mkdir()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        feed(folder, range(BATCHES))
        made = app(folder)
        run(made)
        made.savepoint(HERE / "savepoint")
        shutil.copytree(folder / "state" / "running", HERE / "state" / "running")
