"""`map_async`: rows that wait side by side, and come out in their order."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import Any

import pytest
from outside import Calls, Outside
from small_programs import PARTITIONS, nth, piped

import millpond as mp
from millpond.errors import InvalidUse, StepFailed
from millpond.testing import Crashed, TestDriver


class Meeting(Outside):
    """Nobody goes on before so many are there at the same time."""

    def __init__(self, size: int, patience: float = 10) -> None:
        self.together, self.patience = threading.Barrier(size), patience

    def __call__(self, row: Any) -> Any:
        self.together.wait(self.patience)
        return row


def test_a_plain_function_runs_over_as_many_rows_at_a_time_as_there_are_workers():
    assert piped(lambda s: s.map_async(Meeting(4), workers=4), list(range(8))) == list(range(8))


def test_one_worker_takes_one_row_after_the_other():
    with pytest.raises(StepFailed, match="BrokenBarrierError"):
        piped(lambda s: s.map_async(Meeting(2, patience=0.05), workers=1), [1, 2])


def test_a_coroutine_function_runs_over_as_many_rows_at_a_time_as_there_are_workers():
    world: Any = Outside()
    world.here = world.most = 0

    async def seen(row):
        world.here += 1
        world.most = max(world.most, world.here)
        await asyncio.sleep(0.01)
        world.here -= 1
        return row

    assert piped(lambda s: s.map_async(seen, workers=3), list(range(7))) == list(range(7))
    assert world.most == 3


def test_rows_come_out_in_the_order_in_which_they_came_whoever_is_done_first():
    async def slow_first(n):
        await asyncio.sleep(0.03 if n == 0 else 0)
        return n * 10

    gates = Calls([threading.Event(), threading.Event()])

    def second_first(n):
        if n == 0:
            assert gates[1].wait(10)
        gates[n].set()
        return n * 10

    assert piped(lambda s: s.map_async(slow_first), [0, 1, 2]) == [0, 10, 20]
    assert piped(lambda s: s.map_async(second_first), [0, 1]) == [0, 10]


async def doubled(row, by=2):
    return row * by


class Doubler:
    async def __call__(self, row):
        return row * 2


@pytest.mark.parametrize(
    "f", [doubled, functools.partial(doubled, by=2), lambda row: doubled(row), Doubler(), lambda row: row * 2]
)
def test_whatever_gives_a_result_or_a_coroutine_will_do(f):
    assert piped(lambda s: s.map_async(f), [1, 2, 3]) == [2, 4, 6]


def test_it_runs_where_an_event_loop_is_at_work_already():
    async def notebook():
        return piped(lambda s: s.map_async(doubled), [1, 2])

    assert asyncio.run(notebook()) == [2, 4]


def test_none_is_a_row_as_any_other_as_it_is_with_map():
    assert (
        piped(lambda s: s.map_async(lambda row: None), [1]) == piped(lambda s: s.map(lambda row: None), [1]) == [None]
    )


@PARTITIONS
def test_keyed_rows_keep_their_key_and_their_time(partitions):
    def build(s):
        keyed = s.key_by("k").map_async(lambda row: {**row, "v": row["v"] + 1})
        return keyed.apply("time", lambda row, state: [state.key, state.time, row["v"]])

    rows = [{"k": n % 2, "v": n, "at": 10 + n} for n in range(4)]
    assert piped(build, rows, timestamp="at", partitions=partitions) == [[0, 10, 1], [1, 11, 2], [0, 12, 3], [1, 13, 4]]


def test_other_readers_do_not_see_what_the_function_changes():
    app = mp.App("apart")
    rows = app.stream("rows", mp.sources.rows([]))

    def change(row):
        row["n"] += 1
        return row

    rows.map_async(change).to("changed", mp.sinks.memory())
    rows.to("as it was", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [{"n": 1}])
        assert (driver.output("changed"), driver.output("as it was")) == ([{"n": 2}], [{"n": 1}])


# --- rows that fail ---


def even_only(n):
    if n % 2:
        raise ValueError(f"{n} is odd")
    return n


async def even_only_async(n):
    return even_only(n)


BOTH = pytest.mark.parametrize("f", [even_only, even_only_async], ids=["plain", "coroutine"])


@BOTH
def test_a_row_that_fails_stops_the_app_and_says_which_it_was(f):
    with pytest.raises(StepFailed, match="1 is odd") as failed:
        piped(lambda s: s.map_async(f), [0, 1, 2, 3])
    assert (failed.value.step, failed.value.row) == ("map_async", 1)


@BOTH
def test_no_more_rows_are_begun_once_one_has_stopped_the_app(f):
    begun = Calls()

    def noted(n):
        begun.append(n)
        return f(n)

    with pytest.raises(StepFailed):
        piped(lambda s: s.map_async(noted, workers=1), [0, 1, 2, 3])
    assert begun == [0, 1]


@BOTH
def test_rows_that_fail_are_skipped_where_that_is_said(f):
    assert piped(lambda s: s.map_async(f, on_error="skip"), [0, 1, 2, 3, 4]) == [0, 2, 4]
    assert piped(lambda s: s.map_async(f), [0, 1, 2, 3, 4], on_error="skip") == [0, 2, 4], "as the stream says"


@BOTH
def test_what_map_async_is_told_about_errors_holds_for_it_alone(f):
    def build(s):
        return s.map_async(f, on_error="skip").map(lambda n: 1 // n)

    with pytest.raises(StepFailed, match="ZeroDivisionError"):
        piped(build, [0, 1])


@BOTH
def test_rows_that_fail_become_dead_letters_as_they_were(f):
    app = mp.App("letters")

    def spoil_and_fail(row):
        row["spoilt"] = True
        return f(row["n"])

    rows = app.stream("rows", mp.sources.rows([])).key_by("n").map_async(spoil_and_fail, on_error="dead-letter")
    rows.to("out", mp.sinks.memory())
    app.dead_letters.to("dead", mp.sinks.memory())
    with TestDriver(app) as driver:
        driver.send("rows", [{"n": n} for n in range(4)])
        assert driver.output("out") == [0, 2]
        letters = driver.output("dead")
    assert [(x["row"], x["key"], x["step"], x["error"]) for x in letters] == [
        ({"n": 1}, 1, "map_async", "ValueError: 1 is odd"),
        ({"n": 3}, 3, "map_async", "ValueError: 3 is odd"),
    ]


class Flaky(Outside):
    """Fails the first `times` times for every row; changes the row before it does."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.tries: dict[int, int] = {}

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        tries = self.tries[row["n"]] = self.tries.get(row["n"], 0) + 1
        row["seen"] = row.get("seen", 0) + 1
        if tries <= self.times:
            raise TimeoutError("try again")
        return row


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "coroutine"])
@pytest.mark.parametrize("then, held", [("stop", None), ("skip", []), ("dead-letter", [])])
def test_a_row_is_tried_again_as_often_as_retry_says(is_async, then, held):
    def build(flaky):
        async def waiting(row):
            return flaky(row)

        f = waiting if is_async else flaky
        return lambda s: s.map_async(f, on_error=mp.retry(2, "1s", then=then))

    flaky = Flaky(2)
    assert piped(build(flaky), [{"n": 1}, {"n": 2}]) == [{"n": 1, "seen": 1}, {"n": 2, "seen": 1}]
    assert flaky.tries == {1: 3, 2: 3}
    if held is None:
        with pytest.raises(StepFailed, match="try again"):
            piped(build(Flaky(3)), [{"n": 1}])
    else:
        assert piped(build(Flaky(3)), [{"n": 1}]) == held


