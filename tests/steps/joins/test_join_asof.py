"""`join_asof`: each left row with the newest right row at or before its time, as arrived or when all have."""

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


def asof(**how: Any) -> mp.App:
    return joined("join_asof", **{"keep": 20, "merge": ids, **how})


def searched(history: list[Any], keep: int, how: str, wait: bool) -> Counter[Any]:
    """The same by looking through everything that had arrived, or with `wait` through the whole input."""
    arrived: list[Any] = [right for _, rights, _ in history for right in rights] if wait else []
    found: Counter[Any] = Counter()
    for lefts, rights, _ in history:
        arrived += [] if wait else rights
        for id, at, key in lefts:
            match = None
            for other, other_at, other_key in arrived:
                if key == other_key and at - keep <= other_at <= at and (match is None or other_at >= match[1]):
                    match = (other, other_at)
            if match is not None or how == "left":
                found[id, match and match[0]] += 1
    return found


# --- any history ---


@given(
    history=histories(disorder=9),
    how=st.sampled_from(["inner", "left"]),
    wait=st.booleans(),
    keep=st.integers(0, 25),
    partitions=st.sampled_from([1, 3]),
)
@HISTORIES
def test_any_history_gives_what_a_search_through_everything_gives(history, how, wait, keep, partitions):
    app = asof(keep=keep, how=how, wait=wait, disorder=9, partitions=partitions)
    with TestDriver(app) as driver:
        live_through(driver, history)
        assert counted(driver.output("out")) == searched(history, keep, how, wait)
        assert driver.output("late") == []
        assert not any(rows["left"] for _, rows in driver.state("j").items()), "none waits when all is over"
        driver.restart(lose_replicas=True)
        assert counted(driver.output("out")) == searched(history, keep, how, wait)


@given(history=histories(disorder=5, crashes=False), wait=st.booleans())
@HISTORIES
def test_which_side_comes_first_makes_no_difference(history, wait):
    found = []
    for first in ("left", "right"):
        with TestDriver(asof(wait=wait, how="left", disorder=5, first=first)) as driver:
            states = []
            for batch in history:
                send(driver, *batch[:2])
                states.append(dict(driver.state("j").items()))
            driver.finish()
            found.append((counted(driver.output("out")), states))
    assert found[0] == found[1]


# --- which ---


def test_the_newest_at_or_before_the_row_is_taken_and_none_after_it():
    with TestDriver(asof(how="left")) as driver:
        send(driver, [], [("r1", 1), ("r5", 5), ("r9", 9)])
        send(driver, [("l0", 0), ("l1", 1), ("l4", 4), ("l5", 5), ("l8", 8), ("l30", 30)])
        expected = [("l0", None), ("l1", "r1"), ("l4", "r1"), ("l5", "r5"), ("l8", "r5"), ("l30", None)]
        assert driver.output("out") == expected


def test_of_several_rows_of_one_time_the_last_to_arrive_is_taken():
    with TestDriver(asof()) as driver:
        send(driver, [("l1", 5)], [("first", 5), ("second", 5)])
        send(driver, [("l2", 5)], [])
        send(driver, [("l3", 5)], [("third", 5)])
        assert driver.output("out") == [("l1", "second"), ("l2", "second"), ("l3", "third")]


def test_right_rows_of_the_same_batch_have_arrived():
    with TestDriver(asof()) as driver:
        send(driver, [("l", 5)], [("r", 4)])
        assert driver.output("out") == [("l", "r")]


def test_keys_are_apart():
    with TestDriver(asof(how="left")) as driver:
        send(
            driver,
            [("l", 5, "a"), ("m", 5, "a\x00r:"), ("n", 5, 1)],
            [("r", 4, "b"), ("s", 4, "a\x00"), ("t", 4, True)],
        )
        assert counted(driver.output("out")) == {("l", None): 1, ("m", None): 1, ("n", None): 1}


