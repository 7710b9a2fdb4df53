"""What is wrong with the program's data is told as such, and never as trouble with a local replica."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import millpond as mp
from millpond.testing import TestDriver

HUGE = 10**400  # a whole number that no float can hold; so its mean has no result


def app_of(way: str, on_error: Any) -> mp.App:
    app = mp.App("means", partitions=1)
    rows = app.stream("rows", mp.sources.rows([]), timestamp="t").key_by("k")
    # `last` is not read by columns, so with it the rows are looked at one by one.
    more = {"last": mp.last("v")} if way == "by rows" else {}
    made = rows.window("w", mp.tumbling(10), grace=0, on_error=on_error).aggregate(mean=mp.mean("v"), **more)
    made.to("out", mp.sinks.memory())
    if on_error == "dead-letter":
        app.dead_letters.to("dead", mp.sinks.memory())
    return app


def row(k: str, t: int, v: Any) -> dict[str, Any]:
    return {"k": k, "t": t, "v": v}


# The batch in which the window of the huge number closes: all rows at once, in several pieces, or the end of the input.
ENDINGS = {
    "a batch": [[row("c", 25, 3)]],
    "a batch that meets the window": [[row("a", 2, 1), row("c", 25, 3)]],
    "the end": [],
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("way", ["by columns", "by rows"])
@pytest.mark.parametrize("on_error", ["stop", "skip", "dead-letter"])
def test_a_mean_that_no_float_can_hold_meets_the_policy_of_its_step(way: str, on_error: str, ending: str) -> None:
    def live() -> TestDriver:
        driver = TestDriver(app_of(way, on_error))
        driver.send("rows", [row("a", 1, HUGE), row("b", 1, 5)])
        for batch in ENDINGS[ending]:
            driver.send("rows", batch)
        driver.finish()
        return driver

    if on_error == "stop":
        with pytest.raises(mp.errors.StepFailed, match=r"(?s)step 'w'.*OverflowError.*'a'") as caught:
            live()
        assert "replica" not in str(caught.value)
        return
    with live() as driver:
        found = {(o["k"], o["window_start"]): o["mean"] for o in driver.output("out")}
        assert found == {("b", 0): 5.0} | ({} if ending == "the end" else {("c", 20): 3.0})
        assert dict(driver.state("w").items()) == {}
        if on_error == "dead-letter":
            (letter,) = driver.output("dead")
            assert (letter["key"], letter["row"]) == ("a", {"window_start": 0, "window_end": 10})


@pytest.mark.parametrize("error", [OverflowError("no"), UnicodeDecodeError("ascii", b"\xff", 0, 1, "no")])
def test_what_a_sketch_of_the_users_own_raises_when_a_window_closes_is_told_as_it_is(error: Exception) -> None:
    def fail(acc: Any) -> Any:
        raise error

    app = mp.App("own", partitions=1)
    own = mp.aggregation(initial=0, update=lambda acc, row: acc, result=fail)
    rows = app.stream("rows", mp.sources.rows([]), timestamp="t").key_by("k")
    rows.window("w", mp.tumbling(10), grace=0).aggregate(own=own).to("out", mp.sinks.memory())
    with pytest.raises(mp.errors.StepFailed, match=type(error).__name__), TestDriver(app) as driver:
        driver.send("rows", [row("a", 1, 1), row("a", 20, 1)])


@pytest.mark.parametrize("length", [1 << 60, timedelta.max, "99999999999999d"])
def test_a_duration_that_would_leave_64_bits_is_refused(length: Any) -> None:
    rows = mp.App("long").stream("rows", mp.sources.rows([]), timestamp="t").key_by("k")
    with pytest.raises(mp.errors.InvalidUse, match=r"expected a duration of less than 2\*\*60"):
        rows.deduplicate("once", within=length)


def test_a_timer_that_the_data_sets_too_far_is_an_error_of_its_row() -> None:
    class Far:
        def on_row(self, key: Any, row: Any, state: Any, timers: Any) -> None:
            timers.set("far", after=row["v"])

        def on_timer(self, key: Any, timer: Any, state: Any, timers: Any) -> None:
            return None

    app = mp.App("far", partitions=1)
    app.stream("rows", mp.sources.rows([]), timestamp="t").key_by("k").process("p", Far)
    with TestDriver(app) as driver:
        driver.send("rows", [row("a", 1, (1 << 60) - 1)])
        with pytest.raises(mp.errors.StepFailed, match=r"less than 2\*\*60"):
            driver.send("rows", [row("a", 1, 1 << 64)])


@pytest.mark.parametrize("t", [(1 << 62) - 1, 1 - (1 << 62)])
def test_the_ends_of_time_leave_room_for_the_longest_durations(t: int) -> None:
    long = (1 << 60) - 1
    app = mp.App("ends", partitions=1)
    rows = app.stream("rows", mp.sources.rows([]), timestamp="t").key_by("k")
    windows: dict[str, Any] = {"hop": mp.tumbling(long), "session": mp.session(long), "sliding": mp.sliding(long)}
    for name, window in windows.items():
        rows.window(name, window, grace=long).aggregate(m=mp.mean("v")).to(f"{name} out", mp.sinks.memory())
    rows.deduplicate("once", within=long).to("once out", mp.sinks.memory())
    rows.aggregate("running", n=mp.count(), ttl=long).to("running out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [row("a", t, 1)])
        driver.finish()
        assert len(driver.output("sliding out")) == len(driver.output("hop out")) == 1
