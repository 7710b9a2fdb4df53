"""What version 1 has restored, and what is restored from its savepoints, goes on in the order of arrival."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from golden.program import run
from golden.restored import BATCHES, HERE, app, feed

MORE = 20  # batches that come after: their numbers are those of rows that are kept


@pytest.mark.parametrize("begins", ["with the state", "with its savepoint"])
def test_rows_that_were_kept_before_a_restore_come_before_the_new_ones(begins: str, tmp_path: Path) -> None:
    feed(tmp_path, range(BATCHES))
    made = app(tmp_path)
    if begins == "with the state":
        shutil.copytree(HERE / "state", tmp_path / "state")
    else:
        made.restore(HERE / "savepoint")
    run(made)
    feed(tmp_path, range(BATCHES, BATCHES + MORE))
    run(made)
    feed(tmp_path, range(BATCHES + MORE, BATCHES + MORE + 1), t=1000)
    run(made)

    numbers = list(range(BATCHES + MORE))
    for window in ("fixed", "session", "sliding"):
        (pane,) = held(tmp_path / "out" / window)
        assert (pane["all"], pane["last"]) == (numbers, numbers[-1]), window
    pairs = [(pair["v"], pair["w"]) for pair in held(tmp_path / "out" / "pairs")]
    assert pairs == [(left, right) for left in numbers for right in numbers]


def held(folder: Path) -> list[Any]:
    return [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]
