"""Triggers: when a window shows what it holds, and what a pane holds."""

from __future__ import annotations

import pytest
from outside import Calls
from small_windows import panes, row, rows, sent, windowed

import millpond as mp
from millpond.errors import InvalidUse, StepFailed
from millpond.testing import TestDriver

t = mp.triggers


def shown(trigger, pairs, window=None, **how):
    """The sums that go out for each row, and what goes out at the end."""
    app = windowed(window or mp.tumbling(100), trigger=trigger, **{"grace": 0, **how})
    found, seen = [], 0
    with TestDriver(app) as driver:
        for one in rows(*pairs):
            driver.send("rows", [one])
            outputs = driver.output("out")
            found.append([o["sum"] for o in outputs[seen:]])
            seen = len(outputs)
        driver.finish()
        return found, [(o["sum"], o["final"]) for o in driver.output("out")[seen:]]


def test_on_close_shows_one_pane():
    assert shown(t.on_close(), [(1, 1), (2, 2)]) == ([[], []], [(3, True)])


def test_on_update_shows_every_row_and_nothing_more_at_the_end():
    assert shown(t.on_update(), [(1, 1), (2, 2)]) == ([[1], [3]], [])


def test_every_rows_shows_every_nth_row_and_what_is_left():
    assert shown(t.every_rows(2), [(1, 1), (2, 2), (4, 3), (8, 4), (16, 5)]) == ([[], [3], [], [15], []], [(31, True)])


def test_every_rows_counts_for_each_window_by_itself():
    app = windowed(mp.hopping(10, 5), grace=100, trigger=t.every_rows(2))
    with sent(app, rows((1, 1), (2, 6), (4, 7))) as driver:
        assert panes(driver.output("out")) == [(0, 10, 3), (5, 15, 6)]


def test_on_match_shows_the_window_when_a_row_says_so_that_row_included():
    assert shown(t.on_match(lambda r: r["v"] == 0), [(1, 1), (0, 2), (2, 3)]) == ([[], [1], []], [(3, True)])


def test_when_is_asked_after_the_row_was_counted():
    assert shown(t.when(lambda result, r: result["sum"] >= 3), [(1, 1), (2, 2)]) == ([[], [3]], [])


@pytest.mark.parametrize(("how", "last"), [("accumulate", 7), ("discard", 4)])
def test_a_row_that_fires_before_it_is_counted_opens_the_next_pane(how, last):
    before = t.when(lambda result, r: r["v"] == 4, before=True)
    assert shown(before, [(1, 1), (2, 2), (4, 3)], panes=how) == ([[], [], [3]], [(last, True)])


def test_before_sees_the_result_without_the_row():
    seen = Calls()
    trigger = t.when(lambda result, r: seen.append((result["sum"], r["v"])), before=True)
    shown(trigger, [(1, 1), (2, 2), (4, 3)])
    assert seen == [(1, 2), (3, 4)], "the first row opens the window: there is nothing to show before it"


def test_at_end_shows_the_window_when_the_watermark_has_come_to_its_end_and_the_delay():
    pairs = [(1, 1), (2, 100), (4, 104), (8, 105), (16, 99), (32, 119), (64, 120)]
    found, rest = shown(t.at_end(5), pairs, grace=20)
    # At 105 the watermark is 5 beyond the end; 16@99 is within the grace and goes out when the window closes.
    assert found == [[], [], [], [1], [], [], [17]]
    assert rest == [(2 + 4 + 8 + 32 + 64, True)]


def test_at_end_beyond_the_grace_is_the_close():
    assert shown(t.at_end(50), [(1, 1), (2, 130)], grace=20) == ([[], [1]], [(2, True)])


@pytest.mark.parametrize(("fraction", "expected"), [(0.5, [[], [3], [7]]), (0, [[1], [3], [7]]), (1, [[], [], []])])
def test_at_fraction_goes_by_the_time_of_the_row(fraction, expected):
    assert shown(t.at_fraction(fraction), [(1, 49), (2, 50), (4, 99)])[0] == expected


def test_every_goes_by_the_clock_and_needs_no_row():
    app = windowed(mp.tumbling(100), grace=0, trigger=t.every("10s"))
    with sent(app, rows((1, 1), (2, 2))) as driver:
        driver.advance("9s")
        assert driver.output("out") == []
        driver.advance("1s")
        assert [(o["sum"], o["pane"], o["final"]) for o in driver.output("out")] == [(3, 0, False)]
        driver.advance("30s")
        assert len(driver.output("out")) == 1, "nothing is new"
        driver.send("rows", [row(4, 3)])  # at 40 seconds: the next tick is at 50
        driver.advance("9s")
        assert len(driver.output("out")) == 1
        driver.advance("1s")
        assert [(o["sum"], o["pane"]) for o in driver.output("out")] == [(3, 0), (7, 1)]


