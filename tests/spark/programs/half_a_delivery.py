"""A sink that takes two rows of a delivery and dies with the driver; later it takes them all."""

import json
import os
import signal
import sys
from pathlib import Path

import millpond as mp

folder, how = Path(sys.argv[1]), sys.argv[2]


def add(key, row, total):
    total += row["value"]
    return {"key": key, "total": total}, total


def take(rows, delivery):
    (folder / "out").mkdir(exist_ok=True)
    with open(folder / "out" / f"{delivery.id.replace('/', '-')}.jsonl", "w") as file:
        for i, row in enumerate(rows):
            if how == "die" and i == 2:
                file.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            file.write(json.dumps(row) + "\n")


app = mp.App("half", str(folder / "state"), partitions=1, local_dir=str(folder / "local"))
rows = app.stream("rows", mp.sources.files(folder / "in"))
rows.key_by("key").stateful_map("sum", add, initial=0).to("out", mp.sinks.function(take))

if __name__ == "__main__":
    app.run(until="caught-up")
