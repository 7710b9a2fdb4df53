"""Which store of windows a batch uses is a pure decision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import millpond as mp
from millpond.rows.rows import Rows, Times
from millpond.steps.windows.columnar.choice import choose_store, fields_as_columns
from millpond.steps.windows.hopping import Grid
from millpond.steps.windows.window_step import WindowStep

STEP = WindowStep(
    name="w",
    window=mp.tumbling(10),
    grace=0,
    trigger=mp.triggers.on_close(),
    panes="accumulate",
    fires="this",
    clock="stream",
    aggregations={"n": mp.count(), "total": mp.sum("v"), "most": mp.max("v"), "mean": mp.mean("w")},
    takes_back=False,
    key_names=("k",),
)
TIMES = Times([1, 2], "number")


def arrow(**columns: Any) -> Rows:
    return Rows(pa.table(columns), [0, 1], form="arrow", times=TIMES)


def test_a_step_that_only_counts_adds_up_and_compares_reads_each_field_once():
    assert fields_as_columns(STEP) == ("v", "w")
    assert fields_as_columns(replace(STEP, window=mp.hopping(10, 5))) == ("v", "w")
    assert fields_as_columns(replace(STEP, aggregations={"n": mp.count()})) == ()


@pytest.mark.parametrize(
    "change",
    [
        {"window": mp.session(5)},
        {"window": mp.sliding(5)},
        {"window": mp.global_window()},
        {"window": mp.count_tumbling(5)},
        {"trigger": mp.triggers.on_update()},
        {"clock": "key"},
        {"takes_back": True},
        {"aggregations": {"all": mp.collect("v")}},
        {"aggregations": {"total": mp.sum(lambda row: row["v"])}},
        {"aggregations": {"total": mp.sum()}},
    ],
)
def test_a_step_that_needs_each_row_has_no_columns(change):
    assert fields_as_columns(replace(STEP, **change)) is None


@pytest.mark.parametrize(
    ("rows", "store"),
    [
        (None, "columns"),
        (arrow(v=[1, 2]), "columns"),
        (arrow(v=[1.5, None]), "columns"),
        (arrow(v=["a", "b"]), "rows"),
        (arrow(v=[True, False]), "rows"),
        (arrow(other=[1, 2]), "rows"),
        (Rows([{"v": 1}, {"v": 2}], [0, 1], times=TIMES), "columns"),
        (Rows([b'{"v":1}', b'{"v":2}'], [0, 1], form="json", times=TIMES), "columns"),
        (Rows([{"v": 1}, {"v": 2}], [0, 1]), "rows"),
    ],
)
def test_the_first_rows_of_a_batch_decide(rows, store):
    assert choose_store(("v",), rows) == store
    assert choose_store(None, rows) == "rows"


def test_the_grid_numbers_windows_and_knows_when_they_close():
    grid = Grid(size=10, every=4, offset=1, grace=2)
    for number in range(-3, 4):
        start = grid.start_of(number)
        assert grid.number_of(start, start + 10) == number
        assert grid.closing_of(number) == grid.closes_at(start + 10)
    assert grid.number_of(2, 12) is None
    assert grid.number_of(1, 12) is None
    for at in range(-20, 20):
        extents = grid.extents_of(at)
        assert all(start <= at < end and grid.number_of(start, end) is not None for start, end in extents)
        for mark in range(-20, 30):
            still_open, closed = grid.split(at, mark)
            assert closed + still_open == extents
            assert all(grid.closes_at(end) <= mark for _, end in closed)
            assert all(grid.closes_at(end) > mark for _, end in still_open)