def test_every_fires_after_a_restart():
    app = windowed(mp.session(5), grace=0, trigger=t.every("10s"))
    with sent(app, rows((1, 1), (2, 2))) as driver:
        driver.restart(lose_replicas=True)
        assert driver.output("out") == []
        driver.advance("10s")
        assert panes(driver.output("out")) == [(1, 2, 3)]


def test_every_counts_what_came_in_the_very_batch_in_which_its_time_has_come():
    app = windowed(mp.global_window(), trigger=t.every("10s"))
    with sent(app, [row(1, 1)]) as driver:
        driver.clock.advance(12)
        driver.send("rows", [row(2, 2)])
        assert [o["sum"] for o in driver.output("out")] == [3]


def test_any_of_fires_when_one_does_and_each_goes_on_by_itself():
    trigger = t.any_of(t.every_rows(3), t.on_match(lambda r: r["v"] == 0))
    assert shown(trigger, [(1, 1), (0, 2), (2, 3), (3, 4)])[0] == [[], [1], [3], []]


def test_any_of_takes_the_clock_and_the_watermark_together():
    app = windowed(mp.tumbling(10), grace=50, trigger=t.any_of(t.every("10s"), t.at_end()))
    with sent(app, [row(1, 1)]) as driver:
        driver.advance("10s")
        driver.send("rows", [row(2, 2)])
        driver.send("rows", [row(4, 10)])
        assert panes(driver.output("out")) == [(0, 10, 1), (0, 10, 3)]


def test_all_of_fires_when_each_has_fired_and_then_begins_again():
    trigger = t.all_of(t.every_rows(2), t.on_match(lambda r: r["v"] == 0))
    pairs = [(0, 1), (1, 2), (1, 3), (1, 4), (0, 5), (0, 6), (1, 7)]
    # The row at 5 has counted for its own pane, and does not count for the next one.
    assert shown(trigger, pairs)[0] == [[], [1], [], [], [3], [], [4]]


def test_all_of_begins_again_with_the_clock_and_the_end_too():
    app = windowed(mp.tumbling(10), grace=50, trigger=t.all_of(t.at_end(), t.every_rows(2)))
    with sent(app, rows((1, 1), (2, 2), (0, 10, "b"), (4, 3), (8, 4), (16, 5))) as driver:
        assert [o["sum"] for o in driver.output("out") if o["k"] == "a"] == [3, 15]
    app = windowed(mp.tumbling(100), grace=0, trigger=t.all_of(t.every_rows(1), t.every("10s")))
    with sent(app, [row(1, 1)]) as driver:
        driver.advance("10s")
        driver.advance("7s")
        driver.send("rows", [row(2, 2)])
        driver.advance("9s")
        assert [o["sum"] for o in driver.output("out")] == [1], "ten seconds are counted from the first row on"
        driver.advance("1s")
        assert [o["sum"] for o in driver.output("out")] == [1, 3]


def test_all_of_waits_for_rows_and_the_clock():
    app = windowed(mp.tumbling(100), grace=0, trigger=t.all_of(t.every_rows(2), t.every("10s")))
    with sent(app, [row(1, 1)]) as driver:
        driver.advance("10s")
        assert driver.output("out") == []
        driver.send("rows", [row(2, 2)])
        assert [o["sum"] for o in driver.output("out")] == [3]


def test_triggers_may_be_nested():
    trigger = t.any_of(t.all_of(t.every_rows(2), t.on_match(lambda r: r["v"] == 0)), t.on_match(lambda r: r["v"] == 9))
    assert shown(trigger, [(1, 1), (9, 2), (0, 3), (1, 4)])[0] == [[], [10], [10], []]


def test_a_trigger_of_ones_own_is_three_functions():
    def advance(last, event):
        return {"last": event.row["v"], "jump": last.get("last") is not None and event.row["v"] > 2 * last["last"]}

    trigger = t.custom(initial=dict, advance=advance, fires=lambda state, event: state["jump"])
    assert shown(trigger, [(1, 1), (2, 2), (5, 3), (6, 4)])[0] == [[], [], [8], []]


def test_a_trigger_of_ones_own_sees_the_event():
    seen = Calls()

    def advance(state, event):
        seen.append((event.cause, event.time, event.window_start, event.window_end, event.result["sum"], event.now))
        return state

    app = windowed(mp.tumbling(10), grace=0, trigger=t.custom(advance=advance, fires=lambda state, event: False))
    with sent(app, [row(3, 12)]) as driver:
        assert seen == [("row", 12, 10, 20, 3, driver.clock.now())]


