"""Brokers that are down, paused or replaced: the app waits, says so, and goes on by itself."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import processes
import pytest
from kafka_apps import Background, Copying, run_here
from kafka_broker import Broker, Cluster

import millpond as mp

PATIENCE = 10.0  # seconds until an app has stopped: one or two on a quiet machine


def eventually(found: Callable[[], Any], what: str) -> Any:
    return processes.eventually(found, what, 180)


def count_to(n: int, first: int = 0) -> list[dict[str, int]]:
    return [{"n": i} for i in range(first, n)]


def numbers(rows: list[Any]) -> list[int]:
    return sorted(row["n"] for row in rows)


def test_an_app_waits_for_a_broker_and_goes_on_by_itself(
    kafka_jars: None, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="millpond")

    def waits() -> int:
        return caplog.text.count("waiting since")

    with Broker() as broker:
        broker.create_topic(topic)
        broker.send(topic, count_to(10))
        broker.kill()
        app = Copying(tmp_path, mp.sources.kafka(topic, servers=broker.address))

        # Down at the start: a run that is to catch up waits, and ends soon when it is asked to.
        with Background(app.app, until="caught-up") as running:
            eventually(waits, "a line in the log")
            assert re.search(rf"copy: waiting since \d+ s: Kafka at {broker.address}: looking for topic", caplog.text)
            asked = time.monotonic()
            running.stop.set()
            eventually(lambda: not running.is_running, "the end")
            assert time.monotonic() - asked < PATIENCE and running.error is None

        with Background(app.app, until="caught-up") as running:
            eventually(lambda: waits() == 2, "a line in the log")
            broker.start()
            eventually(lambda: not running.is_running, "the end")
            assert running.error is None
        assert numbers(app.rows) == list(range(10))
        assert "it goes on after" in caplog.text

        # In the middle: paused, so that connections stay open, and killed.
        with Background(app.app) as running:
            broker.send(topic, count_to(20, first=10))
            eventually(lambda: len(app.rows) == 20, "rows")
            broker.pause()
            eventually(lambda: waits() == 3, "a line in the log")
            broker.resume()
            broker.send(topic, count_to(30, first=20))
            eventually(lambda: len(app.rows) == 30, "rows after the pause")
            broker.kill()
            eventually(lambda: waits() == 4, "a line in the log")
            broker.start()
            broker.send(topic, count_to(40, first=30))
            eventually(lambda: len(app.rows) == 40, "rows after the kill")
            broker.pause()
            eventually(lambda: waits() == 5, "a line in the log")
            asked = time.monotonic()
            running.stop.set()
            eventually(lambda: not running.is_running, "the end")
            assert time.monotonic() - asked < PATIENCE and running.error is None
            broker.resume()
        assert numbers(app.rows) == list(range(40))


def test_a_broker_that_is_paused_between_plan_and_read_is_waited_for(
    kafka_jars: None, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Broker() as broker:
        broker.create_topic(topic)
        broker.send(topic, count_to(10))
        app = Copying(tmp_path, mp.sources.kafka(topic, servers=broker.address))
        paused = threading.Event()

        def pause(step: str, when: str) -> None:
            if (step, when) == ("compute", "before") and not paused.is_set():
                broker.pause()
                paused.set()

        with Background(app.app, until="caught-up", hook=pause) as running:
            eventually(lambda: "waiting since" in caplog.text, "a line in the log")
            broker.resume()
            eventually(lambda: not running.is_running, "the end")
            assert running.error is None
        assert numbers(app.rows) == list(range(10))


def has_read(app: Copying, running: Background, rows: int) -> bool:
    return running.error is not None or len(app.rows) >= rows


def test_a_change_of_leaders_is_no_error(
    cluster: Cluster, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create_topic(topic, partitions=3)
    cluster.wait_for_replicas(topic)
    app = Copying(tmp_path, mp.sources.kafka(topic, servers=cluster.address))
    with Background(app.app) as running:
        for i in range(2):
            cluster.send(topic, count_to(30 * i + 15, first=30 * i))
            leader = cluster.wait_for_leader(topic, i)
            cluster.broker(leader).kill()
            cluster.wait_for_leader(topic, i, other_than=leader)
            cluster.send(topic, count_to(30 * i + 30, first=30 * i + 15))
            eventually(partial(has_read, app, running, 30 * i + 30), "all rows")
            assert running.error is None
            cluster.start()
            cluster.wait_for_replicas(topic)
    assert numbers(app.rows) == list(range(60))
    run_here(app.app)
    assert len(app.rows) == 60
