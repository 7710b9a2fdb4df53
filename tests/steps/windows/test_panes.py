"""A pane's row is defined once: rows made from columns, as dicts or as text, are the same."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.codec import Codec, encode_key
from millpond.steps.windows.panes import Bounds, PaneTexts, final_pane_rows, pane_row, shown_bounds

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


@given(panes, st.sampled_from([("n", "total"), ("50%", 'a "b"'), ("größe", "{")]))
def test_texts_from_columns_are_what_the_codec_makes_of_pane_row(found, names):
    codec = Codec()
    texts = PaneTexts(codec, ("k",), names).write(
        pa.array([encode_key(key) for key, *_ in found], pa.binary()),
        np.array([n for _, n, *_ in found]),
        BOUNDS.__getitem__,
        [list(column) for column in list(zip(*found, strict=True))[2:]],
    )
    if texts is None:  # a key with a brace may be a tag
        assert any("{" in str(key) for key, *_ in found)
    else:
        assert [text.encode() for text in texts.to_pylist()] == [codec.encode(row) for row in by_row(names, found)]


def test_keys_of_several_fields_are_spread():
    (row,) = final_pane_rows(("a", "b"), ("n",), [(1, "x")], [(0, 10)], [[2]])
    assert list(row.items()) == list(pane_row(("a", "b"), (1, "x"), (0, 10), 0, True, {"n": 2}).items())


@pytest.mark.parametrize("names", [("a", "b"), ("$k",), ("pane",)])
def test_keys_that_need_more_than_their_text_are_left_to_the_codec(names):
    written = PaneTexts(Codec(), names, ("n",)).write(pa.array([b'"x"']), np.array([0]), BOUNDS.__getitem__, [[1]])
    assert written is None


def test_bounds_are_shown_as_the_times_of_the_rows():
    assert shown_bounds(0, 1_000_000, "instant") == (
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
    )
    assert shown_bounds(3, 4, "number") == (3, 4)
    assert shown_bounds(0, 5, None) == (0, 5)
    assert shown_bounds(None, None, "instant") == (None, None)
