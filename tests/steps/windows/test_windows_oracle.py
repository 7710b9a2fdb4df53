"""Any rows, in any order, in any batches: windows come to what a plain loop over all rows comes to."""

from __future__ import annotations

import contextlib
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_windows import row, windowed

import millpond as mp
from millpond.steps.windows.session_merge import extend as together
from millpond.steps.windows.session_merge import merge_extents as merged
from millpond.testing import Crashed, TestDriver

MANY = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
DISORDER = 7
AGGREGATIONS = {
    "n": mp.count(),
    "sum": mp.sum("v"),
    "min": mp.min("v"),
    "max": mp.max("v"),
    "mean": mp.mean("v"),
    "first": mp.first("v"),
    "last": mp.last("v"),
    "earliest": mp.earliest("v"),
    "latest": mp.latest("v"),
    "all": mp.collect("v"),
    "distinct": mp.distinct("v"),
    "top": mp.top(2, "v"),
    "own": mp.aggregation(
        initial=lambda: {"n": 0},
        update=lambda acc, r: {"n": acc["n"] + r["v"]},
        merge=lambda a, b: {"n": a["n"] + b["n"]},
    ),
}
WITHOUT_ARRIVAL = ("n", "sum", "min", "max", "mean", "own")
WINDOWS = {
    "tumbling": mp.tumbling(10, offset=3),
    "hopping": mp.hopping(10, 4),
    "session": mp.session(3),
    "sliding": mp.sliding(6),
}


@st.composite
def histories(draw: Any) -> list[list[dict[str, Any]]]:
    """Batches of rows, none of which is late: each lies at most DISORDER behind any that came before it."""
    times = draw(st.lists(st.integers(-30, 60), min_size=1, max_size=25))
    held_up = draw(st.lists(st.integers(0, DISORDER), min_size=len(times), max_size=len(times)))
    arrived = sorted(zip(times, held_up, range(len(times)), strict=True), key=lambda each: (each[0] + each[1], each[2]))
    values = draw(st.lists(st.integers(-5, 5), min_size=len(times), max_size=len(times)))
    keys = draw(st.lists(st.sampled_from("ab"), min_size=len(times), max_size=len(times)))
    all_rows = [row(values[i], t, keys[i]) for t, _, i in arrived]
    cuts = sorted(draw(st.lists(st.integers(0, len(all_rows)), max_size=6)))
    edges = [0, *cuts, len(all_rows)]
    return [all_rows[a:b] for a, b in pairwise(edges) if a < b]


def extents(kind: str, times: list[int]) -> list[tuple[int, int, Any]]:
    """The windows of one key, each with a function that says whether a time is in it."""
    if kind == "session":
        return [(a, b, lambda t, a=a, b=b: a <= t <= b) for a, b in merged([(t, t) for t in times], 3)]
    if kind == "sliding":
        return [(t - 6, t, lambda x, t=t: t - 6 <= x <= t) for t in sorted(set(times))]
    size, hop, offset = (10, 10, 3) if kind == "tumbling" else (10, 4, 0)
    found = []
    for start in range(-200, 200):
        if (start - offset) % hop == 0 and any(start <= t < start + size for t in times):
            found.append((start, start + size, lambda t, s=start: s <= t < s + size))
    return found


