"""`process`: timers fire in order, also when no row comes, also after a restart, and exactly once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from outside import Calls

import millpond as mp
from millpond.testing import Crashed, TestDriver

STEPS = ["plan", "compute", "commit", "deliver", "acknowledge", "tidy"]
WHENS = ["before", "during", "after"]
EVERYWHERE = [(at, when) for at in STEPS for when in WHENS]


class Alarm:
    """A row says what to do with its key's timers; a timer says that it has fired."""

    def on_row(self, key, row, state, timers):
        if "set" in row:
            timers.set(row["set"], at=row.get("for"), after=row.get("in"), payload=row.get("payload"))
        if "wall" in row:
            timers.set_wall(row["wall"], after=row["in"], payload=row.get("payload"))
        if "cancel" in row:
            timers.cancel(row["cancel"])

    def on_timer(self, key, timer, state, timers):
        return (key, timer.name, timer.at, timer.payload)


def app_of(processor: Any = Alarm, *, timestamp: Any = "at", partitions: int = 1, **options: Any) -> mp.App:
    app = mp.App("alarms", partitions=partitions)
    rows = app.stream("rows", mp.sources.rows([]), timestamp=timestamp).key_by("k")
    rows.process("alarm", processor, **options).to("out", mp.sinks.memory())
    return app


def row(k: Any, at: Any, **more: Any) -> dict[str, Any]:
    return {"k": k, "at": at, **more}


def fired(driver: TestDriver) -> list[tuple[Any, ...]]:
    return [(key, name) for key, name, _, _ in driver.output("out")]


# --- when they fire ---


def test_a_timer_fires_when_the_watermark_has_come_to_it():
    with TestDriver(app_of()) as driver:
        driver.send("rows", [row("a", 10, set="x", **{"in": 5})])
        driver.send("rows", [row("b", 14)])
        assert driver.output("out") == []
        driver.send("rows", [row("b", 15)])
        assert driver.output("out") == [("a", "x", 15, None)]
        driver.send("rows", [row("b", 99)])
        assert len(driver.output("out")) == 1


def test_timers_of_all_keys_fire_in_the_order_of_time():
    sent = [
        row("b", 1, set="x", **{"for": 30}),
        row("a", 2, set="x", **{"for": 20}),
        row("a", 3, set="y", **{"for": 25}),
    ]
    with TestDriver(app_of()) as driver:
        driver.send("rows", sent[:2])
        driver.send("rows", sent[2:])
        driver.send("rows", [row("c", 100, set="z", **{"for": 22})])
        assert fired(driver) == [("a", "x"), ("c", "z"), ("a", "y"), ("b", "x")]


def test_a_timer_is_told_apart_from_the_rows_of_its_batch_and_fires_after_them():
    class Both:
        def on_row(self, key, row, state, timers):
            timers.set("t", at=row["at"])
            return ("row", row["at"])

        def on_timer(self, key, timer, state, timers):
            return ("timer", timer.at)

    with TestDriver(app_of(Both)) as driver:
        driver.send("rows", [row("a", 1), row("b", 2)])
        assert driver.output("out") == [("row", 1), ("row", 2), ("timer", 1), ("timer", 2)]


def test_a_timer_that_is_set_for_the_past_fires_at_the_end_of_the_same_batch():
    with TestDriver(app_of()) as driver:
        driver.send("rows", [row("a", 100, set="x", **{"for": 3})])
        assert driver.output("out") == [("a", "x", 3, None)]


def test_setting_a_timer_again_replaces_it_and_cancelling_takes_it_back():
    with TestDriver(app_of()) as driver:
        driver.send("rows", [row("a", 1, set="x", **{"for": 10}), row("a", 1, set="y", **{"for": 10})])
        driver.send("rows", [row("a", 2, set="x", **{"for": 20}, payload="second"), row("a", 2, cancel="y")])
        driver.send("rows", [row("b", 15)])
        assert driver.output("out") == []
        driver.send("rows", [row("b", 25)])
        assert driver.output("out") == [("a", "x", 20, "second")]


