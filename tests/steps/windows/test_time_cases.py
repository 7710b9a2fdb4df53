"""Windows and triggers by the book: rows that go in, and what must come out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest
from small_windows import panes, row, rows, sent, windowed

import millpond as mp
from millpond.steps.windows.hopping import starts_of
from millpond.testing import TestDriver

THREE = datetime(2015, 9, 13, 3, 0, tzinfo=UTC)
A15 = [
    {"id": n, "k": "all", "age": age, "t": THREE + timedelta(minutes=minute, milliseconds=829)}
    for n, minute, age in [
        (1, 0, 21),
        (2, 4, 12),
        (3, 5, 3),
        (4, 6, 64),
        (5, 7, 53),
        (6, 8, 52),
        (7, 9, 24),
        (8, 15, 35),
        (9, 25, 49),
        (10, 45, 37),
        (11, 3, 15),
        (12, 56, 22),
        (13, 59, 83),
        (14, 32, 60),
        (15, 16, 35),
    ]
]


def test_case_1_a_tumbling_count_closed_at_the_end_of_the_input():
    app = windowed(mp.tumbling("5m"), {"n": mp.count()}, grace=mp.NO_GRACE)
    with sent(app, A15, together=True, finish=True) as driver:
        found = [((o["window_start"] - THREE) // timedelta(minutes=1), o["n"]) for o in driver.output("out")]
        assert found == [(0, 3), (5, 5), (15, 2), (25, 1), (30, 1), (45, 1), (55, 2)]
        assert all(
            o["final"] and o["window_end"] - o["window_start"] == timedelta(minutes=5) for o in driver.output("out")
        )
        assert driver.output("late") == []


@pytest.mark.parametrize("together", [True, False])
def test_case_2_global_min_max_mean_and_count(together):
    aggregations = {"min": mp.min("age"), "max": mp.max("age"), "mean": mp.mean("age"), "n": mp.count()}
    with sent(windowed(mp.global_window(), aggregations), A15, together=together, finish=True) as driver:
        (found,) = driver.output("out")
        assert (found["min"], found["max"], found["n"], found["final"]) == (3, 83, 15, True)
        assert found["mean"] == float(Fraction(113, 3))
        assert (found["window_start"], found["window_end"]) == (None, None)


def test_case_3_sessions_of_rows_out_of_order_with_an_inclusive_gap():
    minutes = {1: [0, 4, 16], 2: [4, 5, 1], 3: [19, 16, 12], 4: [6, 25, 56], 5: [7, 9, 13]}
    batch = [row(m, THREE + timedelta(minutes=m), key) for key, times in minutes.items() for m in times]
    app = windowed(mp.session("5m"), {"seen": mp.collect("v")}, grace=mp.NO_GRACE)
    with sent(app, batch, together=True, finish=True) as driver:
        found = {}
        for o in driver.output("out"):
            extent = [(o[w] - THREE) // timedelta(minutes=1) for w in ("window_start", "window_end")]
            found.setdefault(o["k"], []).append((extent, o["seen"]))
        assert found == {
            1: [([0, 4], [0, 4]), ([16, 16], [16])],
            2: [([1, 5], [4, 5, 1])],
            3: [([12, 19], [19, 16, 12])],
            4: [([6, 6], [6]), ([25, 25], [25]), ([56, 56], [56])],
            5: [([7, 13], [7, 9, 13])],
        }
        assert driver.output("late") == []


def test_case_4_a_row_between_two_sessions_joins_them():
    app = windowed(mp.session(5), {"seen": mp.collect("v")}, grace=100)
    with sent(app, rows((5, 5), (7, 7), (20, 20))) as driver:
        assert panes(driver.state("w").get("a")) == [(5, 7, [5, 7]), (20, 20, [20])]
        driver.send("rows", [row(12, 12)])
        assert panes(driver.state("w").get("a")) == [(5, 12, [5, 7, 12]), (20, 20, [20])]
        driver.send("rows", [row(16, 16)])
        assert panes(driver.state("w").get("a")) == [(5, 20, [5, 7, 20, 12, 16])], "every element, as they arrived"
        assert driver.output("out") == []


def test_case_8_the_hopping_windows_that_hold_a_value():
    assert [(s, s + 20) for s in starts_of(29, 20, 5)] == [(10, 30), (15, 35), (20, 40), (25, 45)]
    with sent(windowed(mp.hopping(20, 5), grace=mp.NO_GRACE), [row(1, 29)]) as driver:
        assert panes(driver.state("w").get("a")) == [(10, 30, 1), (15, 35, 1), (20, 40, 1), (25, 45, 1)]


@pytest.mark.parametrize(("offset", "fires"), [(25, True), (75, False)])
def test_case_9_a_row_past_the_middle_of_its_window_fires(offset, fires):
    time = 1000
    window = mp.tumbling(100, offset=offset)  # [925, 1025) or [975, 1075)
    with sent(windowed(window, grace=mp.NO_GRACE, trigger=mp.triggers.at_fraction(0.5)), [row(1, time)]) as driver:
        assert bool(driver.output("out")) is fires


CASE_10 = rows((1, 100, "k1"), (3, 105, "k1"), (5, 102, "k2"), (7, 108, "k2"), (2, 110, "k1"), (2, 109, "k2"))


def test_case_10_windows_close_by_the_watermark_of_the_stream_for_quiet_keys_too():
    with sent(windowed(mp.tumbling(10), grace=2), CASE_10) as driver:
        assert driver.output("out") == []
        driver.send("rows", [row(2, 112, "k1")])
        found = [(o["k"], o["window_start"], o["window_end"], o["sum"], o["final"]) for o in driver.output("out")]
        assert found == [("k1", 100, 110, 4, True), ("k2", 100, 110, 14, True)]
        assert panes(driver.state("w").get("k1")) == [(110, 120, 4)]
        assert not driver.state("w").get("k2")


def test_case_11_tumbling_final():
    app = windowed(mp.tumbling(10), grace=mp.NO_GRACE)
    with sent(app, rows((1, 1), (1, 2), (2, 20), (3, 39), (4, 38))) as driver:
        assert panes(driver.output("out")) == [(0, 10, 2), (20, 30, 2)]
        assert panes(driver.state("w").get("a")) == [(30, 40, 7)]


CASE_12 = rows((1, 101), (2, 107), (3, 110), (4, 135), (5, 135))


def test_case_12_hopping_final():
    with sent(windowed(mp.hopping(10, 5), grace=mp.NO_GRACE), CASE_12) as driver:
        assert panes(driver.output("out")) == [(95, 105, 1), (100, 110, 3), (105, 115, 5), (110, 120, 3)]


def test_case_12_hopping_at_every_update():
    app = windowed(mp.hopping(10, 5), grace=mp.NO_GRACE, trigger=mp.triggers.on_update())
    with sent(app, CASE_12) as driver:
        assert [o["sum"] for o in driver.output("out")] == [1, 1, 3, 2, 5, 3, 4, 4, 9, 9]
        assert [o["pane"] for o in driver.output("out")] == [0, 0, 1, 0, 1, 0, 0, 0, 1, 1]


def test_case_13_a_late_row_goes_aside_with_how_late_it_was_and_what_it_missed():
    with sent(windowed(mp.tumbling(10), grace=mp.NO_GRACE), rows((1, 1), (2, 20), (3, 19))) as driver:
        assert panes(driver.output("out")) == [(0, 10, 1)]
        assert driver.output("late") == [{"row": row(3, 19), "key": "a", "late_by": 1, "missed": [(10, 20)]}]


@pytest.mark.parametrize(("second", "window", "seen"), [(21, (11, 21), ["A", "B"]), (22, (12, 22), ["B"])])
def test_case_14_sliding_both_ends_included(second, window, seen):
    app = windowed(mp.sliding(10), {"seen": mp.collect("v")}, grace=mp.NO_GRACE)
    with sent(app, rows(("A", 11), ("B", second)), finish=True) as driver:
        assert panes(driver.output("out")) == [(1, 11, ["A"]), (*window, seen)]


@pytest.mark.parametrize(
    ("aggregation", "values", "expected"),
    [
        (mp.sum("v"), [1, None, 2], 3),
        (mp.count("v"), [1, "2", None], 2),
        (mp.mean("v"), [None], None),
        (mp.mean("v"), [1, None, 2], 1.5),
        (mp.max("v"), [3, None, 2], 3),
        (mp.min("v"), [None, 3, 2], 2),
        (mp.sum("v"), [None], 0),
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_case_19_nulls(aggregation, values, expected, together):
    app = windowed(mp.tumbling(10), {"x": aggregation}, grace=mp.NO_GRACE)
    with sent(app, rows(*((v, 1) for v in values)), together=together, finish=True) as driver:
        assert [o["x"] for o in driver.output("out")] == [expected]


def test_case_19_a_window_that_has_discarded_all_sums_to_nothing():
    app = windowed(mp.tumbling(10), grace=mp.NO_GRACE, trigger=mp.triggers.on_update(), panes="discard")
    with sent(app, [row(1, 1)]) as driver:
        assert panes(driver.state("w").get("a")) == [(0, 10, 0)]


@pytest.mark.parametrize("window", [mp.tumbling(10), mp.session(10), mp.sliding(10), mp.hopping(10, 5)])
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    ("times", "expected"),
    [([3, 2, 1], (1, 3, 3, 1)), ([1, 1, 1], (1, 3, 1, 3))],
)
def test_case_20_first_and_last_by_arrival_earliest_and_latest_by_time(window, together, times, expected):
    aggregations = {
        "first": mp.first("v"),
        "last": mp.last("v"),
        "earliest": mp.earliest("v"),
        "latest": mp.latest("v"),
    }
    app = windowed(window, aggregations, grace=100)
    with sent(app, rows(*((v, t) for v, t in zip([1, 2, 3], times, strict=True))), together=together) as driver:
        driver.finish()
        found = driver.output("out")[-1]
        assert tuple(found[name] for name in aggregations) == expected


def test_case_21_an_early_pane_and_then_what_is_left():
    app = windowed(
        mp.tumbling(100),
        grace=mp.NO_GRACE,
        trigger=mp.triggers.when(lambda result, row: result["sum"] >= 9),
        panes="discard",
    )
    with TestDriver(app) as driver:
        for one, expected in zip(rows((2, 50), (2, 60), (5, 70), (3, 80)), [[], [], [9], [9]], strict=True):
            driver.send("rows", [one])
            assert [o["sum"] for o in driver.output("out")] == expected
        assert panes(driver.state("w").get("a")) == [(0, 100, 3)]


def test_case_27_windows_may_go_by_the_newest_time_of_their_own_key():
    with sent(windowed(mp.tumbling(10), grace=2, clock="key"), CASE_10) as driver:
        assert driver.output("out") == []
        driver.send("rows", [row(2, 112, "k1")])
        assert [(o["k"], *panes([o])[0]) for o in driver.output("out")] == [("k1", 100, 110, 4)]
        assert panes(driver.state("w").get("k2")) == [(100, 110, 14)]


def test_case_28_windows_over_windows_lose_nothing():
    app = mp.App("twice", partitions=1)
    ticks = app.stream("rows", mp.sources.rows([]), timestamp="t").key_by("k")
    small = ticks.window("small", mp.tumbling(1), grace=mp.NO_GRACE).aggregate(sum=mp.sum("v"))
    large = small.window("large", mp.tumbling(5), grace=mp.NO_GRACE)
    large.aggregate(total=mp.sum("sum")).to("out", mp.sinks.memory())
    large.late.to("late", mp.sinks.memory())
    with sent(app, rows((1, 0), (1, 1), (1, 4), (1, 5), (1, 11))) as driver:
        assert panes(driver.output("out"), "total") == [(0, 5, 3), (5, 10, 1)]
        assert driver.output("late") == []
