"""A pane's row is defined once: rows made from columns, as dicts or as columns, are the same."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.codec import Codec
from millpond.steps.windows.panes import Bounds, final_pane_columns, final_pane_rows, pane_row, shown_bounds

BOUNDS: dict[int, Bounds] = {
    0: (0, 10),
    1: (datetime(2030, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, 0, 1, tzinfo=UTC)),
}
keys = st.one_of(st.text(max_size=5), st.integers(), st.booleans())
results = st.one_of(st.none(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5))
panes = st.lists(st.tuples(keys, st.sampled_from([0, 1]), results, st.integers()), min_size=1, max_size=6)


def by_row(names: tuple[str, ...], found: list[Any]) -> list[dict[str, Any]]:
    return [
        pane_row(("k",), key, BOUNDS[n], 0, True, dict(zip(names, values, strict=True))) for key, n, *values in found
    ]


@given(panes, st.sampled_from([("n", "total"), ("50%", 'a "b"'), ("größe", "{")]))
def test_dicts_from_columns_are_those_of_pane_row(found, names):
    rows = final_pane_rows(
        ("k",), names, [key for key, *_ in found], [BOUNDS[n] for _, n, *_ in found], list(zip(*found, strict=True))[2:]
    )
    assert [list(row.items()) for row in rows] == [list(row.items()) for row in by_row(names, found)]


def as_columns(key_names: tuple[str, ...], names: tuple[str, ...], found: list[Any]) -> list[Any] | None:
    """The rows of `final_pane_columns`, made objects again; None if it has made none."""
    keys = list(dict.fromkeys((type(key), key) for key, *_ in found))
    numbers = sorted({n for _, n, *_ in found})
    columns = final_pane_columns(
        key_names,
        names,
        ([key for _, key in keys], np.array([keys.index((type(key), key)) for key, *_ in found])),
        ([BOUNDS[n] for n in numbers], np.array([numbers.index(n) for _, n, *_ in found])),
        list(zip(*found, strict=True))[2:],
    )
    return None if columns is None else columns.objects(Codec())


def exactly(rows: list[dict[str, Any]]) -> list[Any]:
    return [[(name, type(value), value) for name, value in row.items()] for row in rows]


@given(panes, st.sampled_from([("n", "total"), ("50%", 'a "b"'), ("größe", "{")]))
def test_columns_are_the_rows_of_pane_row(found, names):
    rows = as_columns(("k",), names, found)
    if rows is None:
        by_type = [set(map(type, column)) - {type(None)} for column in zip(*by_values(names, found), strict=True)]
        is_big = any(type(value) is int and not -(2**63) <= value < 2**63 for row in found for value in row)
        assert is_big or any(len(types) > 1 for types in by_type)
    else:
        assert exactly(rows) == exactly(by_row(names, found))


def by_values(names: tuple[str, ...], found: list[Any]) -> list[Any]:
    return [tuple(row.values()) for row in by_row(names, found)]


@pytest.mark.parametrize("window", [0, 1])
def test_panes_of_one_kind_are_columns(window):
    found: list[Any] = [("ann", window, 1, 2.5), ("bob", window, 2, None), ("ann", window, 3, 4.0)]
    assert exactly(as_columns(("k",), ("n", "mean"), found) or []) == exactly(by_row(("n", "mean"), found))
    found = [(("ann", 1), window, 1), (("ann", 2), window, 2)]
    assert as_columns(("a", "b"), ("n",), found) == [
        pane_row(("a", "b"), key, BOUNDS[n], 0, True, {"n": value}) for key, n, value in found
    ]


def test_keys_of_several_fields_are_spread():
    (row,) = final_pane_rows(("a", "b"), ("n",), [(1, "x")], [(0, 10)], [[2]])
    assert list(row.items()) == list(pane_row(("a", "b"), (1, "x"), (0, 10), 0, True, {"n": 2}).items())


def test_panes_with_two_fields_of_one_name_are_no_columns():
    assert as_columns(("pane",), ("n",), [("x", 0, 1)]) is None


def test_bounds_are_shown_as_the_times_of_the_rows():
    assert shown_bounds(0, 1_000_000, "instant") == (
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
    )
    assert shown_bounds(3, 4, "number") == (3, 4)
    assert shown_bounds(0, 5, None) == (0, 5)
    assert shown_bounds(None, None, "instant") == (None, None)