def keyed_by(key, window, **how):
    app = mp.App("test", partitions=2)
    keyed = app.stream("rows", mp.sources.rows([]), timestamp="at").key_by(key)
    windowed = keyed.window("sums", window, **how)
    windowed.aggregate(n=mp.count()).to("out", mp.sinks.memory())
    return app


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("fires", ["this", "all"])
@pytest.mark.parametrize(
    ("window", "grace"),
    [
        (mp.tumbling(100), {"grace": 0}),
        (mp.session(50), {"grace": 0}),
        (mp.sliding(50), {"grace": 0}),
        (mp.count_tumbling(9), {}),
    ],
)
def test_an_event_has_the_key_of_its_window(window, grace, fires, before):
    seen = Calls()

    def advance(state, event):
        seen.append((event.key, event.row["k"]))
        return state

    trigger = t.custom(advance=advance, fires=lambda state, event: event.key == ("b", 2), before=before)
    app = keyed_by(lambda r: (r["k"], r["n"]), window, trigger=trigger, fires=fires, **grace)
    with TestDriver(app) as driver:
        for _ in range(2):  # the second batch reads its windows from the state
            driver.send("rows", [{"k": "a", "n": 1, "at": 7}, {"k": "b", "n": 2, "at": 7}])
            driver.restart(lose_replicas=True)
        assert {key for key, _ in seen} == {("a", 1), ("b", 2)}
        assert all(key[0] == row for key, row in seen)
        assert {row["key"] for row in driver.output("out") if not row["final"]} == {("b", 2)}


def test_the_state_of_a_trigger_survives_a_restart():
    with sent(windowed(mp.tumbling(100), grace=0, trigger=t.every_rows(3)), rows((1, 1), (2, 2))) as driver:
        driver.restart(lose_replicas=True)
        driver.send("rows", [row(4, 3)])
        assert [o["sum"] for o in driver.output("out")] == [7]


def test_another_trigger_begins_anew_on_windows_that_are_open():
    with sent(windowed(mp.tumbling(100), grace=0, trigger=t.every_rows(3)), rows((1, 1), (2, 2))) as driver:
        driver.restart(windowed(mp.tumbling(100), grace=0, trigger=t.every_rows(2)))
        driver.send("rows", [row(4, 3)])
        assert driver.output("out") == []
        driver.send("rows", [row(8, 4)])
        assert [o["sum"] for o in driver.output("out")] == [15]


def test_the_triggers_of_sessions_that_join_are_joined():
    app = windowed(mp.session(5), grace=100, trigger=t.every_rows(4))
    with sent(app, rows((1, 0), (2, 1), (4, 10), (8, 5))) as driver:
        assert panes(driver.output("out")) == [(0, 10, 15)]


# --- panes ---


def test_accumulate_shows_everything_so_far():
    assert shown(t.every_rows(2), [(1, 1), (2, 2), (4, 3)])[1] == [(7, True)]


def test_discard_shows_what_is_new():
    assert shown(t.every_rows(2), [(1, 1), (2, 2), (4, 3)], panes="discard") == ([[], [3], []], [(4, True)])


def test_retract_takes_the_last_pane_back():
    app = windowed(mp.tumbling(100), grace=0, trigger=t.on_update(), panes="retract")
    with sent(app, rows((1, 1), (2, 2), (4, 3)), finish=True) as driver:
        found = [(o["sum"], o["pane"], o.get("retracted", False)) for o in driver.output("out")]
        assert found == [(1, 0, False), (1, 0, True), (3, 1, False), (3, 1, True), (7, 2, False)]


def test_retract_takes_back_the_panes_of_all_sessions_that_have_joined():
    app = windowed(mp.session(5), grace=100, trigger=t.on_update(), panes="retract")
    with sent(app, rows((1, 0), (2, 10), (4, 5))) as driver:
        found = [(*panes([o])[0], o.get("retracted", False)) for o in driver.output("out")]
        assert found == [
            (0, 0, 1, False),
            (10, 10, 2, False),
            (0, 0, 1, True),
            (10, 10, 2, True),
            (0, 10, 7, False),
        ]


def test_what_is_taken_back_is_what_was_shown_whatever_becomes_of_the_output():
    app = mp.App("spoiled", partitions=1)
    keyed = app.stream("rows", mp.sources.rows([]), timestamp="t").key_by("k")
    found = keyed.window("w", mp.tumbling(10), grace=0, trigger=t.on_update(), panes="retract")
    found.aggregate(seen=mp.collect("v")).map(lambda o: o["seen"].append("spoiled") or o).to("out", mp.sinks.memory())
    with sent(app, rows((1, 1), (2, 2))) as driver:
        assert [o["seen"][:-1] for o in driver.output("out")] == [[1], [1], [1, 2]]


# --- fires="all" ---


