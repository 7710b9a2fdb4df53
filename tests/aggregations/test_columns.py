"""Aggregations over columns give what they give row by row, or None."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from millpond.aggregations import Aggregation, aggregation_of
from millpond.aggregations.columns import GroupedValues
from millpond.aggregations.kinds import KINDS

BY_COLUMNS = {name: kind.update_groups for name, kind in KINDS.items() if kind.update_groups is not None}
GROUPS = [0, 2, 0, 2, 2]  # group 1 gets no value
COLUMNS = {
    "whole numbers": np.array([3, -1, 4, 1, -5]),
    "floats": np.array([0.1, 0.2, 0.3, -0.4, 1e300]),
    "floats with NaN": np.array([0.5, np.nan, np.nan, 2.5, -1.5]),
}


def by_row(a: Aggregation, values: Any, before: list[Any]) -> list[Any]:
    after = list(before)
    for group, value in zip(GROUPS, values.tolist(), strict=True):
        after[group] = a.update(after[group], value, None)
    return after


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("kind", BY_COLUMNS)
def test_groups_are_updated_as_row_by_row(kind: str, column: str) -> None:
    a, values = aggregation_of(kind), COLUMNS[column]
    found = GroupedValues(np.array(GROUPS), values, 3)
    once = BY_COLUMNS[kind](found, [a.initial() for _ in range(3)])
    assert once is not None and repr(list(once)) == repr(by_row(a, values, [a.initial() for _ in range(3)]))
    twice = BY_COLUMNS[kind](found, once)
    assert twice is not None and repr(list(twice)) == repr(by_row(a, values, list(once)))


@pytest.mark.parametrize(
    ("kind", "values", "before"),
    [
        ("sum", np.array([1 << 61, 1 << 61, 1, 1, 1]), [None] * 3),
        ("sum", np.array([1, 2, 3, 4, 5]), [None, None, 0.5]),
        ("mean", np.array([1.0, 2.0, 3.0, 4.0, 5.0]), [[0, None], [0, None], [1, 1 << 2000]]),
        ("min", np.array([0.0, -0.0, 3.0, 4.0, 5.0]), [[]] * 3),
        ("max", np.array([1, 2, 3, 4, 5]), [[], [], ["text"]]),
    ],
)
def test_what_columns_cannot_do_exactly_is_left_to_rows(kind: str, values: Any, before: list[Any]) -> None:
    assert BY_COLUMNS[kind](GroupedValues(np.array(GROUPS), values, 3), before) is None
