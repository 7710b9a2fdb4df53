"""Explore scenarios from a shell, against any checkout: `PYTHONPATH=<src>:tests/protocol python explore_by_hand.py`."""

from __future__ import annotations

import argparse
import logging
import re
import shutil
import tempfile
import time
from pathlib import Path

from exploring import Explorer, shortened
from protocol_world import Outcome, play
from scenarios import SCENARIOS
from scheduling import KINDS, Policy, from_text

import millpond


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", nargs="*", default=[])
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--failures", type=int, default=1)
    parser.add_argument("--before", nargs="*", default=["effect", "look"], choices=KINDS)
    parser.add_argument("--no-kills", action="store_true")
    parser.add_argument("--replay")
    parser.add_argument("--shorten", action="store_true")
    parser.add_argument("--trace", action="store_true")
    given = parser.parse_args()
    print(millpond.__file__)
    logging.disable(logging.WARNING)
    base = Path(tempfile.mkdtemp(prefix="millpond-model-", dir="/dev/shm"))
    try:
        for name in given.scenario or SCENARIOS:
            if given.replay is not None:
                outcome = play(SCENARIOS[name], Policy(from_text(given.replay)), base / "replay")
                outcome = shortened(SCENARIOS[name], outcome, base / "short") if given.shorten else outcome
                if given.trace:
                    print("\n".join(f"{p.step:4d} {p.actor:10s} {p.call}" for p in outcome.points))
                print(outcome)
                continue
            began = time.monotonic()
            explorer = Explorer(SCENARIOS[name], base / name, given.seconds, given.failures)
            found = explorer.exhaust(given.turns, before=tuple(given.before), kills=not given.no_kills)
            if given.random:
                found = explorer.wander(given.seed, given.random)
            took = time.monotonic() - began
            what = f"{'all' if found.complete else 'not all'} with {given.turns} turns"
            print(f"{name}: {found.runs} runs ({what}), {len(found.failures)} failures, {took:.1f} s")
            shapes: dict[str, list[Outcome]] = {}
            for failure in found.failures:
                shape = " | ".join(sorted({re.sub(r"[0-9a-f]{16}|[0-9]+", "#", v)[:100] for v in failure.violations}))
                shapes.setdefault(shape, []).append(failure)
            for failures in shapes.values():
                shortest = shortened(SCENARIOS[name], min(failures, key=lambda f: len(f.schedule)), base / "short")
                print(f"{len(failures)} times, such as {shortest}")
                shutil.rmtree(base / "short", ignore_errors=True)
    finally:
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
