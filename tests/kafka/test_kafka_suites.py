"""The Kafka source and sinks keep the contracts of sources and sinks, against a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from kafka_broker import Broker

import millpond as mp
from millpond.sinks.base import Sink
from millpond.sources.base import Source
from millpond.testing.sink_suite import SinkRows, SinkSuite
from millpond.testing.source_suite import RowList, SourceSuite


class TestKafkaSource(SourceSuite):
    @pytest.fixture
    def make_source(self, broker: Broker, topic: str) -> Callable[[RowList], Source]:
        broker.create_topic(topic)

        def make(rows: RowList) -> Source:
            broker.send(topic, [json.dumps(row) for row in rows])
            return mp.sources.kafka(topic, servers=broker.address)

        return make

    @pytest.fixture
    def add_rows(self, broker: Broker, topic: str) -> Callable[[RowList], object]:
        return lambda rows: broker.send(topic, [json.dumps(row) for row in rows])


class TestKafkaSourceOfTransactions(TestKafkaSource):
    """Half of the offsets hold aborted messages and the markers of transactions. Rows are made by a function."""

    @pytest.fixture
    def make_source(self, broker: Broker, topic: str) -> Callable[[RowList], Source]:
        broker.create_topic(topic)

        def make(rows: RowList) -> Source:
            for i in range(0, len(rows), 25):
                broker.send_in_transaction(topic, [json.dumps({"id": "aborted"})] * 7, abort=True)
                broker.send_in_transaction(topic, [json.dumps(row) for row in rows[i : i + 25]])
            return mp.sources.kafka(topic, servers=broker.address, value=json.loads, start={topic: {0: 0}})

        return make


def held_rows(broker: Broker, topic: str) -> SinkRows:
    """The committed messages, by batch and then in their order."""
    messages = broker.read_committed(topic)
    batches = [int(dict(message.headers)["millpond-batch"] or 0) for message in messages]
    placed = sorted(zip(batches, range(len(messages)), messages, strict=True), key=lambda item: item[:2])
    return [message.json for _, _, message in placed]


class TestExactlyOnceKafkaSink(SinkSuite):
    can_take_back = False

    @pytest.fixture
    def make_sink(self, broker: Broker, topic: str) -> Callable[[], Sink]:
        broker.create_topic(topic)
        # The deliveries of the suite have the same names in every test: each test has a register of its own.
        return lambda: mp.sinks.kafka(
            topic,
            servers=broker.address,
            key="id",
            register=f"register-{hash(topic) % 10**9}",
            options={"transactional.id": topic},
        )

    @pytest.fixture
    def held(self, broker: Broker, topic: str) -> Callable[[Sink], SinkRows]:
        return lambda sink: held_rows(broker, topic)


class TestKafkaSinkAtLeastOnce(SinkSuite):
    counts_once = False

    @pytest.fixture
    def make_sink(self, broker: Broker, topic: str) -> Callable[[], Sink]:
        broker.create_topic(topic)
        return lambda: mp.sinks.kafka(topic, servers=broker.address, key="id", exactly_once=False)

    @pytest.fixture
    def held(self, broker: Broker, topic: str) -> Callable[[Sink], SinkRows]:
        return lambda sink: held_rows(broker, topic)
