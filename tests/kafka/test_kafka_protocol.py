"""Corners of exactly once: deliveries that come late, topics and registers that change under them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from kafka_bench import KafkaBench
from kafka_broker import Broker
from kafka_operations import TIMEOUT, wait_for_all
from local_drivers import run_locally

import millpond as mp
from millpond.errors import Incompatible
from millpond.kafka.outgoing import OutgoingMessages

CLAIM = (5, "a5")


def claimed_sink(broker: Broker, topic: str, **how: Any) -> Any:
    """A sink whose claim is registered, for one partition."""
    sink = mp.sinks.kafka(topic, servers=broker.address, options={"transactional.id": topic}, **how)
    assert isinstance(sink, mp.lowlevel.FencingSink) and isinstance(sink, mp.lowlevel.RegisteredSink)
    registration = mp.lowlevel.Registration("orders", "5e1f", "out", *CLAIM, *CLAIM)
    sink.fence(registration, 1)
    sink.register(registration)
    return sink


def delivery_of(batch: int) -> mp.lowlevel.Delivery:
    return mp.lowlevel.Delivery("orders", "5e1f", "out", batch, 0, f"a{batch}", CLAIM)


def run_in_first_call(action: Callable[[], None]) -> Callable[[Any], str]:
    """A function of the row that does something else first, once."""
    left = [action]

    def name_of(row: Any) -> str:
        if left:
            left.pop()()
        return str(row["n"])

    return name_of


@pytest.mark.parametrize("later", [1, 40])
def test_a_task_that_sleeps_while_another_delivers_its_rows_and_later_ones(
    broker: Broker, topic: str, later: int
) -> None:
    """The register remembers a few deliveries only; the driver may be many batches ahead."""
    broker.create_topic(topic)
    other = claimed_sink(broker, topic)

    def deliver_all() -> None:
        for batch in range(10, 11 + later):
            other.deliver([{"n": batch}], delivery_of(batch))

    late = mp.sinks.kafka(
        topic, servers=broker.address, key=run_in_first_call(deliver_all), options={"transactional.id": topic}
    )
    late.deliver([{"n": 10}], delivery_of(10))
    assert [message.json["n"] for message in broker.read_committed(topic)] == list(range(10, 11 + later))


def test_a_topic_that_is_created_again_while_a_delivery_is_made(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(topic)

    def create_again() -> None:
        broker.delete_topic(topic)
        broker.create_topic(topic)

    keys: list[Callable[[Any], str]] = [str, str, run_in_first_call(create_again), str, str]
    found: list[str] = []
    for i, key in enumerate(keys):
        app = mp.App("numbers", str(tmp_path / "state"), partitions=1)
        sink = mp.sinks.kafka(topic, servers=broker.address, key=key, options={"transactional.id": topic})
        app.stream("rows", mp.sources.rows([{"n": n} for n in range(10 * i + 10)])).to("out", sink)
        try:
            run_locally(app)
            found.append("done")
        except Incompatible as error:
            assert "deleted and created again while the app ran" in str(error)
            found.append("stopped")
    assert found == ["done", "done", "stopped", "done", "done"]
    assert sorted(message.json["n"] for message in broker.read_committed(topic)) == list(range(50))


def test_a_delivery_that_fails_leaves_no_transaction_open(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open transaction would hide what others write behind it for a minute."""
    broker.create_topic(topic)
    sink = claimed_sink(broker, topic)

    def produce_one(messages: OutgoingMessages, producer: Any) -> None:
        producer.produce(topic, b"1")
        producer.flush(TIMEOUT)
        raise RuntimeError("a bug")

    monkeypatch.setattr(OutgoingMessages, "produce", produce_one)
    with pytest.raises(RuntimeError, match="a bug"):
        sink.deliver([{"n": 1}], delivery_of(10))
    broker.send(topic, [{"n": 3}])
    assert [message.json["n"] for message in broker.read_committed(topic)] == [3]


def test_a_register_whose_old_entries_were_removed(broker: Broker, topic: str, tmp_path: Path) -> None:
    register = f"{topic}-register"
    bench = KafkaBench(broker, topic, tmp_path, sink={"register": register})
    bench.send(30)
    bench.app.run()

    def set_policy(policy: str) -> None:
        entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, register, incremental_configs=[entry])
        wait_for_all(broker.admin.incremental_alter_configs([resource], request_timeout=TIMEOUT))

    set_policy("delete")  # a compacted topic refuses to delete records
    for partition, end in broker.end_offsets(register).items():
        broker.delete_records(register, partition, end)
    set_policy("compact")
    bench.send(30)
    with pytest.raises(Incompatible, match=r"knows no driver of app 'sums'.*accept=\['out'\]"):
        bench.app.run()
    bench.app.with_(accept=("out",)).run()
    bench.check()
    bench.send(30)
    bench.app.run()
    bench.check()
