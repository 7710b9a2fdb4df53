"""`join_window`: every pair of rows that are in the same window, once per window, when the window closes."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_reader import changes
from small_joins import EVERYWHERE, HISTORIES, counted, histories, ids, joined, live_through, row, send

import millpond as mp
from millpond.storage import open_storage
from millpond.testing import TestDriver

HOWS = ["inner", "left", "right", "outer"]
NONE = mp.NO_GRACE


def windowed(window: Any = None, **how: Any) -> mp.App:
    window = mp.tumbling(10) if window is None else window
    return joined("join_window", **{"window": window, "grace": NONE, "merge": ids, **how})


def grouped(lefts: list[Any], rights: list[Any], size: int, every: int, offset: int, how: str) -> Counter[Any]:
    """Every window of the whole input with every pair in it, and the rows that are alone there."""
    found: Counter[Any] = Counter()
    times = [at for _, at, _ in [*lefts, *rights]]
    for key in {key for _, _, key in [*lefts, *rights]}:
        for start in range(min(times) - 2 * size, max(times) + 1):
            if (start - offset) % every == 0:
                ours, theirs = (
                    [id for id, at, k in side if k == key and start <= at < start + size] for side in (lefts, rights)
                )
                found.update((left, right) for left in ours for right in theirs)
                if how in ("left", "outer") and not theirs:
                    found.update((left, None) for left in ours)
                if how in ("right", "outer") and not ours:
                    found.update((None, right) for right in theirs)
    return found


# --- any history ---


@given(
    history=histories(disorder=8),
    how=st.sampled_from(HOWS),
    every=st.integers(1, 6),
    more=st.integers(0, 9),
    offset=st.integers(0, 5),
    grace=st.integers(0, 8),
    partitions=st.sampled_from([1, 3]),
)
@HISTORIES
def test_any_history_gives_what_grouping_the_whole_input_gives(history, how, every, more, offset, grace, partitions):
    size, offset = every + more, offset % every
    window = mp.hopping(size, every=every, offset=offset)
    with TestDriver(windowed(window, how=how, grace=grace, disorder=8 - grace, partitions=partitions)) as driver:
        lefts, rights = live_through(driver, history)
        expected = grouped(lefts, rights, size, every, offset, how) if lefts or rights else Counter()
        assert counted(driver.output("out")) == expected
        assert driver.output("late") == []
        assert list(driver.state("j").items()) == [], "nothing stays when all is over"


@given(history=histories(disorder=5, crashes=False), how=st.sampled_from(HOWS))
@HISTORIES
def test_nothing_that_it_brings_is_late_for_what_stands_behind_it(history, how):
    app = mp.App("behind")
    left, right = (app.stream(s, mp.sources.rows([]), timestamp="at", disorder=3) for s in ("left", "right"))
    pairs = left.key_by("k").join_window("j", right.key_by("k"), mp.hopping(9, every=4), grace=2, how=how, merge=ids)
    pairs.map(lambda pair: pair).late.to("behind", mp.sinks.memory())
    with TestDriver(app) as driver:
        live_through(driver, history)
        assert driver.output("behind") == []


# --- when ---


def test_a_window_brings_its_pairs_when_it_closes_and_not_before():
    with TestDriver(windowed(grace=2, how="outer")) as driver:
        send(driver, [("l", 1), ("m", 9)], [("r", 3)])
        send(driver, [("n", 11)], [("s", 11)])
        assert driver.output("out") == []
        assert driver.state("j").get("a") == {
            "left": [row("l", 1), row("m", 9), row("n", 11)],
            "right": [row("r", 3), row("s", 11)],
        }
        send(driver, [("o", 12)], [("t", 12)])
        assert driver.output("out") == [("l", "r"), ("m", "r")]
        assert driver.state("j").get("a")["left"] == [row("n", 11), row("o", 12)]
        driver.finish()
        assert driver.output("out")[2:] == [("n", "s"), ("n", "t"), ("o", "s"), ("o", "t")]


def test_where_windows_overlap_a_pair_comes_once_for_each_that_holds_both():
    with TestDriver(windowed(mp.hopping(10, every=5), how="left")) as driver:
        send(driver, [("l", 7)], [("r", 11)])
        driver.finish()
        assert driver.output("out") == [("l", None), ("l", "r")], "[0, 10) holds the left row alone, [5, 15) both"


def test_a_row_is_kept_once_however_many_windows_hold_it_and_a_window_opens_once():
    storage = open_storage("memory://")
    with TestDriver(windowed(mp.hopping(10, every=5)), storage=storage) as driver:
        send(driver, [("l", 7)])
        cells = [cell[:2] for _, cell, _, _ in changes(storage, "joined", "j")]
        assert cells == ["l:", "w:", "w:"]
        send(driver, [("m", 8)])
        assert [cell[:2] for _, cell, _, _ in changes(storage, "joined", "j")] == ["l:"]


def test_an_output_carries_the_later_sides_time():
    app = mp.App("times")
    left, right = (app.stream(s, mp.sources.rows([]), timestamp="at").key_by("k") for s in ("left", "right"))
    pairs = left.join_window("j", right, mp.tumbling(10), grace=NONE, how="outer", merge=ids)
    pairs.apply("time", lambda pair, state: (*pair, state.time)).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        send(driver, [("l", 5), ("alone", 12)], [("r", 4)])
        driver.finish()
        assert driver.output("out") == [("l", "r", 5), ("alone", None, 12)]


def test_times_may_be_instants():
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    with TestDriver(windowed(mp.tumbling("1h"), grace="1m")) as driver:
        send(driver, [("l", noon)], [("r", noon + timedelta(minutes=59)), ("s", noon + timedelta(minutes=60))])
        send(driver, [("z", noon + timedelta(hours=2))], [("z", noon + timedelta(hours=2))])
        assert driver.output("out") == [("l", "r")]


# --- late rows ---


def test_a_row_that_missed_a_window_goes_aside_with_it_and_counts_in_those_that_are_open():
    with TestDriver(windowed(mp.hopping(10, every=5))) as driver:
        send(driver, [("l", 10)], [("r", 10)])  # [0, 10) is closed
        send(driver, [("half", 7), ("late", 3)], [])
        assert driver.output("late") == [
            {"row": row("half", 7), "key": "a", "late_by": 3, "side": "left", "missed": [(0, 10)]},
            {"row": row("late", 3), "key": "a", "late_by": 7, "side": "left", "missed": [(-5, 5), (0, 10)]},
        ]
        driver.finish()
        assert counted(driver.output("out")) == {("l", "r"): 2, ("half", "r"): 1}


def test_what_comes_after_the_end_is_late_for_what_was_closed():
    with TestDriver(windowed(how="outer")) as driver:
        send(driver, [("l", 1)])
        driver.finish()
        send(driver, [], [("r", 2)])
        driver.finish()
        assert driver.output("out") == [("l", None)]
        assert [late["row"]["id"] for late in driver.output("late")] == ["r"]


# --- crashes and changed programs ---


@pytest.mark.parametrize("lose_replicas", [False, True], ids=["replicas kept", "replicas lost"])
@pytest.mark.parametrize("at, when", EVERYWHERE)
def test_no_pair_is_lost_or_doubled_by_a_crash_anywhere(at, when, lose_replicas):
    batches = [
        ([(1, 10, "a"), (2, 11, "b")], [(3, 12, "a")]),
        ([(4, 20, "a")], [(5, 13, "b"), (6, 14, "c")]),
        ([(7, 30, "a")], [(8, 30, "a"), (9, 29, "b")]),
    ]
    for dies in range(len(batches)):
        history = [(*batch, ((at, when), lose_replicas) if n == dies else None) for n, batch in enumerate(batches)]
        with TestDriver(windowed(mp.hopping(10, every=5), how="outer", disorder=9, partitions=2)) as driver:
            assert counted(driver.output("out")) == {}
            lefts, rights = live_through(driver, history)
            assert counted(driver.output("out")) == grouped(lefts, rights, 10, 5, 0, "outer")


def test_a_program_that_has_grown_more_patient_waits_for_the_windows_that_are_open():
    with TestDriver(windowed()) as driver:
        send(driver, [("l", 1)])
        driver.restart(windowed(grace=20))
        send(driver, [("z", 25, "z")], [("z", 25, "z")])
        send(driver, [], [("r", 9)])
        driver.finish()
        assert counted(driver.output("out")) == {("l", "r"): 1, ("z", "z"): 1}


# --- wrong use ---


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"window": mp.session(5)}, r"join_window\('j', window\): expected mp.tumbling\(size\) or mp.hopping"),
        ({"window": "1m"}, r"join_window\('j', window\): expected mp.tumbling\(size\) or mp.hopping"),
        ({"grace": None}, r"join_window\('j', grace\): expected how long to wait .* give grace=mp.NO_GRACE"),
        ({"grace": "5s"}, r"join_window\('j'\): expected durations of one kind"),
        ({"how": "cross"}, r"join_window\('j', how\): expected 'inner', 'left', 'right', 'outer', got 'cross'"),
        ({"merge": 1}, r"join_window\('j', merge\): expected a function of both rows, got 1"),
    ],
)
def test_a_wrong_option_is_told_where_the_program_is_written(how, said):
    with pytest.raises(mp.errors.InvalidUse, match=said):
        windowed(**how)


def test_a_windows_size_is_said_in_the_unit_of_the_times():
    with (
        TestDriver(windowed(mp.tumbling("1m"))) as driver,
        pytest.raises(mp.errors.InvalidUse, match=r"join_window\('j'.*the stream's times are whole numbers"),
    ):
        send(driver, [("l", 10)], [("r", 9)])
