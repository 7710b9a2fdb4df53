"""Running totals per key from one topic to another on Spark. What the tests kill, or what kills its own workers.

Arguments: servers, source, target, state directory, then either "steps" and a seed (the Python workers are killed once
at each step of the commit protocol, or soon after), or a step, when, and a number: there the whole process group is
killed.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import millpond as mp

STEPS = ("plan", "compute", "commit", "deliver", "acknowledge", "tidy")


def add(key: str, row: dict[str, Any], total: int) -> tuple[dict[str, Any], int]:
    total += row["value"]
    return {"id": row["id"], "key": key, "total": total}, total


def kill_workers(chance: random.Random) -> Callable[[str, str], None]:
    """Return a hook that kills the workers at each step once, each time in another batch.

    It starts with the second batch, when the workers have producers.
    """
    from processes import descendants, workers

    batches = chance.sample(range(2, len(STEPS) + 2), len(STEPS))
    left = {(step, chance.choice(("before", "after"))): batch for step, batch in zip(STEPS, batches, strict=True)}
    seen: dict[tuple[str, str], int] = {}

    def kill(where: str, *, with_delivery: bool) -> None:
        killed = workers(os.getpid())
        killed += descendants(os.getpid(), "delivery_process") if with_delivery else []
        for pid in killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        print(f"killed {len(killed)} processes at {where}", flush=True)

    def hook(step: str, when: str) -> None:
        seen[step, when] = seen.get((step, when), 0) + 1
        if seen[step, when] == left.get((step, when)):
            wait, with_delivery = chance.choice((0.0, chance.uniform(0.0, 0.2))), chance.random() < 0.3
            act = functools.partial(kill, step, with_delivery=with_delivery)
            threading.Timer(wait, act).start() if wait else act()

    return hook


def kill_driver(how: list[str]) -> Callable[[str, str], None]:
    """Return a hook that kills the whole process group at a step."""
    seen: dict[tuple[str, str], int] = {}

    def hook(step: str, when: str) -> None:
        seen[step, when] = seen.get((step, when), 0) + 1
        if [step, when, str(seen[step, when])] == how:
            os.killpg(0, signal.SIGKILL)

    return hook


def run_program() -> None:
    """Run the app until all rows are read."""
    servers, source, target, state, *how = sys.argv[1:]
    logging.basicConfig(level=logging.WARNING)
    app = mp.App("totals", state, partitions=4)
    rows = app.stream("rows", mp.sources.kafka(source, servers=servers))
    sink = mp.sinks.kafka(target, servers=servers, key="key", options={"transactional.id": target})
    rows.key_by("key").stateful_map("total", add, initial=0).to("out", sink)
    hook = kill_workers(random.Random(int(how[1]))) if how[:1] == ["steps"] else kill_driver(how)
    mp.lowlevel.run_with(app, mp.lowlevel.Settings(until="caught-up", max_rows=40), hook=hook)


if __name__ == "__main__":
    run_program()
