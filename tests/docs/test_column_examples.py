"""The functions over columns that the docs show give the results of a plain loop over the rows, in any batches."""

from __future__ import annotations

import math
import random
import runpy
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from doc_pages import DOCS, ROOT, blocks, working_in

import millpond as mp

pytest.importorskip("polars")

ALPHA = 0.5
STATES: dict[str, dict[str, Any]] = {
    "score": {"n": int, "first": float, "total": float, "squares": float},
    "smooth": {"ema": float},
    "example": {"ema": float},
}


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Callable[..., Any]]]:
    """The functions of the how-to and of the example, by the names in `STATES`."""
    page = ModuleType("a_page")
    found = [block for block in blocks(DOCS / "how-to" / "columns.md") if block.language == "python"]
    with working_in(tmp_path_factory.mktemp("page"), "a_page"):
        for block in found:
            exec(compile(block.text, str(block.page), "exec", dont_inherit=True), vars(page))
        example = runpy.run_path(str(ROOT / "examples" / "sensors.py"))["smooth"]
        yield {"score": page.score, "smooth": page.smooth, "example": example}


def ordinary(n: int, pick: random.Random) -> list[Any]:
    return [round(pick.uniform(15, 25), 2) for _ in range(n)]


def huge(n: int, pick: random.Random) -> list[Any]:
    return [1e12 + 1e9 * pick.random() for _ in range(n)]


def integers(n: int, pick: random.Random) -> list[Any]:
    return [pick.randint(15, 25) for _ in range(n)]


def equal(n: int, pick: random.Random) -> list[Any]:
    return [20.1] * n


def gaps(n: int, pick: random.Random) -> list[Any]:
    return [pick.choice([None, math.nan, math.inf, pick.uniform(15, 25)]) for _ in range(n)]


def nothing(n: int, pick: random.Random) -> list[Any]:
    return [None] * n


KINDS = [ordinary, huge, integers, equal, gaps, nothing]


def readings(kinds: list[Callable[..., list[Any]]], seed: int) -> list[dict[str, Any]]:
    """Rows of a sensor of each kind, mixed, each with its readings in their order."""
    pick = random.Random(seed)
    values = {kind.__name__: iter(kind(12, pick)) for kind in kinds}
    names = [name for name in values for _ in range(12)]
    pick.shuffle(names)
    return [{"sensor": name, "celsius": next(values[name])} for name in names]


def outputs_and_states(f: Callable[..., Any], state: dict[str, Any], batches: list[list[Any]]) -> tuple[Any, Any]:
    app = mp.App("columns", partitions=1)
    keyed = app.stream("rows", mp.sources.rows([])).key_by("sensor")
    keyed.apply_batch("step", f, state=state).to("out", mp.sinks.memory())
    with mp.testing.TestDriver(app) as driver:
        for batch in batches:
            driver.send("rows", batch)
        column = {"score": "z"}.get(f.__name__, "ema")
        return [row[column] for row in driver.output("out")], dict(driver.state("step").items())


def random_batches(rows: list[Any], seed: int) -> list[list[Any]]:
    pick = random.Random(seed)
    ends = [0, *sorted(pick.sample(range(1, len(rows)), 7)), len(rows)]
    return [rows[start:end] for start, end in pairwise(ends)]


def is_usable(value: Any) -> bool:
    return value is not None and math.isfinite(value)


def plain_averages(rows: list[dict[str, Any]]) -> list[float | None]:
    last: dict[str, float] = {}
    found: list[float | None] = []
    for row in rows:
        sensor, value = row["sensor"], row["celsius"]
        if is_usable(value):
            last[sensor] = last.get(sensor, value) * (1 - ALPHA) + value * ALPHA
        found.append(last[sensor] if is_usable(value) else None)
    return found


def plain_scores(rows: list[dict[str, Any]]) -> list[float | None]:
    """The scores from all earlier readings, in two passes over them."""
    earlier: dict[str, list[float]] = {}
    found: list[float | None] = []
    for row in rows:
        value, before = row["celsius"], earlier.setdefault(row["sensor"], [])
        if not is_usable(value):
            found.append(None)
            continue
        is_spread = len(set(before)) > 1
        found.append(float((value - np.mean(before)) / np.std(before)) if is_spread else 0.0)
        before.append(value)
    return found


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("kinds", [*([kind] for kind in KINDS), KINDS], ids=[*(k.__name__ for k in KINDS), "together"])
def test_batches_do_not_change_the_results_of_an_example(name, kinds, functions):
    f, state = functions[name], STATES[name]
    rows = readings(kinds, seed=1)
    one_by_one = outputs_and_states(f, state, [[row] for row in rows])
    for batches in ([rows], random_batches(rows, 2), random_batches(rows, 3)):
        assert outputs_and_states(f, state, batches) == one_by_one
    plain = plain_scores(rows) if name == "score" else plain_averages(rows)
    for found, expected in zip(one_by_one[0], plain, strict=True):
        if expected is None:
            assert found is None
        else:
            assert math.isclose(found, expected, rel_tol=1e-9, abs_tol=0.0051)


@pytest.mark.parametrize("name", STATES)
def test_a_sensor_does_not_change_the_results_of_another(name, functions):
    f, state = functions[name], STATES[name]
    rows = readings(KINDS, seed=4)
    together, states = outputs_and_states(f, state, [rows])
    for kind in KINDS:
        own = [row for row in rows if row["sensor"] == kind.__name__]
        alone, state_alone = outputs_and_states(f, state, [own])
        assert alone == [found for row, found in zip(rows, together, strict=True) if row in own]
        assert state_alone.get(kind.__name__) == states.get(kind.__name__)


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.float32(), pa.float64()], ids=str)
def test_an_example_takes_readings_of_any_numeric_type(name, kind, functions):
    rows = pa.table({"sensor": ["a", "b", "a", "a"], "celsius": pa.array([20, 1, None, 24], kind)})
    app = mp.App("columns", partitions=1)
    keyed = app.stream("rows", mp.sources.rows([])).map_batch(lambda _: rows).key_by("sensor")
    keyed.apply_batch("step", functions[name], state=STATES[name]).to("out", mp.sinks.memory())
    with mp.testing.TestDriver(app) as driver:
        driver.send("rows", [{"n": 1}])
        column = "z" if name == "score" else "ema"
        expected = [0.0, 0.0, None, 0.0] if name == "score" else [20.0, 1.0, None, 22.0]
        assert [row[column] for row in driver.output("out")] == expected
        assert sorted(dict(driver.state("step").items())) == ["a", "b"]
