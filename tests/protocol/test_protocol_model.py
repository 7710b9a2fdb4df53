"""The commit protocol under a scheduler that can park or kill any actor before any call on storage or sink.

In its short form every schedule with one switch before an effect is run, and some random ones with kills.
`MILLPOND_MODEL_SECONDS` gives each scenario so much time for one turn before any call, then random schedules, then two
turns. `MILLPOND_MODEL_SEED` repeats the random schedules, `MILLPOND_MODEL_REPLAY` one run, as a failure prints it.
"""

from __future__ import annotations

import itertools
import os
import random
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import lmdb
import pytest
from exploring import Explorer
from protocol_world import Options, Scenario, World, play
from scenarios import SCENARIOS
from scheduling import KILL, Policy, Turn, as_text, from_text

import millpond as mp
from millpond.clock import new_id
from millpond.sinks.base import Delivery
from millpond.storage import open_storage

SECONDS = float(os.environ.get("MILLPOND_MODEL_SECONDS", "0"))
GIVEN = os.environ.get("MILLPOND_MODEL_SEED", "") or "1"
SEED = random.SystemRandom().randrange(1, 10**6) if GIVEN == "random" else int(GIVEN)
REPLAY = os.environ.get("MILLPOND_MODEL_REPLAY", "")
RANDOM_RUNS = 6  # in the short form, for each scenario


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory, where there is one: nothing here depends on a disk, and a sync costs nothing."""
    with tempfile.TemporaryDirectory(
        prefix="millpond-model-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None
    ) as f:
        yield Path(f)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=list(SCENARIOS))
def test_no_schedule_loses_or_doubles_an_output_or_breaks_the_state(scenario: Scenario, folder: Path) -> None:
    if REPLAY:
        name, _, schedule = REPLAY.partition(" ")
        if name == scenario.name:
            outcome = play(scenario, Policy(from_text(schedule)), folder / "replay")
            for point in outcome.points:
                print(f"{point.step:5d} {point.actor:15s} {point.call}")
            assert not outcome.violations, str(outcome)
        return
    explorer = Explorer(scenario, folder, SECONDS or float("inf"))
    if SECONDS:
        print(f"\nMILLPOND_MODEL_SEED={SEED}")
        found = explorer.exhaust(1)
        found = explorer.wander(SEED, 1000)
        found = explorer.exhaust(2, before=("effect",))
    else:
        most = scenario.options.most
        found = explorer.exhaust(1, before=("effect",), kills=scenario.name == "takeover", most=most)
        found = explorer.wander(SEED, RANDOM_RUNS)
    print(f"{scenario.name}: {found.runs} schedules")
    assert not found.failures, f"MILLPOND_MODEL_SEED={SEED}\n{found}"


# --- the model itself ---


def first_effect(world: World) -> dict[str, Any]:
    return {"a": world.drives("a", 1), "b": world.drives("b", 1)}


SMALL = Scenario("small", first_effect, Options(rows=2))


def test_a_schedule_gives_the_same_calls_each_time(folder: Path) -> None:
    schedule = (Turn(7, "b"), Turn(20, "a"))
    one = play(SMALL, Policy(schedule), folder / "one")
    other = play(SMALL, Policy(schedule), folder / "other")
    assert [(point.actor, point.call) for point in one.points] == [(point.actor, point.call) for point in other.points]
    assert one.schedule == schedule
    assert from_text(as_text(schedule)) == schedule


def test_threads_that_are_no_actors_change_no_call(folder: Path) -> None:
    """Such as those that an earlier test has left behind."""
    alone = play(SMALL, Policy(), folder / "alone")
    over = threading.Event()

    def write_files(number: int) -> None:
        storage = open_storage(str(folder / "elsewhere"))
        while not over.is_set():
            storage.put(f"{number}", new_id().encode())  # which takes an id for the name of a temporary file, too

    # A thread that has the name of an actor is none.
    threads = [threading.Thread(target=write_files, args=(n,), name=name) for n, name in enumerate("ab")]
    for thread in threads:
        thread.start()
    try:
        beside = play(SMALL, Policy(), folder / "beside")
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert [(point.actor, point.call) for point in beside.points] == [(p.actor, p.call) for p in alone.points]


@pytest.mark.parametrize("failing", [1, 2])
def test_a_replica_that_is_built_in_a_second_attempt_changes_no_call(folder: Path, failing: int) -> None:
    alone = play(SMALL, Policy(), folder / "alone")
    real, calls = lmdb.open, itertools.count(1)

    def open_store(*args: Any, **how: Any) -> Any:
        if next(calls) == failing:
            raise lmdb.MemoryError("mdb_env_open: Cannot allocate memory")
        return real(*args, **how)

    with mock.patch("lmdb.open", open_store):
        again = play(SMALL, Policy(), folder / "again")
    assert next(calls) > failing
    assert [(point.actor, point.call) for point in again.points] == [(p.actor, p.call) for p in alone.points]


def test_an_actor_that_is_killed_makes_no_further_call(folder: Path) -> None:
    outcome = play(SMALL, Policy((Turn(9, KILL),)), folder / "killed")
    assert outcome.ends["a"] == "killed"
    assert max(point.step for point in outcome.points if point.actor == "a") == 9


def test_a_driver_is_fenced_if_a_newer_one_takes_over_while_it_reads_the_register_of_a_sink(folder: Path) -> None:
    scenario = SCENARIOS["takeover"]
    points = play(scenario, Policy(), folder / "alone").points
    reads = [point.step for point in points if point.actor == "a" and point.call.startswith("open /_millpond/")]
    assert len(reads) > 2
    for step in reads:
        outcome = play(scenario, Policy((Turn(step, "b"),)), folder / f"{step}")
        assert outcome.ends["a"].startswith("Fenced") and outcome.ends["b"] == "done", str(outcome)
        assert not outcome.violations, str(outcome)


def test_a_sink_that_delivers_twice_is_found(folder: Path) -> None:
    real = mp.sinks.files(folder).deliver.__func__  # type: ignore[attr-defined]
    copies = iter(range(10**6))

    def deliver(self: Any, rows: list[Any], delivery: Delivery) -> None:
        real(self, rows, Delivery(delivery.app, f"{next(copies)}", delivery.sink, delivery.batch, delivery.partition))

    with mock.patch("millpond.sinks.files.FileSink.deliver", deliver):
        found = Explorer(SMALL, folder).exhaust(1, before=("effect",))
    assert any("more than once" in violation for violation in found.failures[0].violations)


def test_a_driver_that_does_not_look_whether_it_is_fenced_is_found(folder: Path) -> None:
    def put_new(self: Any, path: str, data: bytes) -> bool:
        self.put(path, data)
        return True

    with mock.patch("millpond.storage.in_memory.MemoryStorage.put_new", put_new):
        found = Explorer(SCENARIOS["takeover"], folder).exhaust(1, before=("effect",))
    assert found.failures
