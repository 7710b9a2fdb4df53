"""Rows that are read a batch before their turn count as if they were not: once, in order, and not before."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_drivers import Lanes

import millpond as mp
from millpond.clock import ManualClock
from millpond.driver.commit import STEPS, Driver
from millpond.driver.planning import BatchPlan
from millpond.driver.read_ahead import ReadAhead
from millpond.driver.settings import Controls, DriverSettings
from millpond.log.jobs import JobLost
from millpond.messages import StageResults
from millpond.runtimes.local import LocalRuntime
from millpond.storage import Storage, open_storage
from millpond.testing import Crashed

HALF = mp.lowlevel.Limit(rows=4, bytes=1 << 60)  # two rows fill a batch: there is more, as a rule


class Noted(Lanes):
    """Says what is read."""

    def __init__(self, lanes: dict[str, list[Any]], width: int, notes: list[Any]) -> None:
        super().__init__(lanes, width)
        self.notes = notes

    def read(self, split):
        self.notes.append(("read", split.start))
        yield from super().read(split)

    def __deepcopy__(self, memo: Any) -> Noted:
        return self


def app_over(lanes: dict[str, list[Any]], out: dict[str, list[Any]], notes: list[Any], width: int = 2) -> mp.App:
    app = mp.App("ahead", partitions=2)
    rows = app.stream("rows", Noted(lanes, width, notes)).map(lambda n: {"k": n % 3, "n": n})
    sums = rows.key_by("k").stateful_map(
        "sum", lambda k, row, s: ({"n": row["n"], "sum": s + row["n"]}, s + row["n"]), initial=0
    )
    rows.to("before", mp.sinks.function(lambda rows, delivery: out.update({delivery.id: rows})))
    sums.to("after", mp.sinks.function(lambda rows, delivery: out.update({delivery.id: rows})))
    return app


def driver_on(
    app: mp.App, storage: Storage, home: Path | str, hook: Any = None, runtime: type[LocalRuntime] = LocalRuntime
) -> Driver:
    clock = ManualClock()
    made = runtime(storage, clock, ahead=True)
    return Driver.start(
        mp.lowlevel.program(app),
        made,
        storage,
        clock,
        DriverSettings(partitions=app.partitions, home=str(home), threaded=False),
        Controls(hook=hook),
    )


def taken(out: dict[str, list[Any]], sink: str) -> list[int]:
    return sorted(row["n"] for name, rows in out.items() if f"/{sink}/" in name for row in rows)


def sums_of(storage: Storage, app: mp.App) -> dict[int, int]:
    with mp.testing.TestDriver(app, storage=storage) as driver:
        return dict(driver.state("sum").items())


def folded(numbers: list[int]) -> dict[int, int]:
    found: Counter[int] = Counter()
    for n in numbers:
        found[n % 3] += n
    return dict(found)


def test_the_next_batch_is_read_before_this_one_is_committed_and_each_is_read_once(tmp_path):
    notes: list[Any] = []
    out: dict[str, list[Any]] = {}
    numbers = list(range(10))
    storage, app = open_storage("memory://"), app_over({"0": numbers}, out, notes)

    def hook(step: str, when: str) -> None:
        if (step, when) == ("commit", "before"):
            notes.append("commit")

    driver = driver_on(app, storage, tmp_path, hook)
    while driver.batch(HALF):
        pass
    # The first batch does not know yet that it is behind; the second does.
    reads = [("read", 2 * n) for n in range(5)]
    assert notes == [reads[0], "commit", reads[1], reads[2], "commit", reads[3], "commit", reads[4], "commit", "commit"]
    assert taken(out, "before") == taken(out, "after") == numbers
    assert sums_of(storage, app) == folded(numbers)


def test_a_stream_that_keeps_up_reads_nothing_ahead(tmp_path):
    notes: list[Any] = []
    lanes: dict[str, list[Any]] = {"0": []}
    storage, app = open_storage("memory://"), app_over(lanes, {}, notes)
    driver = driver_on(app, storage, tmp_path)
    for n in range(4):
        lanes["0"].append(n)
        assert driver.batch(HALF)
        assert not driver.batch(HALF)
    assert notes == [("read", n) for n in range(4)]


@pytest.mark.parametrize("when", ["before", "during", "after"])
@pytest.mark.parametrize("at", STEPS)
def test_a_crash_anywhere_loses_and_doubles_nothing_of_what_was_read_ahead(tmp_path, at, when):
    out: dict[str, list[Any]] = {}
    numbers = list(range(20))
    storage, app = open_storage("memory://"), app_over({"0": numbers[:10], "1": numbers[10:]}, out, [])
    left = [7]

    def hook(step: str, moment: str) -> None:
        if (step, moment) == (at, when):
            left[0] -= 1
            if left[0] == 0:
                raise Crashed(step, moment)

    try:
        driver = driver_on(app, storage, tmp_path, hook)
        while driver.batch(HALF):
            pass
    except Crashed:
        pass
    driver = driver_on(app, storage, tmp_path)
    while driver.batch(HALF):
        pass
    assert taken(out, "before") == taken(out, "after") == numbers
    assert sums_of(storage, app) == folded(numbers)


class Torn(LocalRuntime):
    """Now and then, some partitions see one attempt of the reading tasks and some another, as Spark can do."""

    calls = 0

    def first_stage(self, program, context, tasks, offers, reading=None):
        one = super().first_stage(program, context, tasks, offers, reading)
        self.calls += 1
        if self.calls % 3:
            return one
        other = super().first_stage(program, context, tasks, offers)
        return StageResults([one.results[0], *other.results[1:]], one.tasks)


class Losing(LocalRuntime):
    """Every other reading is lost: its progress is not known, or nothing can be taken from it."""

    calls = 0

    def read(self, program, context, tasks, *, later=False):
        reading = super().read(program, context, tasks, later=later)
        assert reading is not None
        self.calls += 1
        if self.calls % 2:
            reading.progress = lambda: None  # type: ignore[method-assign]
        if self.calls % 3 == 0:
            reading.tasks = -1
        return reading

    def first_stage(self, program, context, tasks, offers, reading=None):
        if reading is not None and reading.tasks < 0:
            raise JobLost("reading ahead failed")
        return super().first_stage(program, context, tasks, offers, reading)


@pytest.mark.parametrize("runtime", [Torn, Losing])
def test_what_was_read_ahead_and_is_of_no_use_is_read_again(tmp_path, runtime):
    out: dict[str, list[Any]] = {}
    numbers = list(range(30))
    storage, app = open_storage("memory://"), app_over({"0": numbers}, out, [])
    driver = driver_on(app, storage, tmp_path, runtime=runtime)
    while driver.batch(HALF):
        pass
    assert taken(out, "before") == taken(out, "after") == numbers
    assert sums_of(storage, app) == folded(numbers)


def test_what_was_read_for_another_place_is_thrown_away():
    class Reading:
        dropped = False

        def progress(self):
            return []

        def drop(self):
            self.dropped = True

    for batch, positions in ((8, {"rows": {"0": 4}}), (7, {"rows": {"0": 2}})):
        ahead = ReadAhead(mp.lowlevel.program(app_over({}, {}, [])), None)  # type: ignore[arg-type]
        reading = Reading()
        ahead.plan, ahead._for = BatchPlan(0.0, [], [], reading=reading), (7, {"rows": {"0": 4}})
        assert ahead.take(batch, positions) is None
        assert reading.dropped
        assert ahead.take(7, {"rows": {"0": 4}}) is None


def test_a_row_that_the_batch_before_makes_believable_is_believed(tmp_path):
    """Where a time may lie 10 ahead of all before it, whether it does is known when these have come."""
    rows = [{"k": "a", "at": at} for at in (0, 5, 12, 20, 28, 36, 44, 52, 60, 68, 900, 70)]
    app = mp.App("believed", partitions=1)
    stream = app.stream("rows", Lanes({"0": rows}, width=2), timestamp="at", ahead=10, on_error="dead-letter")
    out: list[Any] = []
    stream.key_by("k").stateful_map("seen", lambda k, row, s: (row["at"], s + 1), initial=0).to(
        "out", mp.sinks.function(lambda rows, delivery: out.extend(rows))
    )
    driver = driver_on(app, open_storage("memory://"), tmp_path)
    while driver.batch(HALF):
        pass
    assert out == [row["at"] for row in rows if row["at"] != 900]
    assert driver.last.skipped == {"rows": 1}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_history_with_reading_ahead_ends_like_one_without(data):
    lanes = {str(lane): data.draw(st.lists(st.integers(0, 99), max_size=12), label=f"lane {lane}") for lane in range(2)}
    width = data.draw(st.integers(1, 4), label="width")
    out: dict[str, list[Any]] = {}
    storage, app = open_storage("memory://"), app_over(lanes, out, [], width)
    points = [(step, when) for step in STEPS for when in ("before", "during", "after")]
    with TemporaryDirectory() as home:
        for crash in [*data.draw(st.lists(st.tuples(st.sampled_from(points), st.integers(1, 6)), max_size=3)), None]:
            seen: Counter[Any] = Counter()

            def hook(step: str, when: str, crash: Any = crash, seen: Counter[Any] = seen) -> None:
                seen[step, when] += 1
                if crash is not None and (step, when) == crash[0] and seen[step, when] == crash[1]:
                    raise Crashed(step, when)

            try:
                driver = driver_on(app, storage, home, hook)
                while driver.batch(HALF):
                    pass
            except Crashed:
                continue
    numbers = sorted(n for lane in lanes.values() for n in lane)
    assert taken(out, "before") == taken(out, "after") == numbers
    assert sums_of(storage, app) == folded(numbers)
