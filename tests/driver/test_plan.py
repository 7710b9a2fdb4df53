"""Planning, as pure functions: how splits fall into tasks, and what counts as one whole batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millpond as mp
from millpond.driver.planning import SMALLEST_TASK_BYTES, group_splits
from millpond.driver.results import disagreement
from millpond.messages import KeyedResult, PlannedSplit, StageResults

weights = st.lists(st.one_of(st.integers(0, 10), st.integers(0, 4 * SMALLEST_TASK_BYTES)), max_size=40)


def planned(sizes: list[int]) -> list[PlannedSplit]:
    return [PlannedSplit(i, "rows", mp.lowlevel.Split(str(i), 0, 1, weight=size)) for i, size in enumerate(sizes)]


@given(weights, st.integers(0, 16))
def test_every_split_is_read_once_and_in_its_order(sizes, slots):
    groups = group_splits(planned(sizes), slots)
    assert [item for group in groups for item in group] == planned(sizes)
    assert all(groups)


@given(weights, st.integers(0, 16))
def test_there_are_no_more_tasks_than_slots_splits_or_the_work_is_worth(sizes, slots):
    groups = group_splits(planned(sizes), slots)
    total = sum(max(1, size) for size in sizes)
    assert len(groups) <= min(len(sizes), max(1, slots), max(1, -(-total // SMALLEST_TASK_BYTES)))


@given(weights, st.integers(1, 16))
def test_no_task_has_much_more_than_its_share(sizes, slots):
    groups = group_splits(planned(sizes), slots)
    if groups:
        total = sum(max(1, size) for size in sizes)
        tasks = min(len(sizes), slots, max(1, -(-total // SMALLEST_TASK_BYTES)))
        for group in groups:
            assert sum(max(1, item.split.weight) for item in group) <= total / tasks + max(1, max(sizes))


@given(st.integers(1, 16), st.integers(1, 8))
def test_splits_of_one_size_fall_evenly(splits, slots):
    sizes = [len(group) for group in group_splits(planned([SMALLEST_TASK_BYTES] * splits), slots)]
    assert len(sizes) == min(splits, slots)
    assert max(sizes) - min(sizes) <= 1


def test_little_work_is_one_task():
    assert len(group_splits(planned([100] * 10), 8)) == 1
    assert group_splits([], 8) == []


def test_splits_of_a_task_that_may_join_are_one():
    sizes = [SMALLEST_TASK_BYTES] * 4
    splits = [mp.lowlevel.Split("f", 10 * i, 10 * i + 10, weight=w, rows=9, may_join=True) for i, w in enumerate(sizes)]
    items = [PlannedSplit(i, "rows", split, share=5, is_last=i == 3) for i, split in enumerate(splits)]
    [one], [other] = group_splits(items, 2)
    assert [(item.place, item.split.start, item.split.stop) for item in (one, other)] == [(0, 0, 20), (2, 20, 40)]
    assert [(item.split.weight, item.split.rows) for item in (one, other)] == [(2 * SMALLEST_TASK_BYTES, 18)] * 2
    assert [(item.share, item.is_last) for item in (one, other)] == [(10, False), (10, True)]


@pytest.mark.parametrize(
    "other",
    [
        {"may_join": False},
        {"place": "g"},
        {"partition": "1"},
        {"start": 11},
        {"detail": {"size": 2}},
    ],
)
def test_splits_that_do_not_follow_each_other_are_not_joined(other):
    one = mp.lowlevel.Split("f", 0, 10, detail={"size": 1}, may_join=True)
    next_one = replace(one, **{"start": 10, "stop": 20, **other})
    [group] = group_splits([PlannedSplit(0, "rows", one), PlannedSplit(1, "rows", next_one)], 1)
    assert len(group) == 2
    [group] = group_splits(
        [PlannedSplit(0, "rows", one), PlannedSplit(1, "others", replace(one, start=10, stop=20))], 1
    )
    assert len(group) == 2


# --- whether it is one whole batch ---


def results(partitions: int, tasks: int) -> list[KeyedResult]:
    return [KeyedResult(p, nonces={task: f"n{task}" for task in range(tasks)}) for p in range(partitions)]


@given(st.integers(1, 5), st.integers(0, 4), st.randoms())
def test_partitions_that_saw_the_same_attempt_of_every_task_agree(partitions, tasks, chance):
    found = results(partitions, tasks)
    chance.shuffle(found)
    assert disagreement(StageResults(found, tasks), partitions) is None


@given(st.integers(1, 5), st.integers(1, 4), st.data())
def test_whatever_is_missing_or_different_is_a_disagreement(partitions, tasks, data):
    found, expected = results(partitions, tasks), None
    one = data.draw(st.integers(0, partitions - 1))
    task = data.draw(st.integers(0, tasks - 1))
    what = data.draw(st.sampled_from(["partition", "twice", "task", "attempt", "incomplete", "all lack a task"]))
    if what == "partition":
        del found[one]
        expected = f"{partitions - 1} of {partitions} partitions answered"
    elif what == "twice":
        found.append(found[one])
        expected = f"{partitions + 1} of {partitions} partitions answered"
    elif what == "incomplete":
        found[one].incomplete = "blobs of different attempts"
        expected = "blobs of different attempts"
    elif what == "all lack a task":
        for result in found:
            del result.nonces[task]
        expected = "a reading task is missing"
    elif what == "task":
        del found[one].nonces[task]
        expected = (
            "a reading task is missing" if partitions == 1 else "partitions saw different attempts of a reading task"
        )
    else:
        found[one].nonces[task] = "another attempt"
        expected = None if partitions == 1 else "partitions saw different attempts of a reading task"
    assert disagreement(StageResults(found, tasks), partitions) == expected