def test_an_output_carries_the_left_rows_time():
    app = mp.App("times")
    left, right = (app.stream(s, mp.sources.rows([]), timestamp="at").key_by("k") for s in ("left", "right"))
    pairs = left.join_asof("j", right, keep=9, how="left", merge=ids)
    pairs.apply("time", lambda pair, state: (*pair, state.time)).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        send(driver, [("l", 5), ("m", 2)], [("r", 4)])
        assert driver.output("out") == [("l", "r", 5), ("m", None, 2)]


def test_times_may_be_instants():
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    with TestDriver(asof(keep="1h", how="left")) as driver:
        send(driver, [("l", noon), ("m", noon + timedelta(minutes=1))], [("r", noon - timedelta(hours=1))])
        assert driver.output("out") == [("l", "r"), ("m", None)]


# --- waiting ---


def test_a_row_that_waits_is_joined_when_the_watermark_has_passed_it_and_not_before():
    with TestDriver(asof(wait=True, how="left")) as driver:
        send(driver, [("l", 10), ("m", 11)], [("r", 1)])
        send(driver, [("z", 10, "z")], [("s", 10)])
        assert driver.output("out") == [], "a right row at 10 may still come"
        assert driver.state("j").get("a") == {
            "left": [row("l", 10), row("m", 11)],
            "right": [row("r", 1), row("s", 10)],
        }
        send(driver, [("z2", 11, "z")], [("t", 11)])
        assert driver.output("out") == [("l", "s"), ("z", None)]
        assert driver.state("j").get("a")["left"] == [row("m", 11)]
        driver.restart(lose_replicas=True)
        driver.finish()
        assert driver.output("out") == [("l", "s"), ("z", None), ("m", "t"), ("z2", None)]


def test_a_row_that_waits_meets_its_match_although_both_are_over_at_once():
    with TestDriver(asof(wait=True, keep=3)) as driver:
        send(driver, [("l", 10)], [("r", 7)])
        send(driver, [("z", 99, "z")], [("z", 99, "z")])
        assert driver.output("out") == [("l", "r")]
        assert driver.state("j").get("a") is None


def test_without_waiting_nothing_is_held():
    with TestDriver(asof(how="left")) as driver:
        send(driver, [("l", 10)], [])
        assert driver.output("out") == [("l", None)]
        assert driver.state("j").get("a") is None


def test_rows_that_waited_come_out_of_a_program_that_waits_no_longer():
    with TestDriver(asof(wait=True)) as driver:
        send(driver, [("l", 10)], [("r", 7)])
        driver.restart(asof(wait=False))
        send(driver, [("m", 11)], [("s", 11)])
        driver.finish()
        assert counted(driver.output("out")) == {("l", "r"): 1, ("m", "s"): 1}


# --- what is kept ---


def test_right_rows_leave_when_the_watermark_is_further_ahead_than_they_are_kept():
    with TestDriver(asof(keep=20)) as driver:
        send(driver, [], [("r", 10), ("s", 11)])
        send(driver, [("l", 30)], [("t", 30)])
        assert driver.state("j").get("a")["right"] == [row("r", 10), row("s", 11), row("t", 30)]
        send(driver, [("l", 31)], [("u", 31)])
        assert driver.state("j").get("a")["right"] == [row("s", 11), row("t", 30), row("u", 31)]


def test_the_end_of_the_input_leaves_what_later_rows_may_match():
    with TestDriver(asof()) as driver:
        send(driver, [("l", 10)], [("r", 10)])
        driver.finish()
        send(driver, [("m", 15)])
        assert driver.output("out") == [("l", "r"), ("m", "r")]


def test_a_program_that_keeps_rows_longer_keeps_those_that_it_has():
    with TestDriver(asof(keep=5)) as driver:
        send(driver, [], [("r", 10)])
        driver.restart(asof(keep=50))
        send(driver, [("l", 40)], [("z", 40, "z")])
        send(driver, [("m", 41)], [])
        assert counted(driver.output("out")) == {("l", "r"): 1, ("m", "r"): 1}


def test_a_left_row_writes_nothing_where_it_does_not_wait():
    storage = open_storage("memory://")
    with TestDriver(asof(), storage=storage) as driver:
        send(driver, [("l", 10)], [("r", 10)])
        assert [cell[:2] for _, cell, _, _ in changes(storage, "joined", "j")] == ["r:"]


