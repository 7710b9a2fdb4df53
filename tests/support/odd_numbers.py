"""Aggregations that go by columns, the same ones row by row, and values that tell the two apart."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

import millpond as mp

BY_COLUMN: dict[str, Any] = {
    "n": mp.count(),
    "there": mp.count("v"),
    "sum": mp.sum("v"),
    "mean": mp.mean("v"),
    "min": mp.min("v"),
    "max": mp.max("v"),
}


def value(r: Any) -> Any:
    return r["v"]


# A function has to be called for each row, so these never go by columns.
BY_ROW: dict[str, Any] = {
    "n": mp.count(),
    "there": mp.count(value),
    "sum": mp.sum(value),
    "mean": mp.mean(value),
    "min": mp.min(value),
    "max": mp.max(value),
}

whole = st.integers(-5, 5)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "whole numbers": whole,
    "nulls among them": st.one_of(st.none(), whole),
    "floats": st.floats(width=32),
    "floats that matter": st.sampled_from([0.1, 0.2, 1e16, -1e16, 1.0, -0.0, 0.0, float("nan"), float("inf")]),
    "floats and nulls": st.one_of(st.none(), st.floats(allow_nan=True)),
    "both": st.one_of(whole, st.floats(allow_nan=False, allow_infinity=False, width=32)),
    "large ones": st.integers(-(2**64), 2**64),
    "nearly too large ones": st.sampled_from([2**62, 2**63 - 1, -(2**63), 1, 0]),
    "truth": st.booleans(),
    "decimals": st.one_of(
        whole, st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-9, max_value=9)
    ),
    "texts": st.one_of(whole, st.sampled_from(["x", ""])),
}