def test_a_timer_of_event_time_and_one_of_the_clock_do_not_share_a_name():
    with TestDriver(app_of()) as driver:
        driver.send("rows", [row("a", 1, set="x", **{"for": 10}), row("a", 1, wall="x", **{"in": "10s"})])
        driver.send("rows", [row("b", 50)])
        assert driver.output("out") == []
        driver.send("rows", [row("a", 50, set="x", **{"for": 60})])
        driver.advance("1m")
        assert driver.output("out") == []
        driver.send("rows", [row("b", 60)])
        assert fired(driver) == [("a", "x")]


def test_a_timer_of_the_clock_fires_when_no_row_comes():
    with TestDriver(app_of(timestamp=None)) as driver:
        driver.send("rows", [row("a", 0, wall="x", payload=[1], **{"in": "10s"})])
        start = datetime.fromtimestamp(driver.clock.now(), UTC)
        driver.advance("9s")
        assert driver.output("out") == []
        driver.advance("1s")
        assert driver.output("out") == [("a", "x", start + timedelta(seconds=10), [1])]
        driver.advance("1h")
        assert len(driver.output("out")) == 1


def test_timers_of_a_stream_that_has_gone_quiet_fire_by_the_clock():
    app = mp.App("alarms")
    rows = app.stream("rows", mp.sources.rows([]), timestamp="at", idle_after="10s").key_by("k")
    rows.process("alarm", Alarm).to("out", mp.sinks.memory())
    start = datetime(2030, 1, 1, tzinfo=UTC)
    with TestDriver(app) as driver:
        driver.send("rows", [row("a", start, set="x", **{"in": "1m"})])
        driver.advance("30s")
        assert driver.output("out") == []
        driver.advance("60s")
        assert driver.output("out") == [("a", "x", start + timedelta(minutes=1), None)]


def test_the_end_of_the_input_fires_every_timer_of_event_time_once():
    class Again:
        def on_row(self, key, row, state, timers):
            timers.set("tick", after=10)

        def on_timer(self, key, timer, state, timers):
            timers.set("tick", after=10)
            return (key, timer.at)

    with TestDriver(app_of(Again)) as driver:
        driver.send("rows", [row("a", 1), row("b", 2)])
        driver.finish()
        assert driver.output("out") == [("a", 11), ("b", 12)], "and not the ones that these have set"


def test_a_timer_that_sets_a_timer_that_is_due_fires_it_in_the_same_batch():
    class Chain:
        def on_row(self, key, row, state, timers):
            timers.set("tick", after=10)

        def on_timer(self, key, timer, state, timers):
            timers.set("tick", after=10)
            return (key, timer.at)

    with TestDriver(app_of(Chain)) as driver:
        driver.send("rows", [row("a", 1), row("b", 2)])
        driver.send("rows", [row("c", 35)])
        assert driver.output("out") == [("a", 11), ("b", 12), ("a", 21), ("b", 22), ("a", 31), ("b", 32)]


def test_a_timer_that_sets_itself_for_the_same_moment_for_ever_fails():
    class Endless:
        def on_row(self, key, row, state, timers):
            timers.set("tick", after=0)

        def on_timer(self, key, timer, state, timers):
            timers.set("tick", after=0)

    with (
        TestDriver(app_of(Endless)) as driver,
        pytest.raises(mp.errors.StepFailed, match=r"expected on_timer to set a timer for a time to come"),
    ):
        driver.send("rows", [row("a", 1)])


def test_times_may_be_datetimes_or_text():
    start = datetime(2030, 1, 1, tzinfo=UTC)
    with TestDriver(app_of()) as driver:
        driver.send("rows", [row("a", start.isoformat(), set="x", **{"in": "30m"})])
        driver.send("rows", [row("a", start.isoformat(), set="y", **{"for": "2030-01-01T00:20:00+00:00"})])
        driver.send("rows", [row("b", "2030-01-01T01:00:00Z")])
        times = [at for _, _, at, _ in driver.output("out")]
        assert times == [start + timedelta(minutes=20), start + timedelta(minutes=30)]


# --- what a processor sees ---


