"""`history`, `get`, `at` and `changes` tell the same story, also where a rollback or a restore is a part of it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from small_lives import Life

import millpond as mp


def kept(row: Any, state: mp.State) -> None:
    if row["v"] == 0:
        state.clear()
        return
    state.set("n", row["v"])
    state.list("all").append(row["v"])
    state.map("seen")[row["v"]] = True


def build(streams: Any) -> Any:
    return streams["rows"].apply("s", kept)


def row(v: int, k: str = "a") -> dict[str, Any]:
    return {"k": k, "t": 1, "v": v}


def check(app: mp.App, keys: str = "ab") -> None:
    """All ways to read the past agree on all keys, at every record."""
    state, newest = app.state("s"), mp.open(app.state_dir, app.name).newest.number
    folded: dict[Any, dict[str, Any]] = {key: {} for key in keys}
    changes = list(app.changes("s"))
    for number in range(newest + 1):
        for change in (c for c in changes if c.batch == number):
            assert change.deleted is (change.value is None)
            folded[change.key].pop(change.cell, None)
            if not change.deleted:
                folded[change.key][change.cell] = change.value
        then = state.at(number)
        for key in keys:
            past = [moment for moment in state.history(key) if moment.batch <= number]
            value = past[-1].value if past else None
            assert value == then.get(key), (number, key)
            assert folded[key].get("v:n") == (value or {}).get("n"), (number, key)
            assert sum(cell.startswith("m:") for cell in folded[key]) == len((value or {}).get("seen", ()))
    for key in keys:
        values = [moment.value for moment in state.history(key)]
        assert (values[-1] if values else None) == state.get(key)
        assert all(one != other for one, other in pairwise(values)), "an entry is a change"


STORIES: dict[str, Callable[[Life], Any]] = {
    "a rollback": lambda life: life.undo(2),
    "to before a key": lambda life: life.undo(3),
    "two rollbacks": lambda life: [life.undo(1), life.send(row(7)), life.undo(2), life.send(row(8))],
    "a rollback after a compaction": lambda life: [life.compact(), life.undo(2), life.compact()],
    "a rollback after a rescale": lambda life: [life.rescale(3), life.send(row(6)), life.undo(2)],
    "a restore": lambda life: [life.move(), *(life.send(row(v, "b")) for v in (6, 7)), life.undo(1)],
}


@pytest.mark.parametrize("story", STORIES)
def test_the_ways_to_read_the_past_agree(story: str) -> None:
    with Life(build, partitions=2) as life:
        for v, k in [(1, "a"), (2, "a"), (3, "b"), (0, "a"), (4, "a")]:
            life.send(row(v, k))
        STORIES[story](life)
        if story != "a restore":
            check(life.stop())
        life.send(row(5), row(5, "b"))
        if story != "a restore":  # what was restored is not among the changes
            check(life.stop())
        else:
            state = life.stop().state("s")
            for key in "ab":
                assert [m.value for m in state.history(key)][-1] == state.get(key)
            assert [m.value["n"] for m in state.history("a")] == [4, 5]


def test_a_rollback_is_an_entry_of_the_history_under_its_own_number() -> None:
    with Life(build) as life:
        for v in (1, 2, 3):
            life.send(row(v))
        life.undo(2)
        app = life.stop()
        history = [(m.batch, m.value["n"]) for m in app.state("s").history("a")]
        assert [n for _, n in history] == [1, 2, 3, 1] and history[-1][0] > life.batches[-1] + 2
        undone = [(c.cell, c.value) for c in app.changes("s") if c.batch == history[-1][0]]
        assert ("v:n", 1) in undone and ("m:seen:3", None) in undone
