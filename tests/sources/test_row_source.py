from __future__ import annotations

import pickle

import pytest

from millpond import sources
from millpond.errors import InvalidUse
from millpond.sources.base import Limit
from millpond.testing.source_suite import batches

ALL = Limit(rows=10**6, bytes=1 << 30)


def test_rows_may_be_any_objects():
    rows = [1, "a", None, {"n": {1, 2}}, (1, 2), b"x"]
    [batch] = batches(sources.rows(rows), 10, 0.0)
    assert batch.rows == rows


def test_a_limit_is_kept_to_the_row():
    sizes = [len(batch.rows) for batch in batches(sources.rows(list(range(10_000))), 3_000, 0.0)]
    assert sizes == [3_000, 3_000, 3_000, 1_000]


def test_many_rows_are_shared_out_among_tasks():
    splits = sources.rows(list(range(100_000))).plan({}, ALL, 0.0)
    assert [split.stop - split.start for split in splits] == [25_000] * 4


def test_a_generator_is_read_once_and_kept():
    source = sources.rows(i for i in range(3))
    assert [batch.rows for batch in batches(source, 10, 0.0)] == [[0, 1, 2]]
    assert [batch.rows for batch in batches(source, 10, 0.0)] == [[0, 1, 2]]


def test_a_row_tells_its_number():
    source = sources.rows(["a", "b", "c"])
    [split] = source.plan({"0": 1}, ALL, 0.0)
    [chunk] = source.read(split)
    assert chunk.where(1) == "rows(list), row 3"  # type: ignore[misc]


def test_the_source_travels_to_tasks_without_its_rows():
    source = sources.rows(["x" * 1_000] * 1_000)
    assert len(pickle.dumps(source)) < 1_000


def test_a_copy_that_travelled_does_not_plan_as_if_there_were_no_rows():
    copy = pickle.loads(pickle.dumps(sources.rows([1])))
    with pytest.raises(InvalidUse, match="a pickled copy has no rows, so only the original can plan"):
        copy.plan({}, ALL, 0.0)


def test_a_list_that_lost_rows_is_an_error():
    with pytest.raises(InvalidUse, match="expected the 3 rows that were read before, but the list has 2"):
        sources.rows([1, 2]).plan({"0": 3}, ALL, 0.0)


@pytest.mark.parametrize("rows", ["abc", b"abc", {"n": 1}, 7, None])
def test_a_single_row_is_no_list(rows):
    with pytest.raises(InvalidUse, match=r"rows\(list\): expected a list of rows, got .* Put the row in a list"):
        sources.rows(rows)
