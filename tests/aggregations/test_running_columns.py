"""Running aggregates over columns give what they give row by row, or None."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.aggregations import aggregation_of
from millpond.aggregations.kinds import KINDS
from millpond.aggregations.running_columns import KeyGroups
from millpond.rows.number_columns import Column

RUNS = {name: kind.run_groups for name, kind in KINDS.items() if kind.run_groups is not None}


def one_by_one(keys: Sequence[int], values: list[float], first: float) -> tuple[list[float], dict[int, float]]:
    last: dict[int, float] = {}
    running = []
    for key, value in zip(keys, values, strict=True):
        last[key] = last.get(key, first) + value
        running.append(last[key])
    return running, last


@given(
    rows=st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 2, 4, 5]), st.floats()), min_size=1, max_size=40),
    at_once=st.sampled_from([0, 1, 2, 3, 256]),
)
def test_each_row_is_added_to_its_key_in_order(rows, at_once):
    keys, values = map(list, zip(*rows, strict=True))
    with patch("millpond.aggregations.running_columns.MIN_KEYS_AT_ONCE", at_once):
        groups = KeyGroups(np.array(keys), 7)
    running, last = groups.accumulate(np.add, np.array(values), np.full(len(groups.keys), 0.1))
    expected, by_key = one_by_one(keys, values, 0.1)
    assert repr(running.tolist()) == repr(expected)
    assert repr(dict(zip(groups.keys.tolist(), last.tolist(), strict=True))) == repr(
        {key: by_key[key] for key in groups.keys.tolist()}
    )
    assert [keys[row] for row in groups.first_rows.tolist()] == groups.keys.tolist()
    assert all(keys.index(keys[row]) == row for row in groups.first_rows.tolist())


@pytest.mark.parametrize("count", [300, 70_000, 200_000])
def test_many_keys(count):
    keys = np.random.default_rng(count).integers(0, count, 100_000)
    keys[:30_000:2] = 7
    values = np.arange(len(keys)) / 7
    groups = KeyGroups(keys, count)
    running, last = groups.accumulate(np.add, values, np.full(len(groups.keys), -0.0))
    expected, by_key = one_by_one(keys.tolist(), values.tolist(), -0.0)
    assert running.tolist() == expected
    assert dict(zip(groups.keys.tolist(), last.tolist(), strict=True)) == by_key


COLUMNS = {
    "whole numbers": Column(np.array([3, -1, 4, 1, -5]), None),
    "whole numbers and nulls": Column(np.array([0, -1, 4, 0, -5]), np.array([False, True, True, False, True])),
    "floats": Column(np.array([0.1, 0.2, 0.3, -0.4, 1e300]), None),
    "floats with NaN": Column(np.array([0.5, np.nan, np.nan, 2.5, -1.5]), None),
    "floats and nulls": Column(np.array([0.5, 2.0, 0.0, 2.5, 0.0]), np.array([True, True, False, True, False])),
}
KEYS = [0, 2, 0, 2, 2]  # key 1 has no row


def row_by_row(kind: str, column: Column, before: list[Any]) -> tuple[list[Any], list[Any]]:
    a, after, results = aggregation_of(kind), list(before), []
    there = [True] * len(KEYS) if column.valid is None else column.valid.tolist()
    for key, number, is_there in zip(KEYS, column.values.tolist(), there, strict=True):
        if kind != "count" or is_there:  # this one has no field, and counts each row
            after[key] = a.update(after[key], number if is_there else None, None)
        results.append(a.result(after[key]))
    return results, after


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("kind", RUNS)
def test_results_and_accumulators_are_those_of_row_by_row(kind, column):
    a, groups = aggregation_of(kind), KeyGroups(np.array(KEYS), 3)
    accs = [a.initial() for _ in range(3)]
    for _ in range(2):
        found = RUNS[kind](groups, COLUMNS[column], [accs[k] for k in groups.keys.tolist()])
        results, accs = row_by_row(kind, COLUMNS[column], accs)
        assert found is not None
        assert repr(found.results.to_pylist()) == repr(results)
        assert repr(found.after) == repr([accs[k] for k in groups.keys.tolist()])


def test_a_null_leaves_a_negative_zero_as_it_is():
    column = Column(np.array([-0.0, 1, 0, 1, 1]), np.array([True, True, False, True, True]))
    found = RUNS["sum"](KeyGroups(np.array(KEYS), 3), column, [None, None])
    assert found is not None
    assert repr(found.results.to_pylist()) == "[-0.0, 1.0, -0.0, 2.0, 3.0]"
    assert repr(found.after) == "[3.0, -0.0]"


NO_FIRST = np.array([False, True, True, True, True])


@pytest.mark.parametrize(
    ("kind", "column", "before"),
    [
        ("count", Column(np.arange(5), None), [1 << 62, 0]),
        ("sum", Column(np.array([1 << 61, 1, 1, 1, 1]), None), [None, None]),
        ("sum", Column(np.array([1, 1, 1, 1, 1]), None), [1 << 62, None]),
        ("sum", Column(np.arange(5), None), [0.5, None]),
        ("sum", Column(np.array([0.0, 1, 2, 3, 4]), NO_FIRST), [0.5, None]),
        ("sum", Column(np.array([0.0, 1, 2, 3, 4]), NO_FIRST), [0.5, 7]),
        ("sum", Column(np.array([0.0, 1, 2, 3, 4]), None), [0.5, 10**400]),
        ("mean", Column(np.array([1 << 53, 1, 1, 1, 1]), None), [[0, None], [0, None]]),
        ("mean", Column(np.array([0.0, 1, 2, 3, 4]), NO_FIRST), [[0, None], [3, 10**17 + 1]]),
        ("min", Column(np.array([0.0, -0.0, 1, 2, 3]), None), [[], []]),
        ("min", Column(np.array([0.0, 1, 1, 2, 3]), None), [[-0.0], []]),
        ("max", Column(np.arange(5), None), [[1.5], []]),
        ("max", Column(np.arange(5), None), [["text"], []]),
        ("max", Column(np.arange(5), None), [[1 << 70], []]),
    ],
)
def test_what_columns_cannot_do_exactly_is_left_to_rows(kind, column, before):
    assert RUNS[kind](KeyGroups(np.array(KEYS), 3), column, before) is None
