"""Rows count in the order of arrival, and windows that the end of the input has closed stay closed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_windows import row, rows, sent, windowed

import millpond as mp
from millpond.testing import TestDriver

KEEPING = {
    "all": mp.collect("v"),
    "once": mp.distinct("v"),
    "first": mp.first("v"),
    "last": mp.last("v"),
    "top": mp.top(9, "v", by=lambda row: 0),
    "own": mp.aggregation(initial=list, update=lambda acc, row: [*acc, row["v"]], merge=lambda a, b: a + b),
}


def test_an_old_row_that_joins_a_session_opened_by_a_later_row_of_its_batch_keeps_its_place() -> None:
    app = windowed(mp.session(10), KEEPING, grace=0)
    with TestDriver(app) as driver:
        driver.send("rows", rows((0, 100, "b")))
        # 82 is late by itself; 91 leads from it to 95, which is on time.
        driver.send("rows", rows((1, 82), (2, 95), (3, 91), (4, 96)))
        driver.finish()
        (found,) = [o for o in driver.output("out") if o["k"] == "a"]
        assert (found["window_start"], found["window_end"]) == (82, 96)
        assert found["all"] == found["once"] == found["top"] == found["own"] == [1, 2, 3, 4]
        assert (found["first"], found["last"]) == (1, 4)
        assert driver.output("late") == []


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60)), max_size=6), min_size=1, max_size=4),
    st.sampled_from([0, 5]),
)
def test_what_a_session_keeps_is_in_the_order_of_arrival(batches: list[Any], grace: int) -> None:
    app, number = windowed(mp.session(6), KEEPING, grace=grace), 0
    with TestDriver(app) as driver:
        for batch in batches:
            numbered = [row(number + i, t, k) for i, (k, t) in enumerate(batch)]
            number += len(batch)
            driver.send("rows", numbered)
        driver.finish()
        late = {letter["row"]["v"] for letter in driver.output("late")}
        kept = [v for o in driver.output("out") for v in o["all"]]
        assert sorted([*kept, *late]) == list(range(number))
        for o in driver.output("out"):
            # No row of an earlier batch comes after one of a later batch, and within a batch none after a later one.
            assert o["all"] == o["once"] == sorted(o["all"])
            assert (o["first"], o["last"]) == (o["all"][0], o["all"][-1])


def test_a_row_that_waits_in_vain_is_late_and_the_others_of_its_key_are_not() -> None:
    app = windowed(mp.session(10), KEEPING, grace=0)
    with TestDriver(app) as driver:
        driver.send("rows", rows((0, 100, "b")))
        driver.send("rows", rows((1, 50), (2, 95), (3, 60)))
        driver.finish()
        assert [o["all"] for o in driver.output("out") if o["k"] == "a"] == [[2]]
        assert [letter["row"]["v"] for letter in driver.output("late")] == [1, 3]


def test_rows_that_wait_show_their_panes_in_the_order_of_arrival() -> None:
    app = windowed(mp.session(10), {"all": mp.collect("v")}, grace=0, trigger=mp.triggers.on_update())
    with TestDriver(app) as driver:
        driver.send("rows", rows((0, 100, "b")))
        driver.send("rows", rows((1, 82), (2, 95), (3, 91)))
        assert [o["all"] for o in driver.output("out") if o["k"] == "a" and not o["final"]] == [[1], [2], [1, 2, 3]]


BY_ROWS = [mp.count_tumbling(4), mp.count_hopping(4, 2), mp.count_hopping(5, 3), mp.count_sliding(3)]


@pytest.mark.parametrize("window", BY_ROWS, ids=repr)
@pytest.mark.parametrize("before", [1, 4, 5, 6, 7])
def test_a_count_window_that_the_end_has_closed_does_not_open_again(window: Any, before: int) -> None:
    aggregations = {"all": mp.collect("v")}
    with sent(windowed(window, aggregations), rows(*((v, v) for v in range(before))), finish=True) as driver:
        first = driver.output("out")
        if before % 2:
            driver.restart(lose_replicas=True)
        for v in range(before, before + 9):
            driver.send("rows", [row(v, v)])
        driver.finish()
        found = driver.output("out")
    bounds = [(o["window_start"], o["window_end"]) for o in found]
    assert len(set(bounds)) == len(bounds), "each window is final once"
    assert found[: len(first)] == first
    # What comes after an end is put together as in an app that begins with it, under other bounds.
    with sent(windowed(window, aggregations), rows(*((v, v) for v in range(before, before + 9))), finish=True) as fresh:
        expected = fresh.output("out")
    after = found[len(first) :]
    assert [o["all"] for o in after] == [o["all"] for o in expected]
    shift = {o["window_start"] - e["window_start"] for o, e in zip(after, expected, strict=True)}
    assert len(shift) == 1 and min(shift) >= before - before % window.every
