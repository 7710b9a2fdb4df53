"""Columns as JSON mean the same as the rows one by one."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millpond.rows.json_columns import encode_table
from millpond.rows.plain_json import encode_json
from millpond.rows.typed_columns import columns_of_objects

TEXT = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(['"', "\\", "\n\t\x00\x1f", "\u2028é😀", ""])
INTEGERS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats() | st.sampled_from([0.0, -0.0, 1e20, 1e-7, 5e-324, math.nan, math.inf, -math.inf])
COLUMNS = st.sampled_from([TEXT, INTEGERS, FLOATS, st.booleans(), st.none()])


@st.composite
def uniform_rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    names = draw(st.lists(TEXT, min_size=1, max_size=4, unique=True))
    fields = {name: st.none() | draw(COLUMNS) for name in names}
    return draw(st.lists(st.fixed_dictionaries(fields), min_size=1, max_size=5))


@given(uniform_rows())
def test_columns_mean_what_their_rows_mean(rows: list[dict[str, Any]]) -> None:
    columns = columns_of_objects(rows)
    if columns is None:
        return
    lines = encode_table(columns.table)
    assert lines is not None
    for line, row in zip(lines, rows, strict=True):
        found, expected = json.loads(line), json.loads(encode_json(row))
        assert list(found.items()) == list(expected.items())
        for name, value in found.items():
            assert repr(value) == repr(expected[name]), "the same type, and the same sign of zero"
