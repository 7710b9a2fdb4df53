"""Processes that deliver to Kafka are killed or paused at every call and step: each output is there once."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka_bench import AppProcess, KafkaBench, Point
from kafka_broker import Broker

import millpond as mp

SEEDS = int(os.environ.get("MILLPOND_KAFKA_KILL_ROUNDS", "1"))
SEED = int(os.environ.get("MILLPOND_KILL_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)

STEPS = ("plan", "compute", "commit", "deliver", "acknowledge", "tidy")
CALLS = [
    Point(call="init_transactions"),
    Point(call="init_transactions", when="after"),
    Point(call="begin_transaction", when="after"),
    Point(call="produce", when="after"),
    Point(call="flush", when="after"),
    Point(call="produce", when="after", number=12),
    Point(call="commit_transaction"),
    Point(call="commit_transaction", when="after"),
]

Start = Callable[..., AppProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts drivers in processes of their own; those that are left end with the test."""
    started: list[AppProcess] = []

    def make(*args: object) -> AppProcess:
        started.append(AppProcess(*args))  # type: ignore[arg-type]
        return started[-1]

    yield make
    for one in started:
        one.destroy()


@pytest.fixture
def bench(broker: Broker, topic: str, tmp_path: Path) -> KafkaBench:
    return KafkaBench(broker, topic, tmp_path)


@pytest.mark.parametrize(
    ("point", "skip"),
    [(point, skip) for i, point in enumerate(CALLS) for skip in ((0, 2, 3) if SEEDS > 1 else (i % 2 * 2,))],
    ids=str,
)
def test_kill_9_at_a_call_of_the_client(bench: KafkaBench, start: Start, point: Point, skip: int) -> None:
    """`skip`: how many transactions come before; the first two take the two partitions over."""
    bench.send(60)
    number = point.number + (0 if point.number > 1 else skip)
    assert start(bench.app, Point(point.call, when=point.when, number=number)).result() in ("killed", "done")
    assert start(bench.app).result() == "done"
    bench.check()


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("step", STEPS)
def test_kill_9_of_the_driver_at_a_step(bench: KafkaBench, start: Start, step: str, seed: int) -> None:
    chance = random.Random(f"{SEED} {step} {seed}")
    print(f"\nMILLPOND_KILL_SEED={SEED}")
    bench.send(60)
    for _ in range(3 if SEEDS > 1 else 1):
        when = chance.choice(("before", "after"))
        process = start(bench.app, Point(step=step, when=when, number=chance.randrange(1, 3)))
        assert process.result() == "killed"
        bench.send(chance.randrange(bench.app.max_rows + 1, 90))  # at least two batches: the next point is reached
    assert start(bench.app).result() == "done"
    bench.check()


def test_kill_9_between_two_deliveries_of_a_batch(bench: KafkaBench, start: Start) -> None:
    bench.send(30)
    assert start(bench.app, Point("commit_transaction", when="after", number=3)).result() == "killed"
    assert 0 < len(bench.outputs()) < 30, "one partition's share is there, the other is not"
    assert start(bench.app).result() == "done"
    bench.check()


ASLEEP = Point("commit_transaction", number=3, then="pause")


@pytest.mark.parametrize("timeout", [1500, 60_000])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_driver_that_sleeps_in_a_transaction(
    broker: Broker, topic: str, tmp_path: Path, start: Start, when: str, timeout: int
) -> None:
    """With the short timeout it sleeps until the coordinator has aborted its transaction."""
    bench = KafkaBench(broker, topic, tmp_path, options={"transaction.timeout.ms": timeout})
    bench.send(60)
    asleep = start(bench.app, Point("commit_transaction", when=when, number=3, then="pause"))
    asleep.wait_until_asleep()
    if timeout < 10_000:
        time.sleep(timeout / 1000 + 1)
    began = time.monotonic()
    bench.app.run()
    assert time.monotonic() - began < 50, "it waits for no transaction of the sleeper"
    bench.check()
    asleep.wake()
    assert asleep.result().startswith("Fenced")
    bench.send(20)
    bench.app.run()
    bench.check()


def test_a_sleeper_that_wakes_before_its_successor_goes_on_alone(
    broker: Broker, topic: str, tmp_path: Path, start: Start
) -> None:
    """The coordinator has aborted its transaction; the process notices and repeats it."""
    bench = KafkaBench(broker, topic, tmp_path, options={"transaction.timeout.ms": 1500})
    bench.send(60)
    asleep = start(bench.app, ASLEEP)
    asleep.wait_until_asleep()
    time.sleep(3)
    asleep.wake()
    assert asleep.result() == "done"
    bench.check()


@pytest.mark.parametrize("how", ["program", "admin"])
def test_a_sleeper_on_a_partition_that_a_rescale_removed(
    broker: Broker, topic: str, tmp_path: Path, start: Start, how: str
) -> None:
    bench = KafkaBench(broker, topic, tmp_path, partitions=8)
    bench.send(60)
    asleep = start(bench.app, Point("commit_transaction", number=2, suffix="/5", then="pause"))
    asleep.wait_until_asleep()
    three = bench.app.with_(partitions=3)
    if how == "admin":
        bench.app.build().rescale(3)
    three.run()
    asleep.wake()
    assert asleep.result().startswith("Fenced")
    bench.check(three)
    bench.send(20)
    three.run()
    bench.check(three)


def test_a_sleeper_whose_batch_was_rolled_back(bench: KafkaBench, start: Start) -> None:
    bench.send(30)
    bench.app.run()
    newest = mp.open(bench.app.state, bench.app.name).newest
    assert newest is not None
    bench.send(30)
    asleep = start(bench.app, Point("commit_transaction", number=3, then="pause"))
    asleep.wait_until_asleep()
    bench.app.build().rollback(newest.number)
    asleep.wake()
    assert asleep.result().startswith("Fenced")
    bench.app.run()
    bench.check()


@pytest.mark.parametrize("how", ["program", "admin"])
@pytest.mark.parametrize("partitions", [8, 3])
def test_a_sleeper_of_an_incarnation_that_was_cleared(
    broker: Broker, topic: str, tmp_path: Path, start: Start, how: str, partitions: int
) -> None:
    """Without the program the next driver has to refuse the sleeper, although it has fewer partitions."""
    bench = KafkaBench(broker, topic, tmp_path, partitions=8)
    bench.send(60)
    asleep = start(bench.app, Point("commit_transaction", number=9, then="pause"))  # its first delivery
    asleep.wait_until_asleep()
    if how == "program":
        bench.app.build().clear_state()
    else:
        mp.admin(bench.app.state, bench.app.name).clear()
    fewer = bench.app.with_(partitions=partitions)
    fewer.run()
    asleep.wake()
    assert asleep.result().startswith("Fenced")
    bench.check(fewer)
    bench.send(20)
    fewer.run()
    bench.check(fewer)