def test_state_and_timers_of_a_key_are_its_own():
    class Count:
        def on_row(self, key, row, state, timers):
            state.set("n", state.get("n", 0) + 1)
            if timers.get("report") is None:
                timers.set("report", after=10, payload={"began": row["at"]})

        def on_timer(self, key, timer, state, timers):
            n = state.get("n")
            state.clear()
            yield {
                "key": key,
                "n": n,
                "began": timer.payload["began"],
                "time": state.time,
                "watermark": state.watermark,
            }

    with TestDriver(app_of(Count)) as driver:
        driver.send("rows", [row("a", 1), row("b", 4), row("a", 5)])
        assert dict(driver.state("alarm").items()) == {"a": {"n": 2}, "b": {"n": 1}}, "timers are not state"
        driver.send("rows", [row("c", 12)])
        assert driver.output("out") == [{"key": "a", "n": 2, "began": 1, "time": 11, "watermark": 5}]
        assert driver.state("alarm").get("a") is None
        driver.send("rows", [row("c", 14)])
        assert driver.output("out")[1:] == [{"key": "b", "n": 1, "began": 4, "time": 14, "watermark": 12}]


def test_clearing_the_state_leaves_the_timers():
    class Clear(Alarm):
        def on_row(self, key, row, state, timers):
            timers.set("x", after=10)
            state.set("n", 1)
            state.clear()

    with TestDriver(app_of(Clear)) as driver:
        driver.send("rows", [row("a", 1)])
        assert driver.state("alarm").get("a") is None
        driver.send("rows", [row("b", 11)])
        assert fired(driver) == [("a", "x")]


def test_a_timer_that_is_set_shows_with_get_until_it_fires():
    seen = Calls()

    class Look:
        def on_row(self, key, row, state, timers):
            seen.append(timers.get("x"))
            timers.set("x", at=row["at"] + 5, payload=row["at"])

        def on_timer(self, key, timer, state, timers):
            seen.append((timer, timers.get("x")))

    with TestDriver(app_of(Look)) as driver:
        driver.send("rows", [row("a", 1)])
        driver.send("rows", [row("a", 2), row("b", 7)])
    assert seen == [None, mp.Timer("x", 6, 1), None, (mp.Timer("x", 7, 2), None)]


@pytest.mark.parametrize(
    ("result", "outputs"),
    [
        (None, []),
        (0, [0]),
        ([1, None, 2], [1, 2]),
        ((1, 2), [(1, 2)]),
        ({"a": 1}, [{"a": 1}]),
        ("ab", ["ab"]),
        ([], []),
    ],
)
def test_a_list_is_several_outputs_and_anything_else_is_one(result, outputs):
    class Returns:
        def on_row(self, key, row, state, timers):
            return result

    with TestDriver(app_of(Returns)) as driver:
        driver.send("rows", [row("a", 1)])
        assert driver.output("out") == outputs


def test_a_processor_may_be_an_instance_a_class_or_a_function():
    for processor in (Alarm(), Alarm, lambda: Alarm()):
        with TestDriver(app_of(processor)) as driver:
            driver.send("rows", [row("a", 1, set="x", **{"for": 1})])
            assert fired(driver) == [("a", "x")]


def test_what_a_timer_puts_out_has_the_timers_time():
    app = mp.App("timed")
    rows = app.stream("rows", mp.sources.rows([]), timestamp="at").key_by("k")
    seen = rows.process("alarm", Alarm).apply("seen", lambda output, state: (output[1], state.time))
    seen.to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [row("a", 10, set="x", **{"in": 5}), row("a", 10, wall="w", **{"in": "1m"})])
        driver.send("rows", [row("b", 40)])
        driver.advance("2m")
        assert driver.output("out") == [("x", 15), ("w", 40)], "and one of the clock the watermark"


def test_a_timer_of_the_clock_without_any_watermark_puts_out_rows_without_a_time():
    app = mp.App("timed")
    rows = app.stream("rows", mp.sources.rows([])).key_by("k")
    rows.process("alarm", Alarm).apply("seen", lambda output, state: [state.time]).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [row("a", 10, wall="w", **{"in": "1m"})])
        driver.advance("2m")
        assert driver.output("out") == [[None]]


# --- failures ---


class Breaks:
    """`on_timer` writes, sets a timer, and raises as often as the payload says."""

    def __init__(self) -> None:
        self.calls = 0

    def on_row(self, key, row, state, timers):
        timers.set("x", after=10, payload=row.get("fails", 0))

    def on_timer(self, key, timer, state, timers):
        self.calls += 1
        state.set("fired", self.calls)
        if timer.name == "x" and self.calls <= timer.payload:
            timers.set("y", after=1)
            raise ValueError("no")
        return (key, timer.name)