def test_fires_all_shows_every_open_window_of_the_key_that_has_changed():
    app = windowed(mp.tumbling(10), grace=100, trigger=t.on_match(lambda r: r["v"] == 0), fires="all")
    with sent(app, rows((1, 1), (2, 12), (4, 13, "b"), (0, 25))) as driver:
        assert [(o["k"], *panes([o])[0]) for o in driver.output("out")] == [
            ("a", 0, 10, 1),
            ("a", 10, 20, 2),
            ("a", 20, 30, 0),
        ]
        driver.send("rows", [row(0, 14)])
        assert panes(driver.output("out")[3:]) == [(10, 20, 2)]


def test_fires_all_keeps_one_trigger_for_the_key():
    app = windowed(mp.tumbling(10), grace=100, trigger=t.every_rows(3), fires="all")
    with sent(app, rows((1, 1), (2, 12), (8, 3, "b"))) as driver:
        assert driver.output("out") == []
        driver.restart(lose_replicas=True)
        driver.send("rows", [row(4, 25)])
        assert panes(driver.output("out")) == [(0, 10, 1), (10, 20, 2), (20, 30, 4)]


@pytest.mark.parametrize("restarted", [True, False])
def test_fires_all_by_the_clock(restarted):
    app = windowed(mp.tumbling(10), grace=100, trigger=t.every("10s"), fires="all")
    with sent(app, rows((1, 1), (2, 12), (8, 3, "b"))) as driver:
        if restarted:
            driver.restart(lose_replicas=True)
        driver.advance("10s")
        assert [(o["k"], o["sum"]) for o in driver.output("out")] == [("a", 1), ("a", 2), ("b", 8)]
        driver.advance("10s")
        assert len(driver.output("out")) == 3


def test_fires_all_at_the_end_of_one_window():
    app = windowed(mp.tumbling(10), grace=100, trigger=t.at_end(), fires="all")
    with sent(app, rows((1, 1), (2, 12), (4, 13))) as driver:
        assert panes(driver.output("out")) == [(0, 10, 1), (10, 20, 2)]


# --- what is wrong ---


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: t.every_rows(0), "every_rows(n): expected a number of rows, 1 or more, got 0"),
        (lambda: t.every("0s"), "every(interval): expected a duration such as"),
        (lambda: t.every("soon"), "every(interval): expected a duration such as"),
        (lambda: t.at_fraction(1.5), "at_fraction(fraction): expected a number from 0 to 1"),
        (lambda: t.at_end("soon"), "at_end(delay): expected a duration"),
        (lambda: t.on_match("end"), "on_match(predicate): expected a function, got 'end'"),  # type: ignore[arg-type]
        (lambda: t.when(9), "when(f): expected a function, got 9"),  # type: ignore[arg-type]
        (lambda: t.any_of(), "any_of: expected triggers"),
        (lambda: t.all_of(t.on_update(), "end"), "all_of: expected triggers"),  # type: ignore[arg-type]
        (lambda: t.custom(advance=None, fires=bool), "custom(advance=): expected a function, got None"),  # type: ignore[arg-type]
        (lambda: t.custom(advance=max, fires=min, merge=3), "custom(merge=): expected a function, got 3"),  # type: ignore[arg-type]
    ],
)
def test_a_trigger_that_is_none_is_told_where_it_is_made(make, text):
    with pytest.raises(InvalidUse) as error:
        make()
    assert text in str(error.value)


def test_a_trigger_that_goes_by_a_windows_times_needs_a_window_that_has_some():
    with pytest.raises(InvalidUse, match="needs windows that have an end"):
        windowed(mp.count_tumbling(3), trigger=t.any_of(t.on_update(), t.at_end()))


def test_a_delay_in_seconds_does_not_fit_whole_numbers():
    with pytest.raises(InvalidUse, match=r"at_end\(delay\): the stream's times are whole numbers"):
        sent(windowed(mp.tumbling(10), grace=0, trigger=t.at_end("5s")), [row(1, 1)])


@pytest.mark.parametrize("before", [True, False])
def test_a_row_for_which_a_trigger_fails_has_changed_nothing(before):
    def f(result, r):
        return 1 / r["v"] > 5

    aggregations = {"sum": mp.sum("v"), "all": mp.collect("v")}
    app = windowed(mp.hopping(10, 5), aggregations, grace=0, trigger=t.when(f, before=before), on_error="skip")
    with sent(app, rows((1, 1), (0, 2), (2, 3))) as driver:
        assert panes(driver.state("w").get("a")) == [(-5, 5, 3, [1, 2]), (0, 10, 3, [1, 2])]
    with pytest.raises(StepFailed, match="ZeroDivisionError"):
        sent(windowed(mp.tumbling(10), grace=0, trigger=t.when(f)), rows((1, 1), (0, 2)))
