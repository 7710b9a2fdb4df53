"""A flipped bit that a function meets in its state is no error of the row: the replica is rebuilt, no row is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from damaged_replicas import flip

import millpond as mp
from millpond.testing import TestDriver


def count(row: Any, state: mp.State) -> Any:
    try:
        n = (state.get("n") or {"n": 0})["n"] + 1
    except Exception:  # of a function that takes any trouble for a missing value
        n = -1
    state.set("n", {"marker": f"MARKER-{state.key}", "n": n})
    return {"k": state.key, "n": n}


class Counting:
    def on_row(self, key: Any, row: Any, state: mp.State, timers: mp.Timers) -> Any:
        return count(row, state)


def count_together(rows: pa.Table, states: pa.Table) -> Any:
    before = {state["k"]: (state["n"] or {"n": 0})["n"] for state in states.to_pylist()}
    new = [{"marker": f"MARKER-{k}", "n": n + 1} for k, n in before.items()]
    return rows, pa.table({"k": states["k"], "n": pa.array(new, MARKED)})


MARKED = pa.struct([("marker", pa.string()), ("n", pa.int64())])
STEPS = {
    "apply_batch": lambda keyed: keyed.apply_batch("n", count_together, state={"n": MARKED}),
    "apply": lambda keyed: keyed.apply("n", count),
    "process": lambda keyed: keyed.process("n", Counting),
    "stateful_filter": lambda keyed: keyed.stateful_filter("n", count).map(lambda row: {**row, "n": None}),
}


def stores(home: Path) -> set[Path]:
    return {file.parent for file in home.rglob("data.mdb")}


@pytest.mark.parametrize("on_error", ["stop", "skip", "dead-letter", mp.retry(1, "1ms", then="skip")], ids=str)
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_damage_that_a_function_meets_is_repaired(step: Any, on_error: Any) -> None:
    app = mp.App("d", state_dir="memory://", partitions=1)
    step(app.stream("rows", mp.sources.rows([]), on_error=on_error).key_by("k")).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [{"k": "a"}, {"k": "b"}])
        driver.send("rows", [{"k": "b"}])  # the replica applies the batch before it
        damaged = stores(Path(driver._home))
        flip(Path(driver._home), b"MARKER-a")
        driver.send("rows", [{"k": "a"}, {"k": "b"}])
        assert stores(Path(driver._home)).isdisjoint(damaged)
        assert len(driver.output("out")) == 5
        assert [driver.state("n").get(key)["n"]["n"] for key in "ab"] == [2, 3]