def oracle(kind: str, all_rows: list[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    found = {}
    for key in {r["k"] for r in all_rows}:
        own = [r for r in all_rows if r["k"] == key]
        for start, end, inside in extents(kind, [r["t"] for r in own]):
            rows = [r for r in own if inside(r["t"])]
            values = [r["v"] for r in rows]
            by_time = sorted(rows, key=lambda r: r["t"])
            found[key, start, end] = {
                "n": len(rows),
                "sum": sum(values),
                "min": min(values),
                "max": max(values),
                "mean": sum(values) / len(values),
                "first": values[0],
                "last": values[-1],
                "earliest": by_time[0]["v"],
                "latest": max(enumerate(rows), key=lambda pair: (pair[1]["t"], pair[0]))[1]["v"],
                "all": values,
                "distinct": list(dict.fromkeys(values)),
                "top": sorted(values, reverse=True)[:2],
                "own": {"n": sum(values)},
            }
    return found


def named(outputs: list[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    """Aggregates by window; no window may come twice."""
    found = {}
    for output in outputs:
        window = (output["k"], output["window_start"], output["window_end"])
        assert window not in found, f"{window} came twice"
        found[window] = {name: output[name] for name in AGGREGATIONS if name in output}
    return found


def run(app: mp.App, batches: list[list[dict[str, Any]]]) -> TestDriver:
    driver = TestDriver(app)
    for batch in batches:
        driver.send("rows", batch)
    return driver


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("partitions", [1, 3])
@MANY
@given(batches=histories(), grace=st.sampled_from([0, 4]))
def test_final_windows_are_those_of_a_loop_over_all_rows(kind, partitions, batches, grace):
    app = windowed(WINDOWS[kind], AGGREGATIONS, stream={"disorder": DISORDER}, grace=grace, partitions=partitions)
    with run(app, batches) as driver:
        before = list(driver.output("out"))
        driver.finish()
        assert named(driver.output("out")) == oracle(kind, [r for batch in batches for r in batch])
        assert all(o["final"] and o["pane"] == 0 for o in driver.output("out"))
        assert driver.output("late") == []
        newest = max(r["t"] for batch in batches for r in batch) - DISORDER
        for output in before:
            assert output["window_end"] + grace <= newest, "nothing closes before its time"
        assert all(driver.state("w").get(key) in (None, []) for key in "ab"), "nothing stays"


@pytest.mark.parametrize("kind", WINDOWS)
@MANY
@given(batches=histories(), data=st.data())
def test_the_order_of_rows_within_a_batch_changes_no_result_that_does_not_speak_of_arrival(kind, batches, data):
    aggregations = {name: AGGREGATIONS[name] for name in WITHOUT_ARRIVAL}
    shuffled = [data.draw(st.permutations(batch)) for batch in batches]
    found = []
    for history in (batches, shuffled):
        # No disorder is allowed for, so many rows are late: which ones must not depend on the order either.
        with run(windowed(WINDOWS[kind], aggregations, grace=2), history) as driver:
            driver.finish()
            late = sorted((str(o["row"]), str(sorted(o["missed"]))) for o in driver.output("late"))
            found.append((named(driver.output("out")), late))
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", WINDOWS)
@MANY
@given(batches=histories())
def test_every_row_is_counted_or_late(kind, batches):
    app = windowed(WINDOWS[kind], {"all": mp.collect("id")}, grace=1)
    history = [[{**r, "id": f"{b}.{i}"} for i, r in enumerate(batch)] for b, batch in enumerate(batches)]
    with run(app, history) as driver:
        driver.finish()
        counted = {one for o in driver.output("out") for one in o["all"]}
        late = {o["row"]["id"] for o in driver.output("late")}
        assert counted | late == {r["id"] for batch in history for r in batch}
        if kind in ("tumbling", "session"):
            assert not counted & late


@pytest.mark.parametrize("kind", WINDOWS)
@MANY
@given(batches=histories(), grace=st.sampled_from([0, 3]))
def test_by_the_clock_of_the_key_each_key_is_as_if_it_were_alone(kind, batches, grace):
    found = {}
    with run(windowed(WINDOWS[kind], AGGREGATIONS, grace=grace, clock="key"), batches) as driver:
        driver.finish()
        outputs, late = driver.output("out"), driver.output("late")
    for key in "ab":
        own = [[r for r in batch if r["k"] == key] for batch in batches]
        with run(windowed(WINDOWS[kind], AGGREGATIONS, grace=grace), [batch for batch in own if batch]) as driver:
            driver.finish()
            found[key] = driver.output("out"), driver.output("late")
        assert named([o for o in outputs if o["k"] == key]) == named(found[key][0])
        assert [o for o in late if o["key"] == key] == found[key][1]


TRIGGERS = {
    "on_update": mp.triggers.on_update(),
    "every_rows": mp.triggers.every_rows(3),
    "on_match": mp.triggers.on_match(lambda r: r["v"] == 0),
    "when": mp.triggers.when(lambda result, r: result["sum"] > 3),
    "before": mp.triggers.when(lambda result, r: r["v"] < 0, before=True),
    "at_end": mp.triggers.at_end(1),
    "at_fraction": mp.triggers.at_fraction(0.3),
    "any_of": mp.triggers.any_of(mp.triggers.every_rows(2), mp.triggers.at_end()),
    "all_of": mp.triggers.all_of(mp.triggers.every_rows(2), mp.triggers.on_match(lambda r: r["v"] > 0)),
    "custom": mp.triggers.custom(
        initial=list, advance=lambda seen, e: [*seen, e.row["v"]][-2:], fires=lambda seen, e: sum(seen) > 2
    ),
}


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("fires", ["this", "all"])
@pytest.mark.parametrize("panes", ["accumulate", "discard", "retract"])
@settings(MANY, max_examples=4)
@given(batches=histories(), trigger=st.sampled_from(sorted(TRIGGERS)))
def test_panes_add_up_to_the_window(kind, fires, panes, batches, trigger):
    names = ("sum", "n", "all", "distinct")
    app = windowed(
        WINDOWS[kind],
        {name: AGGREGATIONS[name] for name in names},
        stream={"disorder": DISORDER},
        grace=3,
        trigger=TRIGGERS[trigger],
        panes=panes,
        fires=fires,
    )
    with run(app, batches) as driver:
        driver.finish()
        expected = oracle(kind, [r for batch in batches for r in batch])
        outputs = driver.output("out")
    if panes == "retract" or kind != "session":
        held: dict[Any, dict[str, Any]] = {}
        for output in outputs:
            window = (output["k"], output["window_start"], output["window_end"])
            if output.pop("retracted", False):
                taken = held.pop(window)
                assert {name: taken[name] for name in names} == {name: output[name] for name in names}
                continue
            if panes == "discard" and window in held:
                before = held[window]
                output = {**output, **{name: before[name] + output[name] for name in ("sum", "n", "all")}}
                output["distinct"] = list(dict.fromkeys(before["distinct"] + output["distinct"]))
            assert panes != "retract" or window not in held, "taken back before it comes again"
            held[window] = output
        assert {w: {name: o[name] for name in names} for w, o in held.items()} == {
            w: {name: o[name] for name in names} for w, o in expected.items()
        }
    elif panes == "discard":  # sessions grow, so their panes have other extents than the whole
        assert sum(o["n"] for o in outputs) == sum(o["n"] for o in expected.values())
    numbers: dict[Any, list[int]] = {}
    if kind != "session":
        for output in outputs:
            numbers.setdefault((output["k"], output["window_start"]), []).append(output["pane"])
        if panes != "retract":
            assert all(found == list(range(len(found))) for found in numbers.values())


CRASHES = st.tuples(
    st.sampled_from(["plan", "compute", "commit", "deliver", "acknowledge", "tidy"]),
    st.sampled_from(["before", "during", "after"]),
    st.booleans(),
)


@pytest.mark.parametrize("kind", WINDOWS)
@settings(MANY, max_examples=10)
@given(
    batches=histories(), crashes=st.dictionaries(st.integers(0, 6), CRASHES), trigger=st.sampled_from(sorted(TRIGGERS))
)
def test_no_pane_is_lost_or_doubled_across_a_crash(kind, batches, crashes, trigger):
    def app() -> mp.App:
        how: dict[str, Any] = {"trigger": TRIGGERS[trigger], "panes": "retract", "grace": 2, "partitions": 2}
        return windowed(WINDOWS[kind], {name: AGGREGATIONS[name] for name in ("sum", "all")}, **how)

    with run(app(), batches) as driver:
        driver.finish()
        expected, late = driver.output("out"), driver.output("late")
    with TestDriver(app()) as driver:
        for number, batch in enumerate([*batches, None]):
            crash = crashes.get(number)
            if crash is not None:
                driver.crash(at=crash[0], when=crash[1])
            with contextlib.suppress(Crashed):
                driver.finish() if batch is None else driver.send("rows", batch)
            if crash is not None:
                driver.restart(lose_replicas=crash[2])
                if batch is None:
                    driver.finish()
        assert driver.output("out") == expected
        assert driver.output("late") == late


@given(
    st.lists(st.integers(0, 60), max_size=8),
    st.lists(st.integers(0, 60), max_size=8),
    st.lists(st.integers(0, 60), max_size=8),
    st.integers(1, 10),
)
def test_sessions_merge_alike_in_any_grouping(a, b, c, gap):
    def sessions(times):
        return merged([(t, t) for t in times], gap)

    left = merged(merged(sessions(a) + sessions(b), gap) + sessions(c), gap)
    right = merged(sessions(a) + merged(sessions(b) + sessions(c), gap), gap)
    assert left == right == sessions(a + b + c)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=12), st.integers(1, 10))
def test_rows_that_join_sessions_one_by_one_make_those_of_all_rows(times, gap):
    found: list[tuple[int, int]] = []
    for t in times:
        near = [s for s in found if s[0] - gap <= t <= s[1] + gap]
        found = [s for s in found if s not in near] + [together(near, t)]
    assert sorted(found) == merged([(t, t) for t in times], gap)