def test_a_timer_that_fails_stops_the_app_and_fires_again_with_the_batch():
    with TestDriver(app_of(Breaks)) as driver:
        driver.send("rows", [row("a", 1, fails=99)])
        with pytest.raises(mp.errors.StepFailed, match="no") as caught:
            driver.send("rows", [row("b", 20)])
        assert caught.value.row == {"timer": "x", "at": 11, "payload": 99}
        assert caught.value.key == "a"
        driver.restart(app_of())
        assert fired(driver) == [("a", "x")]


def test_a_timer_that_fails_and_is_skipped_is_used_up_and_has_written_nothing():
    with TestDriver(app_of(Breaks, on_error="skip")) as driver:
        driver.send("rows", [row("a", 1, fails=99), row("b", 2)])
        driver.send("rows", [row("c", 50)])
        driver.finish()
        assert driver.output("out") == [("b", "x"), ("c", "x")]
        assert driver.state("alarm").get("a") is None


def test_a_timer_that_fails_is_tried_again():
    with TestDriver(app_of(Breaks, on_error=mp.retry(2, "1ms"))) as driver:
        driver.send("rows", [row("a", 1, fails=2)])
        driver.send("rows", [row("b", 20)])
        assert driver.output("out") == [("a", "x")]
        assert driver.state("alarm").get("a") == {"fired": 3}


def test_a_timer_that_fails_becomes_a_dead_letter():
    app = app_of(Breaks, on_error="dead-letter")
    app.dead_letters.to("dead", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [row("a", 1, fails=99)])
        driver.send("rows", [row("b", 20)])
        letters = [(x["row"], x["key"], x["step"], x["error"]) for x in driver.output("dead")]
        assert letters == [({"timer": "x", "at": 11, "payload": 99}, "a", "alarm", "ValueError: no")]


def test_a_row_that_fails_sets_no_timer():
    class Fails(Alarm):
        def on_row(self, key, row, state, timers):
            super().on_row(key, row, state, timers)
            if row.get("fails"):
                raise ValueError("no")

    with TestDriver(app_of(Fails, on_error="skip")) as driver:
        driver.send("rows", [row("a", 1, set="x", **{"in": 5})])
        driver.send("rows", [row("a", 2, set="x", fails=True, **{"in": 1}), row("a", 2, cancel="x", fails=True)])
        driver.send("rows", [row("b", 50)])
        assert driver.output("out") == [("a", "x", 6, None)]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"set": "x"}, "expected one of at= and after=, got neither"),
        ({"set": "x", "for": 1, "in": 1}, "expected one of at= and after=, got both"),
        ({"set": "x", "in": "10s"}, "the stream's times are whole numbers, so expected a whole number"),
        ({"set": "x", "for": datetime(2030, 1, 1, tzinfo=UTC)}, "at: the stream's times are whole numbers, got"),
        ({"set": "x", "for": "soon"}, "at: expected an ISO-8601 time, got 'soon'"),
        ({"set": "x", "in": -1}, "expected a duration that is not negative"),
        ({"wall": "x", "in": 5}, 'expected a duration such as "10s", got 5'),
        ({"set": 5, "in": 5}, "expected a timer's name, a text, got 5"),
    ],
)
def test_a_timer_that_cannot_be_set_says_why(bad, message):
    with TestDriver(app_of()) as driver, pytest.raises(mp.errors.StepFailed) as caught:
        driver.send("rows", [row("a", 1, **bad)])
    assert message in str(caught.value)


def test_a_timer_of_event_time_needs_rows_that_have_one():
    with TestDriver(app_of(timestamp=None)) as driver, pytest.raises(mp.errors.StepFailed, match=r"timers\.set_wall"):
        driver.send("rows", [row("a", 1, set="x", **{"in": 5})])


def test_a_processor_that_sets_timers_needs_on_timer():
    class Deaf:
        def on_row(self, key, row, state, timers):
            timers.set("x", after=1)

    with TestDriver(app_of(Deaf)) as driver, pytest.raises(mp.errors.StepFailed, match="no method on_timer"):
        driver.send("rows", [row("a", 1)])


@pytest.mark.parametrize("processor", [None, 5, int, object()])
def test_what_is_no_processor_is_refused(processor):
    with pytest.raises(mp.errors.InvalidUse, match=r"process\('alarm'\): expected an object with a method on_row"):
        app_of(processor)


