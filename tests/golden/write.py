"""Write the state directory and the savepoint that every later version must be able to read.

    cd tests && python -m golden.write format-1

It was run once for each format, and refuses to write over what is there: that must never change.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from golden.program import app, feed, run, shown

BATCHES = 6  # of input; it is compacted in the middle, and the last ones are not


def write(target: Path) -> None:
    """Run the program, and keep what it leaves."""
    target.mkdir()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        feed(folder, range(BATCHES))
        made = app(folder, partitions=2, compact_every=3, keep=1)
        newest = run(made)
        made.savepoint(target / "savepoint")
        shutil.copytree(folder / "state", target / "state", ignore=shutil.ignore_patterns("heartbeat.json"))
        what = {"batches": BATCHES, "newest": newest, "state": shown(made)}
        (target / "expected.json").write_text(json.dumps(what, indent=1) + "\n")


if __name__ == "__main__":
    write(Path(__file__).parent / sys.argv[1])
