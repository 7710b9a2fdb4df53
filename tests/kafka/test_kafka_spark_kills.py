"""Kafka to Kafka on Spark: kill -9 of the driver and of Python workers loses nothing and doubles nothing."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka_bench import KafkaBench
from kafka_broker import Broker
from processes import Program

import millpond as mp

pytestmark = pytest.mark.slow

SEEDS = int(os.environ.get("MILLPOND_KAFKA_KILL_ROUNDS", "0"))
STEPS = ("plan", "compute", "commit", "deliver", "acknowledge", "tidy")
PROGRAM = Path(__file__).parents[1] / "support" / "kafka_totals.py"


@pytest.fixture
def bench(broker: Broker, topic: str, tmp_path: Path) -> KafkaBench:
    return KafkaBench(broker, topic, tmp_path, name="totals", partitions=4)


@pytest.fixture
def run(bench: KafkaBench, tmp_path: Path) -> Iterator[Callable[..., Program]]:
    started: list[Program] = []

    def start(*how: object) -> Program:
        app, support = bench.app, Path(__file__).parents[1] / "support"
        args = (app.servers, app.source, app.target, app.state, *how)
        root = str(Path(mp.__file__).parents[1])
        env = {"PYTHONPATH": f"{root}{os.pathsep}{support}"}
        started.append(Program(PROGRAM, *args, logs=tmp_path / "logs", env=env))
        return started[-1]

    yield start
    for one in started:
        one.destroy()


@pytest.mark.timeout(0 if SEEDS else 600)
@pytest.mark.parametrize("seed", range(max(1, SEEDS)))
def test_kill_9_of_python_workers_at_every_step(bench: KafkaBench, run: Callable[..., Program], seed: int) -> None:
    bench.send(400)  # ten batches
    output = run("steps", seed).succeed()
    for step in STEPS:
        assert f"processes at {step}" in output
    bench.check()


@pytest.mark.timeout(0 if SEEDS else 600)
@pytest.mark.parametrize("seed", range(max(1, SEEDS)))
def test_kill_9_of_the_driver_at_a_step(bench: KafkaBench, run: Callable[..., Program], seed: int) -> None:
    chance = random.Random(seed)
    print(f"\nseed {seed}")
    for step in STEPS if SEEDS else ("deliver",):
        bench.send(chance.randrange(100, 200))
        killed = run(step, chance.choice(("before", "after")), chance.randrange(1, 3))
        assert killed.wait() < 0, killed.output[-3000:]
    bench.send(50)
    run().succeed()
    bench.check()
