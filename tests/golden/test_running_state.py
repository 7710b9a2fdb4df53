"""Running aggregates that an earlier version stored as whole values are read and continued."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from golden.program import run
from golden.running import BATCHES, HERE, app, feed

import millpond as mp

MORE = 5
BY_CHANGES: dict[str, Any] = {
    "initial": list,
    "change": lambda acc, row: row["v"],
    "update": lambda acc, change: [*acc, change],
}


def expected(batches: int) -> dict[str, Any]:
    def of(places: list[int]) -> dict[str, Any]:
        values = [batch * 10 + i for batch in range(batches) for i in places]
        return {"n": len(values), "all": values, "seen": [f"t{i}" for i in range(min(4, batches))], "own": values}

    return {"a": of([0, 2]), "b": of([1])}


@pytest.mark.parametrize("begins", ["with the state", "with its savepoint"])
@pytest.mark.parametrize("own", [{}, BY_CHANGES], ids=["whole", "changes"])
def test_whole_values_are_continued_with_changes(begins: str, own: dict[str, Any], tmp_path: Path) -> None:
    feed(tmp_path, range(BATCHES))
    made = app(tmp_path, **own)
    if begins == "with the state":
        shutil.copytree(HERE / "state", tmp_path / "state")
    else:
        made.restore(HERE / "savepoint")
    assert dict(mp.open(str(tmp_path / "state"), "running").state("agg").items()) == expected(BATCHES)
    for batch in range(BATCHES, BATCHES + MORE):
        feed(tmp_path, range(batch, batch + 1))
        run(made)
    assert dict(made.state("agg").items()) == expected(BATCHES + MORE)
    assert made.verify().ok