def test_a_factory_that_makes_no_processor_is_refused():
    with TestDriver(app_of(lambda: 5)) as driver, pytest.raises(mp.errors.InvalidUse, match="to have a method on_row"):
        driver.send("rows", [row("a", 1)])


# --- exactly once ---


@pytest.mark.parametrize("lose_replicas", [False, True], ids=["replicas kept", "replicas lost"])
@pytest.mark.parametrize(("at", "when"), EVERYWHERE)
def test_timers_fire_exactly_once_wherever_the_batch_dies(at, when, lose_replicas):
    with TestDriver(app_of(partitions=2)) as driver:
        driver.send("rows", [row(k, 1, set="x", **{"in": 5 + k}) for k in range(6)])
        driver.send("rows", [row(k, 2, wall="w", **{"in": "10s"}) for k in range(3)])
        driver.crash(at=at, when=when)
        with pytest.raises(Crashed):
            driver.send("rows", [row(9, 8, set="late", **{"for": 3})])
            driver.finish()
            raise Crashed("nothing", "to do")
        driver.restart(lose_replicas=lose_replicas)
        driver.crash(at=at, when=when)
        with pytest.raises(Crashed):
            driver.advance("10s")
            raise Crashed("nothing", "to do")
        driver.restart(lose_replicas=lose_replicas)
        driver.advance("1h")
        driver.send("rows", [row(9, 100)])
        expected = [*((k, "x") for k in range(6)), (9, "late"), *((k, "w") for k in range(3))]
        assert sorted(fired(driver)) == sorted(expected)


def oracle(batches: list[list[tuple[str, int, str, str, int]]]) -> list[tuple[str, str, int]]:
    """What fires, in plain Python: per batch the rows, then all that is due, in the order of time."""
    found: list[tuple[str, str, int]] = []
    timers: dict[tuple[str, str], int] = {}
    watermark = None
    for rows in batches:
        for key, at, what, name, number in rows:
            watermark = at if watermark is None else max(at, watermark)
            if what == "set":
                timers[key, name] = at + number
            elif what == "at":
                timers[key, name] = number
            else:
                timers.pop((key, name), None)
        while watermark is not None and any(at <= watermark for at in timers.values()):
            (key, name), at = min(timers.items(), key=lambda item: item[1])
            del timers[key, name]
            found.append((key, name, at))
            if name == "again":
                timers[key, name] = at + 7
    return found


class Played:
    def on_row(self, key, row, state, timers):
        if row["what"] == "set":
            timers.set(row["name"], after=row["number"])
        elif row["what"] == "at":
            timers.set(row["name"], at=row["number"])
        else:
            timers.cancel(row["name"])

    def on_timer(self, key, timer, state, timers):
        if timer.name == "again":
            timers.set("again", after=7)
        return (key, timer.name, timer.at)


moves = st.tuples(
    st.sampled_from(["a", "b", "c"]),
    st.integers(0, 60),
    st.sampled_from(["set", "set", "at", "cancel"]),
    st.sampled_from(["x", "y", "again"]),
    st.integers(0, 60),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.lists(moves, max_size=5), max_size=6),
    st.integers(1, 3),
    st.lists(st.none() | st.tuples(st.sampled_from(STEPS), st.sampled_from(WHENS), st.booleans()), max_size=6),
)
def test_any_timers_fire_as_a_plain_program_fires_them(batches, partitions, crashes):
    with TestDriver(app_of(Played, partitions=partitions)) as driver:
        for number, batch in enumerate(batches):
            names = ("k", "at", "what", "name", "number")
            sent = [dict(zip(names, move, strict=True)) for move in batch]
            crash = crashes[number] if number < len(crashes) else None
            if crash is None:
                driver.send("rows", sent)
                continue
            driver.crash(*crash[:2])
            with pytest.raises(Crashed):
                driver.send("rows", sent)
                raise Crashed("nothing", "to do")
            driver.restart(lose_replicas=crash[2])
        expected = oracle(batches)
        assert sorted(driver.output("out")) == sorted(expected)
        for key in "abc":  # each key's own in the order of time, whatever partition it is in
            times = [at for k, _, at in expected if k == key]
            assert [at for k, _, at in driver.output("out") if k == key] == times
