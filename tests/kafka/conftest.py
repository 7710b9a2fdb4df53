"""Real brokers for the tests of this folder.

A broker serves all tests of a process, so each test uses topics of its own: the fixture `topic` is a name that is free.
A test that kills, pauses or restarts a broker starts one for itself, or takes `cluster` and leaves it complete.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count

import pytest
from confluent_kafka import KafkaException
from kafka_broker import Broker, Cluster, Unavailable, broker_jars, java, make_class_archive
from pyspark.sql import SparkSession
from secured_kafka import SecuredBroker, secured_broker
from spark_sessions import spark_session

NUMBERS = count(1)


@pytest.fixture(scope="session")
def kafka_jars() -> None:
    """Skips where there is no Java, no Maven or no network to download the jars."""
    try:
        java(), broker_jars()
    except Unavailable as error:
        pytest.skip(f"no Kafka broker: {error}")
    make_class_archive()


@pytest.fixture(scope="session")
def broker(kafka_jars: None) -> Iterator[Broker]:
    with Broker() as one:
        yield one


@pytest.fixture(scope="module")
def cluster(kafka_jars: None) -> Iterator[Cluster]:
    # The brokers give up on each other after some seconds, so that tests need not wait for elections. On a machine
    # that is busy when they start, they may never agree on a controller: then they start again.
    three = start_cluster(attempts=3)
    with three:
        yield three


def start_cluster(attempts: int) -> Cluster:
    """Start three brokers that have created a topic together."""
    try:
        three = Cluster()
    except AssertionError:
        if attempts == 1:
            raise
        return start_cluster(attempts - 1)
    try:
        three.create_topic("first", 6, timeout=60)
    except (AssertionError, KafkaException, TimeoutError):
        three.destroy()
        if attempts == 1:
            raise
        return start_cluster(attempts - 1)
    return three


@pytest.fixture(scope="module")
def secured(kafka_jars: None) -> Iterator[SecuredBroker]:
    """A broker with logins, certificates and rules."""
    with secured_broker() as one:
        yield one


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with spark_session() as session:
        yield session


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses; the topic is not created."""
    number = next(NUMBERS)
    return re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name)[:80].strip("-") + f"-{number}"
