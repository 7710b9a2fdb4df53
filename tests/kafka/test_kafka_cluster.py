"""Brokers of a cluster are killed or restarted under load: no error, nothing lost, nothing doubled."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kafka_bench import KafkaBench
from kafka_broker import Cluster
from processes import eventually

ROUNDS = int(os.environ.get("MILLPOND_KAFKA_KILL_ROUNDS", "1"))
TRANSACTIONS = "__transaction_state"


@pytest.fixture
def bench(cluster: Cluster, topic: str, tmp_path: Path) -> KafkaBench:
    return KafkaBench(cluster, topic, tmp_path, sink={"register": f"{topic}-register"})


@contextmanager
def running(bench: KafkaBench) -> Iterator[None]:
    """Runs the app in a thread, under load. At the end all outputs are there, and there was no error."""
    stop, errors = threading.Event(), []

    def run() -> None:
        try:
            driver = bench.app.start()
            while not stop.is_set():
                if not bench.app.batch(driver):
                    time.sleep(0.05)
            driver.release()
            driver.close()
        except BaseException as error:
            errors.append(error)

    def load() -> None:
        while not full.wait(0.1):
            bench.send(5)

    full = threading.Event()
    threads = [threading.Thread(target=run), threading.Thread(target=load)]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: errors or bench.outputs(), "the first output", 180)
        yield
    finally:
        full.set()
        threads[1].join()
        # What is in the topic counts: a producer that gets no answer from a killed broker sends its rows again.
        bench.rows[:] = [message.json for message in bench.brokers.read_committed(bench.app.source)]
        eventually(lambda: errors or len(bench.outputs()) >= len(bench.rows), "all outputs", 300)
        stop.set()
        threads[0].join()
        assert not errors, errors
    bench.check()


def heal(cluster: Cluster, bench: KafkaBench) -> None:
    cluster.start()
    for name in (bench.app.target, bench.app.source, f"{bench.app.target[:-4]}-register", TRANSACTIONS):
        cluster.wait_for_replicas(name)


@pytest.mark.timeout(600 if ROUNDS == 1 else 0)
def test_brokers_are_killed_in_turn_and_so_is_the_coordinator(cluster: Cluster, bench: KafkaBench) -> None:
    with running(bench):
        for number in [*(1, 2, 3) * ROUNDS, 0]:
            victim = number or cluster.leader(TRANSACTIONS)
            cluster.broker(victim).kill()
            time.sleep(5.0)  # until others are the leaders of its partitions
            heal(cluster, bench)


@pytest.mark.timeout(600 if ROUNDS == 1 else 0)
def test_a_rolling_restart_is_not_noticed(cluster: Cluster, bench: KafkaBench) -> None:
    with running(bench):
        for number in (1, 2, 3):
            cluster.broker(number).restart()
            heal(cluster, bench)
