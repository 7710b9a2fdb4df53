from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond import sources
from millpond.errors import InvalidUse
from millpond.sources.base import Limit
from millpond.sources.rate import rows_due
from millpond.testing.source_suite import batches

ALL = Limit(rows=10**6, bytes=1 << 30)
NOW = 1_700_000_000.0
THEN = datetime.fromtimestamp(NOW, UTC)


def values(source, now, position=None, limit=10**6):
    found = list(batches(source, limit, now, position))
    rows = [row["value"] for batch in found for row in batch.rows]
    return rows, (found[-1].position if found else position)


def test_rows_are_numbered_and_bear_the_time_they_are_due():
    [batch] = batches(sources.rate(4, start=NOW), 100, NOW + 0.8)
    assert batch.rows == [{"timestamp": THEN + timedelta(seconds=i / 4), "value": i} for i in range(3)]


def test_time_begins_at_the_first_plan_and_nothing_is_due_then():
    source = sources.rate(10)
    assert source.plan({}, ALL, NOW) == []
    assert source.plan({}, ALL, NOW + 0.09) == []
    [batch] = batches(source, 100, NOW + 1.0)
    assert batch.rows[0] == {"timestamp": THEN, "value": 0}
    assert len(batch.rows) == 10


def test_rows_that_fell_due_while_nobody_ran_come_after_a_restart():
    first, position = values(sources.rate(10, start=NOW), NOW + 1)
    second, _ = values(sources.rate(10), NOW + 61, position)
    assert first + second == list(range(610))


def test_a_restart_gives_the_same_times():
    [batch] = batches(sources.rate(10, start=NOW), 100, NOW + 1)
    [later] = batches(sources.rate(10), 100, NOW + 3, batch.position)
    assert later.rows[0] == {"timestamp": THEN + timedelta(seconds=1), "value": 10}


def test_a_limit_is_kept_to_the_row():
    sizes = [len(batch.rows) for batch in batches(sources.rate(10, start=NOW), 7, NOW + 2)]
    assert sizes == [7, 7, 6]


def test_a_new_rate_goes_on_where_the_old_one_had_come_to():
    _, position = values(sources.rate(1_000, start=NOW), NOW + 10)
    [batch] = batches(sources.rate(2), 100, NOW + 13, position)
    assert [row["value"] for row in batch.rows] == [10_000 + i for i in range(6)]
    assert batch.rows[1]["timestamp"] == THEN + timedelta(seconds=10.5)
    [later] = batches(sources.rate(2), 100, NOW + 14, batch.position)
    assert [row["value"] for row in later.rows] == [10_006, 10_007]


def test_a_clock_that_goes_back_gives_nothing():
    _, position = values(sources.rate(10, start=NOW), NOW + 10)
    assert sources.rate(10).plan(position, ALL, NOW + 5) == []


@given(rate=st.integers(1, 10**6), rows=st.integers(0, 10**6))
def test_a_row_is_due_at_the_microsecond_of_its_turn(rate, rows):
    turn = -(-rows * 1_000_000 // rate) / 1e6  # the first microsecond at which that many are due
    assert rows_due(NOW, NOW + turn, rate) == rows


def test_many_rows_are_shared_out_among_tasks():
    splits = sources.rate(10**6, start=NOW).plan({}, ALL, NOW + 1)
    assert [split.stop - split.start for split in splits] == [250_000] * 4


def test_a_start_may_be_a_datetime():
    [batch] = batches(sources.rate(1, start=THEN), 100, NOW + 1)
    assert batch.rows == [{"timestamp": THEN, "value": 0}]


def test_a_start_without_a_time_zone_is_an_error():
    with pytest.raises(InvalidUse, match=r"rate\(start=\): expected a datetime with a time zone, got"):
        sources.rate(1, start=datetime(2024, 1, 1))


@pytest.mark.parametrize("rate", [0, -1, float("inf"), float("nan"), "10", None, True])
def test_a_rate_that_is_none_is_an_error(rate):
    with pytest.raises(InvalidUse, match=r"rate\(rows_per_second\): expected a number above 0, got"):
        sources.rate(rate)
