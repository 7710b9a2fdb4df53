"""Fields of rows are read as columns of numbers, or not at all."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from millpond.rows.number_columns import Column, read_columns
from millpond.rows.rows import Rows


def read(table: pa.Table, field: str = "v") -> Column | None:
    found = read_columns(Rows(table, range(len(table)), form="arrow"), [field])
    return None if found is None else found[field]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1, 2, 3], pa.int8()), [1, 2, 3]),
        (pa.array([1, 2, 3], pa.uint64()), [1, 2, 3]),
        (pa.array([1.5, 2, 3], pa.float32()), [1.5, 2.0, 3.0]),
        (pa.chunked_array([[1], [2, 3]]), [1, 2, 3]),
    ],
)
def test_arrow_columns_of_numbers_are_read(column, expected):
    found = read(pa.table({"v": column}))
    assert found.values.tolist() == expected
    assert found.valid is None


def test_arrow_nulls_are_no_values():
    found = read(pa.table({"v": [1, None, 3]}))
    assert found.valid.tolist() == [True, False, True]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([True]),
        pa.array(["1"]),
        pa.array([2**64 - 1], pa.uint64()),
        pa.array([Decimal("1.5")]),
        pa.array([None]),
    ],
)
def test_arrow_columns_of_anything_else_are_looked_at_one_by_one(column):
    assert read(pa.table({"v": column})) is None
    assert read(pa.table({"v": column}), "w") is None


def rows_of(data: list[Any], form: str) -> Rows:
    if form == "json":
        return Rows([json.dumps(each).encode() for each in data], range(len(data)), form="json")
    return Rows(data, range(len(data)))


BOTH = pytest.mark.parametrize("form", ["objects", "json"])


@BOTH
def test_fields_of_dicts_and_of_lines_are_read(form):
    data = [{"v": 1, "w": 0.5, "x": "a"}, {"v": None, "w": -1.5, "x": 7}]
    found = read_columns(rows_of(data, form), ["v", "w"])
    assert found is not None
    assert (found["v"].values.tolist(), found["w"].values.tolist()) == ([1, 0], [0.5, -1.5])
    assert found["v"].valid is not None and found["v"].valid.tolist() == [True, False]
    assert found["w"].valid is None
    assert read_columns(rows_of(data, form), []) == {}


@BOTH
@pytest.mark.parametrize("other", [{"v": "1"}, {"v": True}, {"v": 0.5}, {"v": 1 << 64}, {"w": 1}, {"v": [1]}, 7, None])
def test_one_value_that_is_no_such_number_sends_all_rows_one_by_one(form, other):
    assert read_columns(rows_of([{"v": 1}, other, {"v": 2}], form), ["v"]) is None


def test_rows_without_fields_can_be_counted():
    assert read_columns(rows_of([1, 2], "objects"), []) == {}
