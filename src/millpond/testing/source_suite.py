"""The contract of sources as tests, to run against your own source.

# test_my_source.py
import pytest
from millpond.testing.source_suite import SourceSuite

class TestMySource(SourceSuite):
    @pytest.fixture
    def make_source(self, tmp_path):
        def make(rows):
            write(tmp_path / "input", rows)
            return MySource(tmp_path / "input")
        return make

    @pytest.fixture
    def add_rows(self, tmp_path):
        return lambda rows: append(tmp_path / "input", rows)
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
import pytest

from millpond.clock import ManualClock
from millpond.sources.base import (
    BoundedSource,
    Chunk,
    JsonLines,
    LearningSource,
    Limit,
    SnapshotSource,
    Source,
    Split,
    WaitingSource,
)

LIMITS = [1, 2, 7, 1_000, 10**6]
MANY_BATCHES = 10_000

RowList = list[Any]


@dataclass
class Batch:
    """The result of one plan and its reads, as the driver sees it."""

    splits: Sequence[Split]
    rows: RowList
    position: dict[str, Any]


def chunk_rows(chunk: Chunk) -> RowList:
    """Return the rows of a chunk as Python values, whatever its form.

    >>> from millpond.sources.base import Chunk, JsonLines
    >>> from millpond.testing.source_suite import chunk_rows
    >>> chunk_rows(Chunk(JsonLines([b'{"n": 1}', b'2']), position=None))
    [{'n': 1}, 2]
    """
    if isinstance(chunk.rows, pa.Table):
        return list(chunk.rows.to_pylist())
    if isinstance(chunk.rows, JsonLines):
        return [msgspec.json.decode(line) for line in chunk.rows.lines]
    return list(chunk.rows)


def batches(source: Source, rows: int, now: float, position: Mapping[str, Any] | None = None) -> Iterator[Batch]:
    """Plan and read as a driver does, batch after batch, until a plan is empty.

    Every split is read by a pickled copy of the source, as in a task.

    >>> from millpond import sources
    >>> from millpond.testing.source_suite import batches
    >>> [batch.rows for batch in batches(sources.rows([1, 2, 3]), rows=2, now=0.0)]
    [[1, 2], [3]]
    """
    at = dict(position or {})
    copy = pickle.loads(pickle.dumps(source))
    for _ in range(MANY_BATCHES):
        splits = source.plan(at, Limit(rows=rows, bytes=1 << 30), now)
        if not splits:
            return
        before, found = dict(at), []
        for split in splits:
            for chunk in copy.read(split):
                found += chunk_rows(chunk)
                at[split.place] = chunk.position
        assert found or at != before, f"a plan gave no row and moved no position, at {at}: it would never end"
        yield Batch(splits, found, dict(at))
    raise AssertionError(f"the source still plans after {MANY_BATCHES} batches, at {at}")


class SourceSuite:
    """The contract of `mp.lowlevel.Source`, one test for each promise. Subclass it and override `make_source`.

    >>> from millpond.testing.source_suite import SourceSuite
    >>> class TestRows(SourceSuite):
    ...     plain_splits = False
    """

    plain_splits: ClassVar[bool] = True
    """Whether splits are plain JSON, as they should be unless they carry the rows."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        """Return the clock that gives every plan its time."""
        return ManualClock()

    @pytest.fixture
    def make_source(self) -> Callable[[RowList], Source]:
        """Override: return a function that makes a new source of the given rows at each call."""
        raise NotImplementedError("override the fixture make_source")

    @pytest.fixture
    def add_rows(self) -> Callable[[RowList], object] | None:
        """Override if the input can grow: return a function that adds rows to the source that was made last."""
        return None

    @pytest.fixture
    def reopen(self) -> Callable[[Source], Source]:
        """Override if a pickled copy cannot plan: return a function that makes the source as a new process would."""
        return lambda source: pickle.loads(pickle.dumps(source))

    def some_rows(self, first: int, count: int) -> RowList:
        """Override if the source cannot have such rows: return `count` rows from number `first` on."""
        return [{"id": str(i), "text": f"row {i}"} for i in range(first, first + count)]

    @pytest.mark.parametrize("limit", LIMITS)
    def test_every_row_comes_once_and_in_order_whatever_the_limit(
        self, make_source: Callable[[RowList], Source], clock: ManualClock, limit: int
    ) -> None:
        rows = self.some_rows(0, 50)
        source = make_source(rows)
        found = [row for batch in batches(source, limit, clock.now()) for row in batch.rows]
        assert found == rows

    def test_it_is_a_source(self, make_source: Callable[[RowList], Source]) -> None:
        assert isinstance(make_source(self.some_rows(0, 3)), Source)

    def test_an_empty_position_starts_at_the_beginning(
        self, make_source: Callable[[RowList], Source], clock: ManualClock
    ) -> None:
        rows = self.some_rows(0, 3)
        source = make_source(rows)
        for _ in range(2):  # also if it has planned from there before
            assert next(batches(source, 1, clock.now())).rows == rows[:1]

    def test_nothing_is_planned_once_all_is_read(
        self, make_source: Callable[[RowList], Source], clock: ManualClock
    ) -> None:
        source = make_source(self.some_rows(0, 20))
        *_, last = batches(source, 7, clock.now())
        limit = Limit(rows=7, bytes=1 << 30)
        assert not source.plan(last.position, limit, clock.now())
        assert not source.plan(last.position, limit, clock.now())

    def test_nothing_is_planned_when_there_are_no_rows(
        self, make_source: Callable[[RowList], Source], clock: ManualClock
    ) -> None:
        assert [batch.rows for batch in batches(make_source([]), 7, clock.now()) if batch.rows] == []

    def test_planning_leaves_the_position_alone(
        self, make_source: Callable[[RowList], Source], clock: ManualClock
    ) -> None:
        source = make_source(self.some_rows(0, 20))
        position: dict[str, Any] = {}
        source.plan(position, Limit(rows=7, bytes=1 << 30), clock.now())
        assert position == {}

    def test_a_plan_that_was_not_carried_out_is_made_again(
        self, make_source: Callable[[RowList], Source], clock: ManualClock
    ) -> None:
        source = make_source(self.some_rows(0, 20))
        limit = Limit(rows=7, bytes=1 << 30)
        assert source.plan({}, limit, clock.now()) == source.plan({}, limit, clock.now()) != []

    @pytest.mark.parametrize("limit", LIMITS)
    def test_positions_and_splits_are_plain_json(
        self, make_source: Callable[[RowList], Source], clock: ManualClock, limit: int
    ) -> None:
        for batch in batches(make_source(self.some_rows(0, 20)), limit, clock.now()):
            assert json.loads(json.dumps(batch.position)) == batch.position
            for split in batch.splits:
                ends = [split.start, split.stop]
                assert json.loads(json.dumps(ends)) == ends
                if self.plain_splits:
                    assert json.loads(json.dumps(split.detail)) == dict(split.detail)

    @pytest.mark.parametrize("limit", LIMITS)
    def test_splits_of_one_place_follow_each_other_without_a_gap(
        self, make_source: Callable[[RowList], Source], clock: ManualClock, limit: int
    ) -> None:
        for batch in batches(make_source(self.some_rows(0, 50)), limit, clock.now()):
            stops: dict[str, Any] = {}
            for split in batch.splits:
                assert isinstance(split.place, str)
                assert isinstance(split.partition, str)
                assert split.weight >= 1
                assert stops.get(split.place, split.start) == split.start
                stops[split.place] = split.stop

    def test_splits_that_may_join_give_the_same_rows_as_one(
        self, make_source: Callable[[RowList], Source], clock: ManualClock
    ) -> None:
        source = make_source(self.some_rows(0, 50))
        for batch in batches(source, 10**6, clock.now()):
            for one, other in pairwise(batch.splits):
                if other.may_join and (one.place, one.partition, one.detail) == (
                    other.place,
                    other.partition,
                    other.detail,
                ):
                    both = [chunk for split in (one, other) for chunk in source.read(split)]
                    joined = list(source.read(replace(one, stop=other.stop)))
                    assert [row for c in joined for row in chunk_rows(c)] == [
                        row for c in both for row in chunk_rows(c)
                    ]
                    assert joined[-1].position == both[-1].position

    def test_a_split_read_twice_gives_the_same_rows(
        self, make_source: Callable[[RowList], Source], clock: ManualClock
    ) -> None:
        source = make_source(self.some_rows(0, 50))
        for batch in batches(source, 7, clock.now()):
            for split in batch.splits:
                once, again = ([(chunk_rows(c), c.position) for c in source.read(split)] for _ in range(2))
                assert once == again

    def test_a_split_gives_the_same_rows_when_more_have_arrived(
        self,
        make_source: Callable[[RowList], Source],
        add_rows: Callable[[RowList], object] | None,
        clock: ManualClock,
    ) -> None:
        if add_rows is None:
            pytest.skip("this input does not grow")
        rows = self.some_rows(0, 20)
        source = make_source(rows)
        splits = source.plan({}, Limit(rows=10**6, bytes=1 << 30), clock.now())
        add_rows(self.some_rows(20, 5))
        assert [row for split in splits for chunk in source.read(split) for row in chunk_rows(chunk)] == rows

    def test_every_split_says_how_far_it_came(
        self, make_source: Callable[[RowList], Source], clock: ManualClock
    ) -> None:
        source = make_source(self.some_rows(0, 50))
        for split in source.plan({}, Limit(rows=10**6, bytes=1 << 30), clock.now()):
            assert list(source.read(split)), "a split without rows still has a chunk that carries its position"

    @pytest.mark.parametrize("limit", [1, 7])
    def test_it_resumes_from_every_committed_position(
        self,
        make_source: Callable[[RowList], Source],
        reopen: Callable[[Source], Source],
        clock: ManualClock,
        limit: int,
    ) -> None:
        rows = self.some_rows(0, 20)
        source = make_source(rows)
        read = 0
        for batch in batches(source, limit, clock.now()):
            read += len(batch.rows)
            position = json.loads(json.dumps(batch.position))
            rest = batches(reopen(source), 10**6, clock.now(), position)
            assert [row for later in rest for row in later.rows] == rows[read:]
        assert read == len(rows)

    @pytest.mark.parametrize("limit", [2, 10**6])
    def test_rows_that_arrive_later_are_planned_later(
        self,
        make_source: Callable[[RowList], Source],
        add_rows: Callable[[RowList], object] | None,
        clock: ManualClock,
        limit: int,
    ) -> None:
        if add_rows is None:
            pytest.skip("this input does not grow")
        source = make_source(self.some_rows(0, 5))
        *_, last = batches(source, limit, clock.now())
        for first in (5, 8):
            more = self.some_rows(first, 3)
            add_rows(more)
            later = list(batches(source, limit, clock.now(), last.position))
            assert [row for batch in later for row in batch.rows] == more
            last = later[-1]

    @pytest.mark.parametrize("limit", [1, 7, 10**6])
    def test_it_is_read_again_to_the_bounds_of_every_batch_and_no_further(
        self,
        make_source: Callable[[RowList], Source],
        reopen: Callable[[Source], Source],
        add_rows: Callable[[RowList], object] | None,
        clock: ManualClock,
        limit: int,
    ) -> None:
        source = make_source(self.some_rows(0, 20))
        if not isinstance(source, BoundedSource):
            pytest.skip("this source has no plan_to")
        done = list(batches(source, limit, clock.now()))
        if add_rows is not None:
            add_rows(self.some_rows(20, 5))
        again, most = reopen(source), Limit(rows=10**6, bytes=1 << 30)
        assert isinstance(again, BoundedSource)
        position: dict[str, Any] = {}
        for batch in done:
            at, found = dict(position), []
            for split in again.plan_to(position, batch.position, most, clock.now()):
                for chunk in again.read(split):
                    found += chunk_rows(chunk)
                    at[split.place] = chunk.position
            assert found == batch.rows
            assert not again.plan_to(at, batch.position, most, clock.now())
            position = batch.position

    def test_it_is_read_again_in_batches_of_any_size(
        self, make_source: Callable[[RowList], Source], add_rows: Callable[[RowList], object] | None, clock: ManualClock
    ) -> None:
        rows = self.some_rows(0, 20)
        source = make_source(rows)
        if not isinstance(source, BoundedSource):
            pytest.skip("this source has no plan_to")
        *_, last = batches(source, 7, clock.now())
        if add_rows is not None:
            add_rows(self.some_rows(20, 5))
        at: dict[str, Any] = {}
        found: RowList = []
        for _ in range(MANY_BATCHES):
            splits = source.plan_to(at, last.position, Limit(rows=3, bytes=1 << 30), clock.now())
            if not splits:
                break
            for split in splits:
                for chunk in source.read(split):
                    found += chunk_rows(chunk)
                    at[split.place] = chunk.position
        assert found == rows

    @pytest.mark.parametrize("limit", [2, 10**6])
    def test_a_snapshot_ends_where_the_source_ended_when_it_was_taken(
        self,
        make_source: Callable[[RowList], Source],
        add_rows: Callable[[RowList], object] | None,
        clock: ManualClock,
        limit: int,
    ) -> None:
        rows, more = self.some_rows(0, 5), self.some_rows(5, 3)
        source = make_source(rows)
        if not isinstance(source, SnapshotSource):
            pytest.skip("this source has no as_of")
        snapshot = source.as_of(clock.now())
        if add_rows is not None:
            add_rows(more)
        done = list(batches(snapshot, limit, clock.now()))
        assert [row for batch in done for row in batch.rows] == rows
        later = batches(source, limit, clock.now(), done[-1].position)
        assert [row for batch in later for row in batch.rows] == (more if add_rows is not None else [])

    @pytest.mark.parametrize("bytes_per_row", [1, 100, 10**6])
    def test_what_it_learns_of_row_sizes_changes_no_row(
        self, make_source: Callable[[RowList], Source], clock: ManualClock, bytes_per_row: int
    ) -> None:
        rows = self.some_rows(0, 50)
        source = make_source(rows)
        if not isinstance(source, LearningSource):
            pytest.skip("this source has no learned")
        found: RowList = []
        for batch in batches(source, 7, clock.now()):
            found += batch.rows
            if batch.rows:
                source.learned(len(batch.rows), len(batch.rows) * bytes_per_row)
        assert found == rows

    def test_it_waits_for_nothing_at_the_end_of_a_complete_input(
        self, make_source: Callable[[RowList], Source], clock: ManualClock
    ) -> None:
        source = make_source(self.some_rows(0, 20))
        if not isinstance(source, WaitingSource):
            pytest.skip("this source has no is_waiting")
        *_, last = batches(source, 7, clock.now())
        position = dict(last.position)
        for _ in range(2):
            assert source.is_waiting(position, clock.now()) is False
        assert position == last.position
        assert not source.plan(position, Limit(rows=7, bytes=1 << 30), clock.now())

    def test_a_row_can_be_found_again(self, make_source: Callable[[RowList], Source], clock: ManualClock) -> None:
        source = make_source(self.some_rows(0, 3))
        [*splits] = source.plan({}, Limit(rows=3, bytes=1 << 30), clock.now())
        chunks = [chunk for split in splits for chunk in source.read(split) if chunk.where and chunk_rows(chunk)]
        for chunk in chunks:
            assert chunk.where is not None
            places = [chunk.where(i) for i in range(len(chunk_rows(chunk)))]
            assert all(places) and len(set(places)) == len(places)