# --- late rows ---


def test_a_left_row_behind_the_watermark_still_meets_the_match_that_is_kept():
    with TestDriver(asof(keep=20)) as driver:
        send(driver, [], [("r", 10), ("s", 14)])
        send(driver, [("l", 30)], [("t", 30)])
        send(driver, [("behind", 13)])
        assert driver.output("out") == [("l", "t"), ("behind", "r")]
        assert driver.output("late") == []


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("wait", [False, True])
def test_a_left_row_behind_the_watermark_whose_match_may_be_gone_is_late(how, wait):
    with TestDriver(asof(keep=5, how=how, wait=wait)) as driver:
        send(driver, [], [("r", 10)])
        send(driver, [("l", 30)], [("t", 30)])
        send(driver, [("late", 12)])
        driver.finish()
        assert counted(driver.output("out")) == {("l", "t"): 1}
        assert driver.output("late") == [{"row": row("late", 12), "key": "a", "late_by": 18, "side": "left"}]


def test_a_right_row_that_no_row_in_time_can_reach_is_late():
    with TestDriver(asof(keep=5)) as driver:
        send(driver, [("l", 30)], [("t", 30)])
        send(driver, [], [("reached", 25), ("late", 24)])
        assert driver.output("late") == [{"row": row("late", 24), "key": "a", "late_by": 6, "side": "right"}]
        assert driver.state("j").get("a")["right"] == [row("reached", 25), row("t", 30)]


# --- crashes ---


@pytest.mark.parametrize("lose_replicas", [False, True], ids=["replicas kept", "replicas lost"])
@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("at, when", EVERYWHERE)
def test_no_row_is_lost_or_doubled_by_a_crash_anywhere(at, when, wait, lose_replicas):
    batches = [
        ([(1, 10, "a"), (2, 11, "b")], [(3, 9, "a")]),
        ([(4, 20, "a")], [(5, 13, "b"), (6, 14, "c")]),
        ([(7, 30, "a")], [(8, 30, "a"), (9, 29, "b")]),
    ]
    for dies in range(len(batches)):
        history = [(*batch, ((at, when), lose_replicas) if n == dies else None) for n, batch in enumerate(batches)]
        with TestDriver(asof(how="left", wait=wait, keep=12, partitions=2)) as driver:
            live_through(driver, history)
            assert counted(driver.output("out")) == searched(history, 12, "left", wait)


# --- merge and wrong use ---


def test_a_merge_that_raises_is_told_with_both_rows():
    def refuse(left, right):
        raise ValueError("no")

    with TestDriver(asof(merge=refuse)) as driver:
        with pytest.raises(mp.errors.StepFailed, match="ValueError: no") as failed:
            send(driver, [("l", 10)], [("r", 9)])
        assert failed.value.row == {"left": row("l", 10), "right": row("r", 9)}


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"how": "right"}, r"join_asof\('j', how\): expected 'inner', 'left', got 'right'"),
        ({"keep": None}, r"join_asof\('j', keep\): expected how far back a match may lie, for example \"7d\""),
        ({"keep": -1}, r"join_asof\('j', keep\): expected a duration that is not negative, got -1"),
        ({"wait": "yes"}, r"join_asof\('j', wait\): expected True or False, got 'yes'"),
        ({"merge": "both"}, r"join_asof\('j', merge\): expected a function of both rows, got 'both'"),
    ],
)
def test_a_wrong_option_is_told_where_the_program_is_written(how, said):
    with pytest.raises(mp.errors.InvalidUse, match=said):
        asof(**how)


def test_how_long_rows_are_kept_is_said_in_the_unit_of_the_times():
    with (
        TestDriver(asof(keep="7d")) as driver,
        pytest.raises(mp.errors.InvalidUse, match=r"join_asof\('j', keep\): the stream's times are whole numbers"),
    ):
        send(driver, [("l", 10)], [("r", 9)])
