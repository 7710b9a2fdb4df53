"""Running totals per key from one topic to another on Spark. What the tests kill, or what kills its own workers.

Arguments: servers, source, target, state directory, then either "steps" (the Python workers are killed once at each
step of the commit protocol), or a step, when, and a number: there the whole process group is killed.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import Any

import millpond as mp

STEPS = ("plan", "compute", "commit", "deliver", "acknowledge", "tidy")


def add(key: str, row: dict[str, Any], total: int) -> tuple[dict[str, Any], int]:
    total += row["value"]
    return {"id": row["id"], "key": key, "total": total}, total


def run_program() -> None:
    """Run the app until all rows are read."""
    servers, source, target, state, *how = sys.argv[1:]
    logging.basicConfig(level=logging.WARNING)
    app = mp.App("totals", state, partitions=4)
    rows = app.stream("rows", mp.sources.kafka(source, servers=servers))
    sink = mp.sinks.kafka(target, servers=servers, key="key", options={"transactional.id": target})
    rows.key_by("key").stateful_map("total", add, initial=0).to("out", sink)
    seen: dict[str, int] = {}

    def hook(step: str, when: str) -> None:
        seen[f"{step} {when}"] = count = seen.get(f"{step} {when}", 0) + 1
        if how == ["steps"]:
            # One step per batch, from the second batch on, when the workers have producers
            if when == "after" and step in STEPS and count == STEPS.index(step) + 2:
                from processes import workers

                killed = workers(os.getpid())
                for pid in killed:
                    os.kill(pid, signal.SIGKILL)
                print(f"killed {len(killed)} workers after {step}", flush=True)
        elif how and [step, when, str(count)] == how:
            os.killpg(0, signal.SIGKILL)

    mp.lowlevel.run_with(app, mp.lowlevel.Settings(until="caught-up", max_rows=40), hook=hook)


if __name__ == "__main__":
    run_program()
