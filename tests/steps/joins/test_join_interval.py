"""`join_interval`: pairs of rows near each other in time, each once; unmatched rows once, when it is certain."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_reader import changes, ledger
from small_joins import EVERYWHERE, HISTORIES, counted, histories, ids, joined, live_through, row, send

import millpond as mp
from millpond.storage import open_storage
from millpond.testing import Crashed, TestDriver

HOWS = ["inner", "left", "right", "outer"]
NONE = mp.NO_GRACE


def nested_loop(lefts: list[Any], rights: list[Any], before: int, after: int, how: str) -> Counter[Any]:
    """Every pair of the whole input, and the rows that are in none."""
    found = [
        (left[0], right[0])
        for left in lefts
        for right in rights
        if left[2] == right[2] and left[1] - before <= right[1] <= left[1] + after
    ]
    in_left, in_right = {left for left, _ in found}, {right for _, right in found}
    if how in ("left", "outer"):
        found += [(left[0], None) for left in lefts if left[0] not in in_left]
    if how in ("right", "outer"):
        found += [(None, right[0]) for right in rights if right[0] not in in_right]
    return Counter(found)


# --- any history ---


@given(
    history=histories(disorder=12),
    how=st.sampled_from(HOWS),
    before=st.integers(0, 8),
    after=st.integers(0, 8),
    grace=st.integers(0, 12),
    partitions=st.sampled_from([1, 3]),
)
@HISTORIES
def test_any_history_gives_what_a_nested_loop_over_the_whole_input_gives(
    history, how, before, after, grace, partitions
):
    """What comes later than the disorder allows comes within the grace."""
    app = joined(
        before=before, after=after, grace=grace, how=how, merge=ids, disorder=12 - grace, partitions=partitions
    )
    with TestDriver(app) as driver:
        lefts, rights = live_through(driver, history)
        assert counted(driver.output("out")) == nested_loop(lefts, rights, before, after, how)
        assert driver.output("late") == []
        assert list(driver.state("j").items()) == [], "nothing stays when all is over"
        driver.restart(lose_replicas=True)
        assert counted(driver.output("out")) == nested_loop(lefts, rights, before, after, how)


@given(history=histories(disorder=5, crashes=False), how=st.sampled_from(HOWS))
@HISTORIES
def test_which_side_comes_first_makes_no_difference(history, how):
    found = []
    for first in ("left", "right"):
        app = joined(before=3, after=5, grace=1, how=how, merge=ids, disorder=5, first=first)
        with TestDriver(app) as driver:
            states = []
            for batch in history:
                send(driver, *batch[:2])
                states.append(
                    sorted((k, sorted(map(str, v["left"] + v["right"]))) for k, v in driver.state("j").items())
                )
            driver.finish()
            found.append((counted(driver.output("out")), states))
    assert found[0] == found[1]


@given(history=histories(disorder=5), how=st.sampled_from(HOWS))
@HISTORIES
def test_a_stream_joined_with_itself_gives_every_pair_once(history, how):
    app = mp.App("self")
    rows = app.stream("left", mp.sources.rows([]), timestamp="at", disorder=5).key_by("k")
    app.stream("right", mp.sources.rows([]))
    rows.join_interval("j", rows, before=2, after=4, grace=NONE, how=how, merge=ids).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        lefts, _ = live_through(driver, history)
        assert counted(driver.output("out")) == nested_loop(lefts, lefts, 2, 4, how)


@given(history=histories(disorder=5), how=st.sampled_from(HOWS), later=st.sampled_from(["left", "right"]))
@HISTORIES
def test_a_side_that_comes_a_stage_earlier_waits_for_the_other(history, how, later):
    app = mp.App("stages", partitions=2)
    sides = {}
    for name in ("left", "right"):
        sides[name] = app.stream(name, mp.sources.rows([]), timestamp="at", disorder=5).key_by("k")
    sides[later] = sides[later].key_by("id").apply(f"pass {later}", lambda row, state: row).key_by("k")
    pairs = sides["left"].join_interval("j", sides["right"], before=2, after=4, grace=NONE, how=how, merge=ids)
    pairs.to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        lefts, rights = live_through(driver, history)
        assert counted(driver.output("out")) == nested_loop(lefts, rights, 2, 4, how)


# --- when ---


def test_pairs_come_with_the_second_of_their_rows_and_the_bounds_are_inclusive():
    with TestDriver(joined(before=2, after=5, grace=100, merge=ids)) as driver:
        send(driver, [("l", 10)])
        assert driver.output("out") == []
        send(driver, [], [("r7", 7), ("r8", 8)])
        assert driver.output("out") == [("l", "r8")]
        send(driver, [], [("r15", 15), ("r16", 16)])
        assert driver.output("out") == [("l", "r8"), ("l", "r15")]


def test_both_rows_of_a_pair_may_come_in_one_batch():
    with TestDriver(joined(before=2, after=5, grace=NONE, merge=ids)) as driver:
        send(driver, [("l", 10)], [("r", 12)])
        assert counted(driver.output("out")) == {("l", "r"): 1}


def test_rows_of_different_keys_do_not_meet():
    with TestDriver(joined(before=2, after=5, grace=NONE, merge=ids)) as driver:
        send(driver, [("l", 10, "a")], [("r", 10, "b")])
        assert driver.output("out") == []


@pytest.mark.parametrize(("how", "last"), [("left", 10 + 5 + 3), ("right", 10 + 2 + 3)])
def test_an_unmatched_row_comes_once_when_no_partner_can_come_any_more_and_not_before(how, last):
    """A left row waits for `after`, a right row for `before`, and both for the grace."""
    unmatched = ("x", None) if how == "left" else (None, "x")
    with TestDriver(joined(before=2, after=5, grace=3, how=how, merge=ids)) as driver:
        send(driver, *([("x", 10)], []) if how == "left" else ([], [("x", 10)]))
        send(driver, [("l", last, "z")], [("r", last, "z")])
        assert unmatched not in counted(driver.output("out")), "a partner would still be in time"
        assert driver.state("j").get("a") == {
            "left": [row("x", 10)] if how == "left" else [],
            "right": [row("x", 10)] if how == "right" else [],
        }
        send(driver, [("l", last + 1, "z")], [("r", last + 1, "z")])
        assert counted(driver.output("out"))[unmatched] == 1
        assert driver.state("j").get("a") is None, "and it has left the state"
        send(driver, [("l", last + 50, "z")], [("r", last + 50, "z")])
        driver.finish()
        assert counted(driver.output("out"))[unmatched] == 1


def test_a_partner_in_the_last_moment_is_still_met():
    with TestDriver(joined(before=2, after=5, grace=3, how="outer", merge=ids)) as driver:
        send(driver, [("x", 10)], [])
        send(driver, [("l", 18, "z")], [("r", 18, "z")])  # the watermark is 18, rows from 15 on are in time
        send(driver, [], [("y", 15)])
        driver.finish()
        assert counted(driver.output("out")) == {("x", "y"): 1, ("l", "r"): 1}


def test_a_row_that_has_met_a_partner_never_comes_alone_whenever_they_met():
    with TestDriver(joined(before=0, after=5, grace=NONE, how="outer", merge=ids)) as driver:
        send(driver, [("l", 10)])
        send(driver, [], [("r", 11)])
        driver.restart(lose_replicas=True)
        send(driver, [("z", 99, "z")], [("z", 99, "z")])
        driver.finish()
        assert counted(driver.output("out")) == {("l", "r"): 1, ("z", "z"): 1}


def test_the_end_of_the_input_brings_what_is_unmatched():
    with TestDriver(joined(before=0, after=5, grace=NONE, how="outer", merge=ids)) as driver:
        send(driver, [("l", 10)], [("r", 2)])
        assert driver.output("out") == []
        driver.finish()
        assert counted(driver.output("out")) == {("l", None): 1, (None, "r"): 1}
        driver.finish()
        assert len(driver.output("out")) == 2


def test_an_unmatched_row_comes_by_the_clock_where_streams_have_gone_quiet():
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    app = mp.App("quiet")
    left, right = (
        app.stream(s, mp.sources.rows([]), timestamp="at", idle_after="10s").key_by("k") for s in ("left", "right")
    )
    pairs = left.join_interval("j", right, before="0s", after="1m", grace="5s", how="left", merge=ids)
    pairs.to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        send(driver, [("l", noon)], [("r", noon - timedelta(seconds=1))])
        driver.advance("70s")
        assert driver.output("out") == [], "the watermark stands at 12:01:00, and waits until it is past 12:01:05"
        driver.advance("10s")
        assert driver.output("out") == [("l", None)]


def test_outputs_stand_where_the_later_of_their_rows_came_and_unmatched_ones_in_order_of_time():
    """The step behind them sees them so, too."""
    app = mp.App("order")
    left, right = (app.stream(s, mp.sources.rows([]), timestamp="at", disorder=9) for s in ("left", "right"))
    pairs = left.key_by("k").join_interval("j", right.key_by("k"), before=3, after=3, grace=NONE, how="left", merge=ids)
    pairs.to("out", mp.sinks.memory())
    pairs.apply("seen", lambda pair, state: state.list("seen").append(pair))
    with TestDriver(app) as driver:
        send(driver, [("l2", 12), ("l1", 11), ("u2", 7), ("u1", 6)], [("r2", 12), ("r1", 11)])
        driver.finish()
        expected = [("l1", "r2"), ("l2", "r2"), ("l1", "r1"), ("l2", "r1"), ("u1", None), ("u2", None)]
        assert driver.output("out") == expected
        assert driver.state("seen").get("a") == {"seen": expected}


def test_what_comes_after_the_end_and_could_have_met_what_was_let_go_is_late():
    with TestDriver(joined(before=0, after=5, grace=1, how="outer", merge=ids)) as driver:
        send(driver, [("l", 10)])
        driver.finish()
        assert driver.output("out") == [("l", None)]
        send(driver, [], [("r", 15), ("s", 16)])
        assert [late["row"]["id"] for late in driver.output("late")] == ["r"]
        driver.finish()
        assert driver.output("out") == [("l", None), (None, "s")]


# --- time of the output ---


def test_an_output_carries_the_later_sides_time_and_an_unmatched_one_its_own():
    app = mp.App("times")
    left, right = (app.stream(s, mp.sources.rows([]), timestamp="at").key_by("k") for s in ("left", "right"))
    pairs = left.join_interval("j", right, before=5, after=5, grace=NONE, how="outer", merge=ids)
    pairs.key_by(k=lambda pair: "all").apply("time", lambda pair, state: [*pair, state.time]).to(
        "out", mp.sinks.memory()
    )
    with TestDriver(app) as driver:
        send(driver, [("l", 10), ("alone", 30)], [("r", 12), ("s", 8)])
        driver.finish()
        assert counted(driver.output("out")) == {("l", "r", 12): 1, ("l", "s", 10): 1, ("alone", None, 30): 1}


@given(history=histories(disorder=6, crashes=False), how=st.sampled_from(HOWS))
@HISTORIES
def test_nothing_that_a_join_brings_is_late_for_a_window_behind_it(history, how):
    app = mp.App("behind")
    left, right = (
        app.stream(s, mp.sources.rows([]), timestamp="at", disorder=4).key_by("k") for s in ("left", "right")
    )
    pairs = left.join_interval("j", right, before=3, after=5, grace=2, how=how, merge=ids).to("out", mp.sinks.memory())
    pairs.late.to("late", mp.sinks.memory())
    pairs.map(lambda pair: pair).late.to("behind", mp.sinks.memory())
    with TestDriver(app) as driver:
        lefts, rights = live_through(driver, history)
        assert counted(driver.output("out")) == nested_loop(lefts, rights, 3, 5, how)
        assert driver.output("behind") == driver.output("late") == []


# --- late rows ---


def test_a_row_older_than_the_grace_allows_goes_aside_with_how_late_it_was_and_joins_nothing():
    with TestDriver(joined(before=50, after=50, grace=5, how="outer", merge=ids)) as driver:
        send(driver, [("l", 100)], [("r", 100)])
        send(driver, [("in time", 95), ("late", 94)], [("late too", 90)])
        assert driver.output("late") == [
            {"row": row("late", 94), "key": "a", "late_by": 6, "side": "left"},
            {"row": row("late too", 90), "key": "a", "late_by": 10, "side": "right"},
        ]
        driver.finish()
        assert counted(driver.output("out")) == {("l", "r"): 1, ("in time", "r"): 1}


def test_late_rows_are_counted():
    storage = open_storage("memory://")
    with TestDriver(joined(before=0, after=5, grace=NONE, merge=ids), storage=storage) as driver:
        send(driver, [("l", 100)], [("r", 100)])
        send(driver, [("late", 94), ("late too", 93)], [("r", 90)])
        assert ledger(storage, "joined")[-1]["late"] == {"j": 3}


def test_lateness_is_a_duration_where_times_are_instants():
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    with TestDriver(joined(before="1m", after="1h", grace=NONE, merge=ids)) as driver:
        send(driver, [("l", noon)], [("r", noon + timedelta(hours=1)), ("far", noon + timedelta(hours=1, seconds=1))])
        send(driver, [("late", noon - timedelta(minutes=2))])
        assert counted(driver.output("out")) == {("l", "r"): 1}
        assert [late["late_by"] for late in driver.output("late")] == [timedelta(minutes=2)]


# --- crashes ---


@pytest.mark.parametrize("lose_replicas", [False, True], ids=["replicas kept", "replicas lost"])
@pytest.mark.parametrize("at, when", EVERYWHERE)
def test_no_pair_is_lost_or_doubled_by_a_crash_anywhere(at, when, lose_replicas):
    batches = [
        ([("l1", 10), ("l2", 11, "b")], [("r1", 12)]),
        ([("l3", 20)], [("r2", 13), ("r3", 14, "c")]),
        ([("l4", 30)], [("r4", 30), ("r5", 29, "b")]),
        ([("l5", 60)], [("r6", 60)]),
    ]
    for dies in range(len(batches)):
        with TestDriver(joined(before=1, after=6, grace=2, how="outer", merge=ids, partitions=2)) as driver:
            history = [(*batch, ((at, when), lose_replicas) if n == dies else None) for n, batch in enumerate(batches)]
            lefts, rights = live_through(driver, history)
            lefts, rights = ([(*row, "a")[:3] for row in rows] for rows in (lefts, rights))
            assert counted(driver.output("out")) == nested_loop(lefts, rights, 1, 6, "outer")


# --- what is kept ---


def test_a_match_rewrites_a_kept_row_only_where_it_matters_and_once():
    """Only on a side whose unmatched rows come out is it written down what a row has met."""
    for how, rewritten in (("inner", 0), ("left", 1), ("right", 0), ("outer", 1)):
        storage = open_storage("memory://")
        with TestDriver(joined(before=5, after=5, grace=100, how=how, merge=ids), storage=storage) as driver:
            send(driver, [("l", 10)])
            send(driver, [], [("r1", 11)])
            assert len(changes(storage, "joined", "j")) == 1 + rewritten, how
            send(driver, [], [("r2", 11)])
            assert len(changes(storage, "joined", "j")) == 1, how


def test_a_row_that_no_partner_can_follow_is_never_kept():
    storage = open_storage("memory://")
    with TestDriver(joined(before=0, after=1, grace=NONE, how="outer", merge=ids), storage=storage) as driver:
        send(driver, [("old", 1), ("new", 50)], [("new", 50)])
        cells = [cell for _, cell, _, _ in changes(storage, "joined", "j")]
        assert len(cells) == 2
        assert counted(driver.output("out")) == {("old", None): 1, ("new", "new"): 1}


def test_the_state_of_a_key_is_its_rows_by_side_in_order_of_time():
    with TestDriver(joined(before=5, after=5, grace=9, how="left", merge=ids, disorder=9)) as driver:
        send(driver, [("l2", 12), ("l1", 10)], [("r", 9)])
        assert driver.state("j").get("a") == {"left": [row("l1", 10), row("l2", 12)], "right": [row("r", 9)]}
        assert dict(driver.state("j").items()) == {"a": driver.state("j").get("a")}
        assert driver.state("j").get("b") is None


def test_rows_of_one_time_are_all_kept_whatever_batch_they_came_in():
    with TestDriver(joined(before=5, after=5, grace=9, merge=ids)) as driver:
        send(driver, [("l", 10), ("m", 10)])
        send(driver, [("n", 10)])
        send(driver, [], [("r", 10)])
        assert counted(driver.output("out")) == {("l", "r"): 1, ("m", "r"): 1, ("n", "r"): 1}


# --- a changed program ---


def test_a_join_that_has_grown_more_patient_keeps_what_it_has_kept_for_longer():
    with TestDriver(joined(before=0, after=5, grace=NONE, how="left", merge=ids)) as driver:
        send(driver, [("l", 10)])
        driver.restart(joined(before=0, after=50, grace=NONE, how="left", merge=ids))
        send(driver, [("z", 40, "z")], [("z", 40, "z")])
        send(driver, [], [("r", 55)])
        driver.finish()
        assert counted(driver.output("out")) == {("l", "r"): 1, ("z", "z"): 1}


def test_rows_kept_while_nobody_asked_what_they_met_do_not_come_out_as_unmatched():
    with TestDriver(joined(before=0, after=5, grace=NONE, how="inner", merge=ids)) as driver:
        send(driver, [("l", 10)])
        send(driver, [], [("r", 11)])
        driver.restart(joined(before=0, after=5, grace=NONE, how="outer", merge=ids))
        driver.finish()
        assert counted(driver.output("out")) == {("l", "r"): 1}


def test_rows_that_met_nobody_stay_silent_in_a_program_that_no_longer_asks():
    with TestDriver(joined(before=0, after=5, grace=NONE, how="outer", merge=ids)) as driver:
        send(driver, [("l", 10)])
        driver.restart(joined(before=0, after=5, grace=NONE, how="inner", merge=ids))
        driver.finish()
        assert driver.output("out") == []


# --- merge ---


def test_without_a_merge_the_fields_of_both_stand_in_the_row():
    with TestDriver(joined(before=0, after=5, grace=NONE, how="outer")) as driver:
        send(driver, [("l", 10)], [("r", 11)])
        assert driver.output("out") == [{"k": "a", "at": 10, "id": "l", "at_right": 11, "id_right": "r"}]
        send(driver, [("l2", 90)], [("r2", 80)])
        driver.finish()
        assert driver.output("out")[1:] == [row("r2", 80), row("l2", 90)]


@dataclass
class Order:
    k: str
    at: int
    n: int


def test_rows_with_a_type_of_their_own_are_given_to_merge_as_they_are_and_become_dicts_without_one():
    for merge, expected in [(None, {"k": "a", "at": 1, "n": 2, "at_right": 3}), (lambda o, r: o.n + r["at"], 5)]:
        app = mp.App("typed")
        orders = app.stream("orders", mp.sources.rows([]), timestamp="at", type=Order).key_by("k")
        paid = app.stream("paid", mp.sources.rows([]), timestamp="at").key_by("k")
        orders.join_interval("j", paid, before=0, after=5, grace=NONE, merge=merge).to("out", mp.sinks.memory())
        with TestDriver(app) as driver:
            driver.send("orders", [{"k": "a", "at": 1, "n": 2}])
            driver.restart(lose_replicas=True)
            driver.send("paid", [{"k": "a", "at": 3}])
            assert driver.output("out") == [expected]


def test_rows_without_fields_fail_with_the_word_to_give_a_merge():
    app = mp.App("plain")
    left, right = (
        app.stream(s, mp.sources.rows([]), timestamp=lambda n: n).key_by(k=lambda n: 0) for s in ("left", "right")
    )
    left.join_interval("j", right, before=0, after=5, grace=NONE).to("out", mp.sinks.memory())
    with (
        TestDriver(app) as driver,
        pytest.raises(mp.errors.StepFailed, match=r"'j', batch 1: .* this int has none .* merge=lambda left, right"),
    ):
        driver.send({"left": [1], "right": [2]})


def test_a_merge_may_change_what_it_is_given_and_what_it_returned_may_be_changed():
    def greedy(left, right):
        left["tags"].append(right["id"])
        return left

    app = mp.App("greedy")
    left, right = (app.stream(s, mp.sources.rows([]), timestamp="at").key_by("k") for s in ("left", "right"))
    pairs = left.join_interval("j", right, before=0, after=5, grace=9, merge=greedy)
    pairs.map(lambda row: row["tags"].append("!") or row["tags"]).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send({"left": [row("l", 10, tags=[])], "right": [row("r1", 10), row("r2", 11)]})
        driver.send("right", [row("r3", 12)])
        assert driver.output("out") == [["r1", "!"], ["r2", "!"], ["r3", "!"]]
        assert driver.state("j").get("a")["left"] == [row("l", 10, tags=[])]


def refusing(left, right):
    if right and right["id"] == "bad":
        raise ValueError("no")
    return ids(left, right)


@pytest.mark.parametrize("on_error", ["skip", "dead-letter"])
def test_a_pair_whose_merge_raises_is_all_that_is_lost(on_error):
    """The two have met, so neither comes alone, and each may still meet others."""
    app = mp.App("fails")
    left, right = (app.stream(s, mp.sources.rows([]), timestamp="at").key_by("k") for s in ("left", "right"))
    pairs = left.join_interval(
        "j", right, before=0, after=5, grace=NONE, how="outer", merge=refusing, on_error=on_error
    )
    pairs.to("out", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    with TestDriver(app) as driver:
        send(driver, [("l", 10)], [("bad", 11)])
        send(driver, [("m", 11)], [("r", 12)])
        driver.finish()
        assert counted(driver.output("out")) == {("l", "r"): 1, ("m", "r"): 1}
        letters = driver.output("dead")
        if on_error == "skip":
            assert letters == []
        else:
            assert [(x["row"]["left"]["id"], x["row"]["right"]["id"], x["key"], x["step"]) for x in letters] == [
                ("l", "bad", "a", "j"),
                ("m", "bad", "a", "j"),
            ]
            assert letters[0]["error"] == "ValueError: no"


def test_a_merge_that_raises_stops_the_app_with_the_key_and_both_rows():
    with TestDriver(joined(before=0, after=5, grace=NONE, merge=refusing)) as driver:
        send(driver, [("l", 10)])
        with pytest.raises(mp.errors.StepFailed, match="ValueError: no") as failed:
            send(driver, [], [("bad", 11)])
        assert failed.value.key == "a"
        assert failed.value.row == {"left": row("l", 10), "right": row("bad", 11)}


def test_a_merge_that_recovers_is_called_again():
    calls = iter([True, False])

    def flaky(left, right):
        if next(calls):
            raise OSError("busy")
        return ids(left, right)

    app = joined(before=0, after=5, grace=NONE, merge=flaky, on_error=mp.retry(2, "1ms"))
    with TestDriver(app) as driver:
        send(driver, [("l", 10)], [("r", 10)])
        assert counted(driver.output("out")) == {("l", "r"): 1}


# --- wrong use ---


def streams() -> tuple[Any, Any, Any]:
    app = mp.App("wrong")
    left, right = (app.stream(s, mp.sources.rows([]), timestamp="at") for s in ("left", "right"))
    return app, left, right


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"grace": None}, r"join_interval\('j', grace\): expected how long to wait .* give grace=mp.NO_GRACE"),
        ({"how": "full"}, r"join_interval\('j', how\): expected 'inner', 'left', 'right', 'outer', got 'full'"),
        ({"before": -1}, r"join_interval\('j', before\): expected a duration that is not negative, got -1"),
        ({"after": "soon"}, r"join_interval\('j', after\): expected a duration such as"),
        ({"grace": -5}, r"join_interval\('j', grace\): expected a duration that is not negative"),
        ({"before": "1s", "after": 5}, r"join_interval\('j'\): expected durations of one kind"),
        ({"merge": 5}, r"join_interval\('j', merge\): expected a function of both rows, got 5"),
        ({"on_error": "ignore"}, r"join_interval\('j'\): expected \"stop\""),
    ],
)
def test_a_wrong_option_is_told_where_the_program_is_written(how, said):
    _, left, right = streams()
    with pytest.raises(mp.errors.InvalidUse, match=said):
        left.key_by("k").join_interval("j", right.key_by("k"), **{"before": 0, "after": 1, "grace": NONE, **how})


def test_grace_is_never_left_out():
    _, left, right = streams()
    with pytest.raises(mp.errors.InvalidUse, match=r"join_interval\('j', grace\): expected how long to wait"):
        left.key_by("k").join_interval("j", right.key_by("k"), before=0, after=1)


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        (["a"], ["b"], r"the left keyed by 'a' and the right by 'b'"),
        (["a", "b"], ["a"], r"the left keyed by 'a', 'b' and the right by 'a'"),
        (["a", "b"], ["b", "a"], r"the left keyed by 'a', 'b' and the right by 'b', 'a'"),
    ],
)
def test_streams_that_are_keyed_differently_are_not_joined(ours, theirs, said):
    _, left, right = streams()
    with pytest.raises(
        mp.errors.InvalidUse, match=rf"join_interval\('j'\): expected both sides keyed alike, got {said}"
    ):
        left.key_by(*ours).join_interval("j", right.key_by(*theirs), before=0, after=1, grace=NONE)


def test_the_other_side_is_a_keyed_stream_of_the_same_app():
    _, left, right = streams()
    for other in (right, None, streams()[2].key_by("k")):
        with pytest.raises(
            mp.errors.InvalidUse, match=r"join_interval\('j'\): expected .* keyed stream of the same app"
        ):
            left.key_by("k").join_interval("j", other, before=0, after=1, grace=NONE)


def test_a_row_without_a_time_meets_the_policy_of_the_step():
    app = mp.App("timeless")
    timed = app.stream("timed", mp.sources.rows([]), timestamp="at")
    left = app.stream("left", mp.sources.rows([])).union(timed).key_by("k")
    right = app.stream("right", mp.sources.rows([]), timestamp="at").key_by("k")
    left.join_interval("j", right, before=0, after=1, grace=NONE, on_error="dead-letter").to("out", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send({"left": [row("l", 1)], "right": [row("r", 1)]})
        (letter,) = driver.output("dead")
        assert (letter["row"], letter["key"], letter["step"]) == (row("l", 1), "a", "j")
        assert "this row of the left side has none" in letter["error"]
        assert driver.output("out") == []


def test_durations_of_another_kind_than_the_times_are_refused():
    with (
        TestDriver(joined(before="1s", after="5s", grace=NONE)) as driver,
        pytest.raises(mp.errors.InvalidUse, match=r"join_interval\('j'.*whole number"),
    ):
        send(driver, [("l", 10)], [("r", 10)])


@pytest.mark.parametrize("together", [True, False])
def test_times_of_different_kinds_on_the_two_sides_are_refused(together):
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    with (
        TestDriver(joined(before=0, after=0, grace=NONE)) as driver,
        pytest.raises(mp.errors.InvalidUse, match="datetimes"),
    ):
        if together:
            send(driver, [("l", 10)], [("r", noon)])
        else:
            send(driver, [("l", 10)])
            send(driver, [], [("r", noon)])


def test_a_batch_that_died_is_not_in_the_state_of_a_join():
    with TestDriver(joined(before=0, after=5, grace=NONE, merge=ids)) as driver:
        send(driver, [("l", 10)])
        before = driver.state("j").get("a")
        driver.crash(at="commit", when="before")
        with pytest.raises(Crashed):
            send(driver, [("m", 11)])
        assert driver.state("j").get("a") == before
