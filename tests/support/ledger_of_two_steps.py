"""An app that moves money between accounts, run in a process of its own: in every commit its two steps agree.

Run as a script with a folder: it runs batches until the folder has a file `stop`, and compacts and prunes as it goes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import millpond as mp

NAME, ACCOUNTS = "bank", 20


def bank(folder: Path) -> mp.App:
    """Return the app: `balance` by account, and `paid` by region, over the same rows; they have the same sum."""
    app = mp.App(NAME, str(folder / "state"), 3, local_dir=str(folder / "local"), keep=4, compact_every=3)
    rows = app.stream("rows", mp.sources.rows([]))
    rows.key_by("account").stateful_map("balance", add, initial=0)
    rows.key_by("region").stateful_map("paid", add, initial=0)
    return app


def add(key: Any, row: dict[str, Any], total: int) -> tuple[None, int]:
    return None, total + row["amount"]


def some_rows(batch: int) -> list[dict[str, Any]]:
    numbers = range(batch * 7, batch * 7 + 30)
    return [{"account": f"a{n % ACCOUNTS}", "region": f"r{n % 4}", "amount": 1 + n % 5} for n in numbers]


def sums(commit: Any) -> tuple[int, int]:
    """Return the sums of the two steps in a commit."""
    return tuple(sum(value for _, value in commit.state(step).items()) for step in ("balance", "paid"))


def run(folder: Path) -> None:
    app, batch = bank(folder), 0
    with mp.testing.TestDriver(app, mp.lowlevel.storage(app)) as driver:
        while not (folder / "stop").exists():
            driver.send("rows", some_rows(batch))
            batch += 1


if __name__ == "__main__":
    run(Path(sys.argv[1]))
