"""Windows: what they hold, when they close, what is late, and what they keep."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from ledger_reader import changes, commits
from small_windows import panes, row, rows, sent, windowed

import millpond as mp
from millpond.errors import InvalidUse, StepFailed
from millpond.steps.windows.cell_names import extent_of, session_cell, text_of, window_cell
from millpond.steps.windows.counting import first_rows_of
from millpond.steps.windows.hopping import starts_of
from millpond.storage import open_storage
from millpond.testing import TestDriver

EVERY_KIND: dict[str, Any] = {
    "tumbling": mp.tumbling(10),
    "hopping": mp.hopping(10, 5),
    "session": mp.session(10),
    "sliding": mp.sliding(10),
}
kinds = pytest.mark.parametrize("kind", EVERY_KIND)


# --- assigning ---


@pytest.mark.parametrize("time", range(-30, 30))
def test_every_time_is_in_as_many_windows_as_hops_fit_into_the_size(time):
    for hops, hop, offset in [(1, 7, 0), (4, 5, 0), (3, 10, 4)]:
        found = list(starts_of(time, hops * hop, hop, offset))
        assert len(found) == hops
        assert all(s <= time < s + hops * hop and (s - offset) % hop == 0 for s in found)


def test_windows_whose_size_is_no_multiple_of_the_hop_hold_what_lies_in_them():
    for time in range(-20, 20):
        expected = [s for s in range(-40, 40) if s % 4 == 0 and s <= time < s + 10]
        assert list(starts_of(time, 10, 4)) == expected


def test_the_windows_of_the_nth_row():
    assert [list(first_rows_of(n, 3, 1)) for n in range(4)] == [[0], [0, 1], [0, 1, 2], [1, 2, 3]]
    assert [list(first_rows_of(n, 2, 2)) for n in range(5)] == [[0], [0], [2], [2], [4]]


@pytest.mark.parametrize("unit", ["number", "instant"])
def test_names_of_windows_sort_as_their_times_do_and_can_be_read_back(unit):
    times = [-(10**15), -1001, -10, -1, 0, 1, 9, 10, 10**15, 1442113200829000]
    names = [text_of(t, unit) for t in times]
    assert names == sorted(names)
    for start, end in pairwise(times):
        assert extent_of(window_cell(start, end, unit)) == (start, end, unit)
        assert extent_of(session_cell(start, end, unit)) == (start, end, unit)


# --- what goes out ---


def test_a_key_of_several_fields_and_one_of_a_function():
    app = mp.App("keys", partitions=1)
    stream = app.stream("rows", mp.sources.rows([]), timestamp="t")
    for name, keyed in {"two": stream.key_by("k", "v"), "own": stream.key_by(lambda r: r["v"] % 2)}.items():
        keyed.window(name, mp.tumbling(10), grace=0).aggregate(n=mp.count()).to(f"{name}-out", mp.sinks.memory())
    with sent(app, rows((1, 1), (3, 2)), finish=True) as driver:
        window = {"window_start": 0, "window_end": 10, "pane": 0, "final": True}
        assert driver.output("two-out") == [{"k": "a", "v": 1, **window, "n": 1}, {"k": "a", "v": 3, **window, "n": 1}]
        assert driver.output("own-out") == [{"key": 1, **window, "n": 2}]


def test_windows_of_instants():
    day = datetime(2030, 1, 1, tzinfo=UTC)
    app = windowed(mp.tumbling("1d", offset="6h"), grace="1h")
    with sent(app, rows((1, day), (2, day + timedelta(hours=5, minutes=59)), (4, day + timedelta(hours=6)))) as driver:
        assert driver.output("out") == []
        driver.send("rows", [row(8, day + timedelta(hours=7))])
        six = day + timedelta(hours=6)
        assert panes(driver.output("out")) == [(six - timedelta(days=1), six, 3)]
        assert panes(driver.state("w").get("a")) == [(six, six + timedelta(days=1), 12)]


@pytest.mark.parametrize(
    ("window", "time"),
    [(mp.tumbling(10), 19), (mp.hopping(10, 10), 19), (mp.session(3), 13), (mp.sliding(3), 13)],
)
def test_a_windows_output_carries_the_last_instant_that_the_window_covers(window, time):
    app = mp.App("times", partitions=1)
    keyed = app.stream("rows", mp.sources.rows([]), timestamp="t").key_by("k")
    first = keyed.window("first", window, grace=0).aggregate(n=mp.count())
    first.window("next", mp.tumbling(1), grace=0).aggregate(n=mp.count()).to("out", mp.sinks.memory())
    with sent(app, rows((1, 13)), finish=True) as driver:
        assert [o["window_start"] for o in driver.output("out")] == [time]


@kinds
def test_windows_over_windows_lose_nothing_in_order_and_in_steps(kind):
    app = mp.App("twice", partitions=1)
    keyed = app.stream("rows", mp.sources.rows([]), timestamp="t", disorder=4).key_by("k")
    first = keyed.window("first", EVERY_KIND[kind], grace=3).aggregate(n=mp.count())
    second = first.window("second", mp.tumbling(7), grace=0)
    second.aggregate(n=mp.sum("n"), windows=mp.count()).to("out", mp.sinks.memory())
    second.late.to("late", mp.sinks.memory())
    first.to("first-out", mp.sinks.memory())
    with sent(app, rows(*((1, t) for t in [0, 3, 1, 9, 7, 40, 38, 55, 90, 91, 130])), finish=True) as driver:
        assert driver.output("late") == []
        assert sum(o["windows"] for o in driver.output("out")) == len(driver.output("first-out"))
        assert sum(o["n"] for o in driver.output("out")) == sum(o["n"] for o in driver.output("first-out"))


def test_a_session_is_held_back_by_its_gap_and_its_grace_when_windows_follow():
    app = mp.App("held", partitions=1)
    keyed = app.stream("rows", mp.sources.rows([]), timestamp="t").key_by("k")
    visits = keyed.window("visits", mp.session(5), grace=2).aggregate(n=mp.count())
    after = visits.window("per-ten", mp.tumbling(10), grace=0)
    after.aggregate(n=mp.sum("n")).to("out", mp.sinks.memory())
    after.late.to("late", mp.sinks.memory())
    with sent(app, rows((1, 8), (1, 9), (1, 16))) as driver:
        assert driver.output("out") == []
        driver.send("rows", rows((1, 17)))
        assert panes(driver.output("out")) == [(0, 10, 2)]
        driver.send("rows", rows((1, 40)))
        assert panes(driver.output("out")) == [(0, 10, 2), (10, 20, 2)]
        assert driver.output("late") == []


@pytest.mark.parametrize("together", [True, False])
def test_the_last_row_of_a_sliding_window_is_the_one_that_arrived_last(together):
    app = windowed(mp.sliding(10), {"last": mp.last("v"), "first": mp.first("v")}, grace=100)
    with sent(app, rows((1, 1), (2, 2), (3, 1)), together=together, finish=True) as driver:
        assert panes(driver.output("out")) == [(-9, 1, 3, 1), (-8, 2, 3, 1)]


def test_count_windows_need_no_time_and_close_with_their_last_row():
    for window, expected in {
        mp.count_tumbling(2): [(0, 2, 3), (2, 4, 12)],
        mp.count_hopping(3, 2): [(0, 3, 7), (2, 5, 28)],
        mp.count_sliding(3): [(0, 3, 7), (1, 4, 14), (2, 5, 28)],
    }.items():
        app = windowed(window, stream={"timestamp": None})
        with sent(app, rows(*((2**n, None) for n in range(5)))) as driver:
            assert panes(driver.output("out")) == expected
            assert all(o["final"] and o["pane"] == 0 for o in driver.output("out"))
            assert all(o["window_end"] > 5 for o in driver.state("w").get("a")) or window == mp.count_tumbling(2)
        with sent(
            windowed(window, stream={"timestamp": None}), rows(*((2**n, None) for n in range(5))), together=True
        ) as d:
            assert panes(d.output("out")) == expected


def test_count_windows_that_are_open_close_at_the_end_of_the_input():
    with sent(windowed(mp.count_tumbling(2)), rows((1, 1), (2, 2), (4, 3)), finish=True) as driver:
        assert panes(driver.output("out")) == [(0, 2, 3), (2, 4, 4)]


def test_the_last_pane_of_a_count_window_is_its_final_one():
    app = windowed(mp.count_tumbling(2), trigger=mp.triggers.on_update())
    with sent(app, rows((1, 1), (2, 2), (4, 3))) as driver:
        assert [(o["sum"], o["pane"], o["final"]) for o in driver.output("out")] == [
            (1, 0, False),
            (3, 1, True),
            (4, 0, False),
        ]


def test_a_global_window_shows_panes_for_ever():
    with sent(
        windowed(mp.global_window(), trigger=mp.triggers.every_rows(2)), rows((1, 1), (2, 9), (4, 3), (8, 4))
    ) as d:
        assert [(o["sum"], o["pane"], o["final"]) for o in d.output("out")] == [(3, 0, False), (15, 1, False)]


# --- late rows ---


def test_a_row_that_missed_some_of_its_windows_is_late_and_counts_in_the_others():
    with sent(windowed(mp.hopping(10, 5), grace=0), rows((1, 1), (2, 12), (4, 9))) as driver:
        assert driver.output("late") == [{"row": row(4, 9), "key": "a", "late_by": 3, "missed": [(0, 10)]}]
        assert panes(driver.state("w").get("a")) == [(5, 15, 6), (10, 20, 2)]


@pytest.mark.parametrize(("time", "is_late"), [(30, False), (17, True)])
def test_a_row_that_joins_an_open_session_is_not_late_however_old(time, is_late):
    # The session [28, 40] is open at the watermark 40; 30 lies in it, 17 does not.
    with sent(windowed(mp.session(5), grace=0), rows(*((1, t) for t in [28, 33, 36, 40]), (2, time))) as driver:
        late = [(o["late_by"], o["missed"]) for o in driver.output("late")]
        assert late == ([(23, [(17, 17)])] if is_late else [])
        assert panes(driver.state("w").get("a")) == [(28, 40, 4 if is_late else 6)]


@pytest.mark.parametrize("backwards", [True, False])
def test_order_within_a_batch_does_not_decide_which_rows_a_session_misses(backwards):
    batch = rows((2, 15), (4, 20), (8, 24))  # 15 is late by itself, and near 20, which leads to 24 and on
    with sent(windowed(mp.session(5), grace=0), rows(*((1, t) for t in [28, 33, 38]))) as driver:
        driver.send("rows", batch[::-1] if backwards else batch)
        assert driver.output("late") == []
        assert panes(driver.state("w").get("a")) == [(15, 38, 17)]


def test_a_late_row_of_sliding_windows_counts_in_those_that_are_open():
    app = windowed(mp.sliding(10), {"seen": mp.collect("v")}, grace=0)
    with sent(app, rows(("a", 10), ("b", 14), ("c", 16), ("d", 12)), finish=True) as driver:
        (late,) = driver.output("late")
        assert (late["late_by"], late["missed"]) == (4, [(2, 12), (4, 14)])
        assert panes(driver.output("out")) == [(0, 10, ["a"]), (4, 14, ["a", "b"]), (6, 16, ["a", "b", "c", "d"])]


@pytest.mark.parametrize("field", ["v", lambda r: r["v"]])
@pytest.mark.parametrize("clock", ["stream", "key"])
def test_what_closed_at_the_end_of_the_input_stays_closed(field, clock):
    app = windowed(mp.tumbling(10), {"sum": mp.sum(field)}, grace=0, clock=clock)
    with sent(app, rows((1, 1), (2, 12)), finish=True) as driver:
        driver.send("rows", rows((4, 13), (8, 21)))
        assert panes(driver.output("out")) == [(0, 10, 1), (10, 20, 2)]
        assert [o["missed"] for o in driver.output("late")] == [[(10, 20)]]


@pytest.mark.parametrize(("window", "missed"), [(mp.session(5), (12, 12)), (mp.sliding(5), (7, 12))])
def test_sessions_and_sliding_windows_that_closed_at_the_end_of_the_input_stay_closed(window, missed):
    with sent(windowed(window, grace=0), rows((1, 1), (2, 12)), finish=True) as driver:
        before = len(driver.output("out"))
        driver.send("rows", rows((4, 12), (8, 90)))
        assert len(driver.output("out")) == before
        assert [o["missed"] for o in driver.output("late")] == [[missed]]


def test_late_rows_are_rows_like_any_other():
    app = mp.App("late", partitions=1)
    keyed = app.stream("rows", mp.sources.rows([]), timestamp="t").key_by("k")
    found = keyed.window("w", mp.tumbling(10), grace=0)
    found.aggregate(n=mp.count())
    found.late.map(lambda o: o["row"]).key_by("k").aggregate("again", n=mp.count()).to("out", mp.sinks.memory())
    with sent(app, rows((1, 1), (1, 12), (1, 2), (1, 3))) as driver:
        assert [o["n"] for o in driver.output("out")] == [1, 2]


def slid(history, size, grace):
    """What sliding windows come to by the rules alone: batches of rows in, sums by window out."""
    found, counted, mark = {}, [], None
    for batch in history:
        for r in batch:
            counted.append((r, mark))
            if mark is None or r["t"] + grace >= mark:
                found[r["t"]] = 0
        mark = max([r["t"] for r in batch] + ([] if mark is None else [mark]))
    for t in found:
        for r, began in counted:
            if t - size <= r["t"] <= t and (began is None or t + grace >= began):
                found[t] += r["v"]
    return [(t - size, t, total) for t, total in sorted(found.items())]


@pytest.mark.parametrize("trigger", [mp.triggers.on_close(), mp.triggers.at_end(10**6)])
@pytest.mark.parametrize("largest", [4, 40])
def test_sliding_windows_of_many_rows_with_late_ones_among_them(trigger, largest):
    chance = random.Random(7)
    history, time = [], 0
    while time < 600:
        batch = []
        for _ in range(chance.randint(1, largest)):
            time += chance.randint(0, 2)
            batch.append(row(chance.randint(1, 9), time - (chance.randint(0, 500) if chance.random() < 0.05 else 0)))
        history.append(batch)
    app = windowed(mp.sliding(320), grace=2, trigger=trigger)
    with TestDriver(app) as driver:
        for number, batch in enumerate(history):
            driver.send("rows", batch)
            if number == len(history) // 2:
                driver.restart(lose_replicas=True)
        driver.finish()
        assert sorted(panes(driver.output("out"))) == slid(history, 320, 2)
        assert dict(driver.state("w").items()) == {}


def test_a_sliding_window_of_many_rows_costs_a_row_what_the_rows_near_it_cost():
    merged = []

    def merge(a, b):
        merged.append(1)
        return a + b

    own = mp.aggregation(initial=0, update=lambda acc, r: acc + 1, merge=merge)
    app = windowed(mp.sliding(1000), {"n": own}, grace=0)
    with TestDriver(app) as driver:
        for begin in range(0, 1200, 100):
            driver.send("rows", rows(*((1, t) for t in range(begin, begin + 100))))
        for t in range(1200, 1240):
            driver.send("rows", [row(1, t)])
        merged.clear()
        for t in range(1240, 1250):
            driver.send("rows", [row(1, t)])
        assert len(merged) / 10 < 200, "of a thousand rows in the window"
        driver.finish()
        assert driver.output("out")[-1]["n"] == 1001


def test_sliding_windows_of_another_grace_count_rows_that_would_have_been_late():
    with sent(windowed(mp.sliding(320), grace=0), [row(1, t) for t in range(402)]) as driver:
        driver.restart(windowed(mp.sliding(320), grace=50))
        driver.send("rows", [row(1, 360)])
        driver.send("rows", [row(1, 452)])
        assert [o["sum"] for o in driver.output("out") if o["window_end"] == 401] == [322]


# --- the clock of the key ---


@kinds
def test_by_the_clock_of_the_key_no_other_key_closes_a_window_or_makes_a_row_late(kind):
    with sent(
        windowed(EVERY_KIND[kind], {"n": mp.count()}, grace=0, clock="key"), rows((1, 1), (1, 500, "b"), (1, 2))
    ) as d:
        assert d.output("late") == []
        assert [o for o in d.output("out") if o["k"] == "a" and o["final"] and kind not in ("sliding", "hopping")] == []
        d.send("rows", [row(1, 100)])
        assert {o["k"] for o in d.output("out")} == {"a"}
        d.restart(lose_replicas=True)
        d.send("rows", [row(1, 3)])
        assert [o["key"] for o in d.output("late")] == ["a"]
        d.finish()
        assert {o["k"] for o in d.output("out")} == {"a", "b"}


# --- state ---


def test_what_a_window_keeps_is_readable():
    storage = open_storage("memory://")
    app = windowed(mp.tumbling(10), {"n": mp.count(), "sum": mp.sum("v")}, grace=0)
    with TestDriver(app, storage=storage) as driver:
        driver.send("rows", rows((1, 12), (2, 13)))
        driver.send("rows", rows((4, 20)))
        assert [tuple(change) for change in changes(storage, "windows", "w")] == [
            ('"a"', "w:0000000000000000010/0000000000000000020", None, True),
            (
                '"a"',
                "w:0000000000000000020/0000000000000000030",
                '{"kept":{"n":["count",1],"sum":["sum",4]}}',
                False,
            ),
        ]


def test_a_row_that_changes_nothing_about_its_key_writes_only_its_window():
    storage = open_storage("memory://")
    with TestDriver(windowed(mp.tumbling(10), grace=100, clock="key"), storage=storage) as driver:
        driver.send("rows", rows((1, 12)))
        assert [cell[:2] for _, cell, *_ in changes(storage, "windows", "w")] == ["k", "w:"]
        driver.send("rows", rows((2, 11)))
        assert [cell[:2] for _, cell, *_ in changes(storage, "windows", "w")] == ["w:"]


@kinds
def test_what_is_collected_is_written_once(kind):
    storage = open_storage("memory://")
    with TestDriver(windowed(EVERY_KIND[kind], {"seen": mp.collect("v")}, grace=1000), storage=storage) as driver:
        sizes = []
        for n in range(30):
            driver.send("rows", [row("x" * 100, 1 + n % 3)])
            sizes.append(sum(len(value or "") for _, _, value, _ in changes(storage, "windows", "w")))
        assert sizes[-1] < 2 * sizes[3]
        driver.finish()
        assert max(len(o["seen"]) for o in driver.output("out")) == 30
        left = {}
    with TestDriver(windowed(EVERY_KIND[kind], {"seen": mp.collect("v")}, grace=0), storage=storage) as driver:
        left = dict(driver.state("w").items())
    assert left == {}, "nothing stays of what was collected"


def test_the_open_windows_of_every_kind_can_be_read_with_the_program_and_without(tmp_path):
    cases: list[tuple[Any, dict[str, Any]]] = [
        (mp.tumbling(10), {"grace": 5}),
        (mp.hopping(10, 5), {"grace": 5}),
        (mp.session(5), {"grace": 5}),
        (mp.sliding(5), {"grace": 5}),
        (mp.sliding(5), {"grace": 5, "trigger": mp.triggers.every_rows(2)}),
        (mp.global_window(), {}),
        (mp.count_sliding(3), {}),
    ]
    for number, (window, how) in enumerate(cases):
        aggregations = {
            "n": mp.count(),
            "mean": mp.mean("v"),
            "all": mp.collect("v"),
            "last": mp.last("v"),
            "distinct": mp.distinct("v"),
            "top": mp.top(5, "v"),
            "median": mp.quantile(0.5, "v"),
        }
        url = str(tmp_path / str(number))
        app = windowed(window, aggregations, **how)
        with TestDriver(app, storage=url) as driver:
            driver.send("rows", rows((1, 1), (2, 3), (2, 4)))
            with_program = driver.state("w").get("a")
        assert with_program and with_program[0]["n"] >= 1
        without = mp.open(url, "windows").state("w")
        assert without.get("a") == with_program
        assert dict(without.items()) == {"a": with_program}
        assert [moment.value for moment in without.history("a")] == [with_program]


@kinds
def test_aggregations_come_and_go_on_windows_that_are_open(kind):
    with sent(
        windowed(EVERY_KIND[kind], {"n": mp.count(), "x": mp.sum("v")}, grace=100), rows((1, 1), (2, 2))
    ) as driver:
        driver.restart(
            windowed(EVERY_KIND[kind], {"n": mp.count(), "x": mp.max("v"), "new": mp.collect("v")}, grace=100)
        )
        driver.send("rows", [row(4, 2)])
        assert {"n": 3, "x": 4, "new": [4]}.items() <= driver.state("w").get("a")[-1].items()
        driver.restart(windowed(EVERY_KIND[kind], {"n": mp.count(), "new": mp.count()}, grace=100))
        driver.send("rows", [row(8, 2)])
        driver.finish()
        assert {"n": 4, "new": 1}.items() <= driver.output("out")[-1].items()


def test_windows_go_on_when_they_are_no_longer_of_the_sort_that_goes_by_columns():
    simple, more = {"sum": mp.sum("v")}, {"sum": mp.sum("v"), "all": mp.collect("v")}
    with sent(windowed(mp.tumbling(10), simple, grace=0), rows((1, 1))) as driver:
        driver.restart(windowed(mp.tumbling(10), more, grace=0, trigger=mp.triggers.on_update()))
        driver.send("rows", [row(2, 2)])
        driver.restart(windowed(mp.tumbling(10), simple, grace=0))
        driver.send("rows", [row(4, 3)])
        driver.send("rows", [row(8, 14)])
        assert [(o["sum"], o["pane"], o["final"]) for o in driver.output("out")] == [(3, 0, False), (7, 1, True)]


@pytest.mark.parametrize("aggregations", [{"sum": mp.sum("v")}, {"sum": mp.sum(lambda r: r["v"])}])
def test_a_longer_grace_keeps_open_what_is_open(aggregations):
    with sent(windowed(mp.tumbling(10), aggregations, grace=0), rows((1, 1))) as driver:
        driver.restart(windowed(mp.tumbling(10), aggregations, grace=10))
        driver.send("rows", [row(2, 15)])
        driver.send("rows", [row(4, 9)])
        assert driver.output("out") == driver.output("late") == []
        driver.send("rows", [row(8, 20)])
        assert panes(driver.output("out")) == [(0, 10, 5)]


# --- what fails ---


@kinds
def test_a_row_for_which_an_aggregation_fails_has_changed_nothing(kind):
    def update(acc, r):
        acc.append(r["v"])
        if r["v"] < 0:
            raise ValueError("negative")
        return acc

    own = mp.aggregation(initial=list, update=update, merge=lambda a, b: a + b)
    aggregations = {"all": mp.collect("v"), "distinct": mp.distinct("v"), "n": mp.count(), "own": own}
    for policy in ("skip", "dead-letter", mp.retry(1, "1ms", then="skip")):
        with sent(
            windowed(EVERY_KIND[kind], aggregations, grace=100, on_error=policy), rows((1, 1), (-1, 2), (2, 2))
        ) as d:
            d.finish()
            found = d.output("out")[-1]
            assert (found["all"], found["distinct"], found["n"], found["own"]) == ([1, 2], [1, 2], 2, [1, 2])
    with pytest.raises(StepFailed, match="ValueError: negative"):
        sent(windowed(EVERY_KIND[kind], aggregations, grace=100), rows((1, 1), (-1, 2)))


@kinds
def test_a_row_without_an_event_time_meets_the_policy_of_the_step(kind):
    app = mp.App("timeless", partitions=1)
    timed = app.stream("timed", mp.sources.rows([]), timestamp="at")
    keyed = app.stream("rows", mp.sources.rows([])).union(timed).key_by("k")
    keyed.window("w", EVERY_KIND[kind], grace=0).aggregate(n=mp.count())
    with pytest.raises(StepFailed, match=r"expected a row with an event time, and it has none\. Give the stream one"):
        sent(app, rows((1, 1)))


def test_a_result_that_fails_when_a_window_closes_is_the_windows_failure():
    broken = mp.aggregation(initial=0, update=lambda acc, r: acc + r["v"], result=lambda acc: 1 / acc)
    app = windowed(mp.tumbling(10), {"x": broken}, grace=0, on_error="dead-letter")
    app.dead_letters.to("dead", mp.sinks.memory())
    with sent(app, rows((0, 1), (1, 2, "b"), (1, 15))) as driver:
        assert [o["k"] for o in driver.output("out")] == ["b"]
        (letter,) = driver.output("dead")
        assert letter["row"] == {"window_start": 0, "window_end": 10}
        assert (letter["key"], letter["step"]) == ("a", "w")
        assert "ZeroDivisionError" in letter["error"]


def test_a_size_in_seconds_does_not_fit_whole_numbers():
    with pytest.raises(InvalidUse, match=r"window\('w'\), size: the stream's times are .*use timestamp=mp\.epoch_s"):
        sent(windowed(mp.tumbling("10s"), grace=mp.NO_GRACE), rows((1, 1)))
    with pytest.raises(InvalidUse, match=r"window\('w'\): the stream's times are datetimes"):
        sent(windowed(mp.session(10), grace=1), rows((1, datetime(2030, 1, 1, tzinfo=UTC))))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: windowed(mp.tumbling(10)), "To wait for none, give grace=mp.NO_GRACE"),
        (lambda: windowed(mp.tumbling(10), grace="1s"), "grace: expected a whole number as the window's size is"),
        (lambda: windowed(mp.tumbling("1m"), grace=5), "grace: expected a duration as the window's size is"),
        (lambda: windowed(mp.global_window(), grace=0), "does not go by time, so it takes no grace"),
        (lambda: windowed(mp.count_tumbling(3), grace=mp.NO_GRACE), "does not go by time, so it takes no grace"),
        (lambda: windowed(mp.global_window(), clock="key"), 'leave clock="key" out'),
        (lambda: windowed("1m", grace=0), "expected a window such as mp.tumbling"),
        (lambda: windowed(mp.tumbling(10), grace=0, trigger="on_update"), "trigger: expected one such as"),
        (lambda: windowed(mp.tumbling(10), grace=0, panes="drop"), "panes: expected 'accumulate' or 'discard'"),
        (lambda: windowed(mp.tumbling(10), grace=0, fires="none"), "fires: expected 'this' or 'all', got 'none'"),
        (lambda: windowed(mp.tumbling(10), grace=0, clock="wall"), "clock: expected 'stream' or 'key', got 'wall'"),
        (lambda: windowed(mp.tumbling(10), {"k": mp.count()}, grace=0), "other than the key's ['k']"),
        (lambda: windowed(mp.tumbling(10), {"pane": mp.count()}, grace=0), "got ['pane']"),
        (lambda: windowed(mp.tumbling(10), {"n": len}, grace=0), "expected n= to be an aggregation"),
        (lambda: mp.tumbling(0), "tumbling(size): expected a duration longer than zero, got 0"),
        (lambda: mp.tumbling(-5), "tumbling(size): expected a duration that is not negative"),
        (lambda: mp.tumbling(10, offset=10), "tumbling(offset): expected less than the 10 from one window to the next"),
        (lambda: mp.tumbling(10, offset="1s"), "tumbling(offset): expected a whole number"),
        (lambda: mp.hopping(10, 11), "hopping(every): expected a hop that is not larger than the size 10, got 11"),
        (lambda: mp.hopping(10, 0), "hopping(every): expected a duration longer than zero, got 0"),
        (lambda: mp.hopping("1m", 10), "hopping(every): expected a duration as the window's size is"),
        (lambda: mp.session("0s"), "session(gap): expected a duration longer than zero"),
        (lambda: mp.sliding("soon"), "sliding(size): expected a duration such as"),
        (lambda: mp.count_tumbling(0), "count_tumbling(n): expected a number of rows, 1 or more, got 0"),
        (lambda: mp.count_hopping(2, 3), "count_hopping(every): expected a hop that is not larger than the size 2"),
        (lambda: mp.count_sliding(1.5), "count_sliding(n): expected a number of rows, 1 or more, got 1.5"),  # type: ignore[arg-type]
    ],
)
def test_a_mistake_is_told_where_the_program_is_written(make, text):
    with pytest.raises(InvalidUse) as error:
        make()
    assert text in str(error.value)


@pytest.mark.parametrize("window", [mp.session(5), mp.sliding(5)])
def test_windows_that_are_put_together_from_parts_need_aggregations_that_merge(window):
    own = mp.aggregation(initial=0, update=lambda acc, r: acc)
    with pytest.raises(InvalidUse, match="needs merge="):
        windowed(window, {"own": own}, grace=0)
    assert windowed(mp.tumbling(5), {"own": own}, grace=0)


def test_late_rows_are_asked_for_when_it_is_known_what_they_are_late_for():
    keyed = mp.App("early").stream("rows", mp.sources.rows([]), timestamp="t").key_by("k")
    with pytest.raises(InvalidUse, match=r"call aggregate\(…\) first"):
        keyed.window("w", mp.tumbling(10), grace=0).late  # noqa: B018


def test_how_many_rows_were_late_is_in_the_ledger():
    storage = open_storage("memory://")
    for aggregation in (mp.sum("v"), mp.sum(lambda r: r["v"])):
        app = windowed(mp.hopping(10, 5), {"sum": aggregation}, grace=0)
        with TestDriver(app, storage=storage) as driver:
            driver.send("rows", rows((1, 100)))
            driver.send("rows", rows((1, 50), (1, 52), (1, 99)))
            assert [record["late"] for record in commits(storage, "windows") if "late" in record][-1] == {"w": 3}
        storage = open_storage("memory://")
