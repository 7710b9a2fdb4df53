"""Joins without a stream: which rows are partners, when none can come any more, and what a pair becomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.log.segment import Change
from millpond.replica.lmdb_store import RecordChanges, Replica
from millpond.steps.failure import BadInput
from millpond.steps.joins.merge import merge_fields
from millpond.steps.joins.time_bounds import LEFT, RIGHT, TimeBounds, find_newest
from millpond.timing import MAX_TICKS

reaches = st.builds(TimeBounds, *[st.integers(0, 9)] * 3)
moments = st.integers(-20, 20)
times = st.lists(moments, max_size=8).map(sorted)


@given(reach=reaches, lefts=times, rights=times)
def test_pairs_are_those_of_a_nested_loop(reach, lefts, rights):
    expected = [
        (i, j)
        for i, left in enumerate(lefts)
        for j, right in enumerate(rights)
        if left - reach.before <= right <= left + reach.after
    ]
    assert list(reach.pairs(lefts, rights)) == expected


@given(reach=reaches, left=moments, right=moments)
def test_a_partner_is_one_whichever_side_looks(reach, left, right):
    first, last = reach.partners(LEFT, left)
    back, ahead = reach.partners(RIGHT, right)
    assert (first <= right <= last) is (back <= left <= ahead)


@given(reach=reaches, side=st.sampled_from([LEFT, RIGHT]), times=times)
def test_what_is_read_for_some_rows_is_what_is_near_one_of_them_and_read_once(reach, side, times):
    near = {t for at in times for t in range(reach.partners(side, at)[0], reach.partners(side, at)[1] + 1)}
    read = [t for first, last in reach.partner_ranges(side, times) for t in range(first, last + 1)]
    assert read == sorted(near)


@given(reach=reaches, side=st.sampled_from([LEFT, RIGHT]), at=moments, watermark=moments)
def test_a_row_leaves_at_the_first_watermark_that_makes_every_partner_late(reach, side, at, watermark):
    first, last = reach.partners(side, at)
    all_late = all(reach.is_late(partner, watermark) for partner in range(first, last + 1))
    assert (reach.expires_at(side, at) <= watermark) is all_late


def test_nothing_is_late_before_there_is_a_watermark():
    assert not TimeBounds(0, 0).is_late(-5, None)


def test_a_row_at_the_end_of_time_leaves_with_the_end_of_the_input():
    assert TimeBounds(0, MAX_TICKS).expires_at(LEFT, 5) == MAX_TICKS


@given(times=times, at=moments, keep=st.integers(0, 9))
def test_the_newest_at_or_before_a_time_is_that_of_a_plain_search(times, at, keep):
    found = [i for i, time in enumerate(times) if at - keep <= time <= at]
    assert find_newest(times, at, keep) == (found[-1] if found else None)


@pytest.mark.parametrize("key", [b'"k"', b'"%b"' % (b"long" * 80)])
def test_the_last_cell_of_a_range_is_the_last_that_the_range_gives(tmp_path, key):
    replica = Replica(tmp_path)
    cells = [b"l:3", b"r:1", b"r:3", b"r:5", b"r:7"]
    changes = [Change(k, cell, b"1", due=4) for k in (b'"a"', key, b'"z"') for cell in cells]
    replica.apply(RecordChanges(0, {"s": sorted(changes)}))
    with replica.view() as view:
        bounds = [b"a", *cells, b"r:0", b"r:2", b"r:4", b"r:8", b"z"]
        for first in bounds:
            for last in bounds:
                found = list(view.range("s", key, first, last))
                assert view.last("s", key, first, last) == (found[-1] if found else None), (first, last)
        assert view.last("other", key, b"a", b"z") is None
    replica.close()


@dataclass
class Order:
    id: int
    at: int


class Payment(msgspec.Struct):
    id: int
    at: int
    paid: bool


class Place(NamedTuple):
    city: str


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": 1, "b": 2}, {"b": 2, "c": 3}, {"a": 1, "b": 2, "c": 3}),
        ({"a": 1}, {"a": 2}, {"a": 1, "a_right": 2}),
        ({"a": None}, {"a": 2}, {"a": None, "a_right": 2}),
        ({"a": 1, "a_right": 5}, {"a": 2}, {"a": 1, "a_right": 5, "a_right_right": 2}),
        ({"a": 1, "a_right": 2}, {"a": 2}, {"a": 1, "a_right": 2}),
        ({"a": 1}, {"a": 2, "a_right": 3}, {"a": 1, "a_right": 2, "a_right_right": 3}),
        ({"a": 1}, None, {"a": 1}),
        (None, {"a": 1}, {"a": 1}),
        (Order(1, 5), Payment(1, 6, True), {"id": 1, "at": 5, "at_right": 6, "paid": True}),
        (Order(1, 5), None, {"id": 1, "at": 5}),
        (Place("Ulm"), {"n": 1}, {"city": "Ulm", "n": 1}),
    ],
)
def test_fields_of_both_sides_stand_in_one_row_and_none_is_lost(left: Any, right: Any, expected: Any):
    found = merge_fields(left, right)
    assert found == expected
    assert list(found) == list(expected), "the left's come first"


@pytest.mark.parametrize(("left", "right"), [(5, {"a": 1}), ({"a": 1}, "text"), (None, [1]), ({3: "c"}, {"a": 1})])
def test_rows_without_fields_need_a_merge_of_their_own(left: Any, right: Any):
    with pytest.raises(BadInput, match=r"has none with names: .* merge=lambda left, right"):
        merge_fields(left, right)