def test_the_pauses_between_attempts_grow():
    app = mp.App("pauses")
    flaky = Flaky(3)
    app.stream("rows", mp.sources.rows([])).map_async(flaky, on_error=mp.retry(3, "1s")).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        began = driver.clock.now()
        driver.send("rows", [{"n": 1}])
        assert driver.clock.now() - began == 1 + 2 + 4


def test_a_crash_in_a_worker_is_a_crash_of_the_batch():
    app = mp.App("crash")
    crashes = Calls([True])

    def die_once(row):
        if crashes:
            crashes.clear()
            raise Crashed("compute", "during")
        return row

    app.stream("rows", mp.sources.rows([])).map_async(die_once).key_by(k=lambda row: 1).stateful_map(
        "n", nth, initial=0
    ).to("out", mp.sinks.memory())
    with TestDriver(app) as driver:
        with pytest.raises(Crashed):
            driver.send("rows", [1, 2])
        driver.restart()
        assert driver.output("out") == [{"row": 1, "nth": 1}, {"row": 2, "nth": 2}]


@pytest.mark.parametrize("workers", [0, -1, 1.5, "8", True])
def test_a_number_of_workers_that_is_none_is_refused(workers):
    with pytest.raises(InvalidUse, match=r"map_async\(workers\): expected a whole number of 1 or more"):
        piped(lambda s: s.map_async(bool, workers=workers), [])


def test_what_is_no_function_or_no_policy_is_refused():
    with pytest.raises(InvalidUse, match="map_async: expected a function, got 3"):
        piped(lambda s: s.map_async(3), [])
    with pytest.raises(InvalidUse, match=r'map_async\(on_error\): expected "stop", "skip"'):
        piped(lambda s: s.map_async(bool, on_error="never"), [])


def test_behind_the_dead_letters_it_cannot_make_new_ones():
    app = mp.App("letters")
    app.stream("rows", mp.sources.rows([]))
    app.dead_letters.map_async(bool, on_error="dead-letter").to("out", mp.sinks.memory())
    with pytest.raises(InvalidUse, match=r"behind app\.dead_letters"):
        mp.lowlevel.program(app)
