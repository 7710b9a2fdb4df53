"""The brokers that the other tests of this folder use do what those tests rely on."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource
from kafka_broker import Broker, Cluster, free_ports, java
from kafka_operations import Operations
from processes import any_alive, eventually
from secured_kafka import ADMIN, MECHANISMS, RESTRICTED, SecuredBroker

SUPPORT = Path(__file__).parents[1] / "support"


def test_a_message_that_was_sent_is_read_with_all_its_parts(broker: Broker, topic: str):
    broker.create_topic(topic, partitions=2)
    sent = broker.send(topic, [{"a": 1}], key="k", partition=1, headers={"h": b"1"}, timestamp=1000)
    [message] = broker.read_committed(topic)
    assert sent == [(1, 0)]
    assert message == (topic, 1, 0, b"k", b'{"a": 1}', [("h", b"1")], 1000)
    assert broker.end_offsets(topic) == {0: 0, 1: 1}


def test_the_broker_of_make_kafka_keeps_old_messages(kafka_jars: None, tmp_path: Path):
    scripts = Path(shutil.copytree(SUPPORT.parents[1] / "scripts", tmp_path / "scripts"))
    [port] = free_ports(1)
    env = {**os.environ, "JAVA_HOME": str(java().parents[1])}
    # The script is replaced by the broker, whose data is below the script's parent folder.
    running = subprocess.Popen([scripts / "kafka", "run", str(port)], env=env, stderr=subprocess.DEVNULL)
    try:
        asked = ConfigResource(ConfigResource.Type.BROKER, "1")

        def retention() -> str | None:
            admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
            with contextlib.suppress(KafkaException, TimeoutError):
                found = admin.describe_configs([asked], request_timeout=5)[asked].result(5)
                return str(found["log.retention.ms"].value)
            return None

        assert eventually(retention, "the broker") == "-1"
    finally:
        running.kill()
        running.wait(60)


def test_messages_of_an_aborted_transaction_are_not_read(broker: Broker, topic: str):
    broker.create_topic(topic)
    broker.send_in_transaction(topic, ["dropped"], abort=True)
    broker.send_in_transaction(topic, ["kept"])
    assert [each.value for each in broker.read_committed(topic)] == [b"kept"]
    assert [each.value for each in broker.read_uncommitted(topic)] == [b"dropped", b"kept"]


def test_topics_can_be_changed_and_asked_about(broker: Broker, topic: str):
    broker.create_topic(topic)
    broker.send(topic, range(5))
    broker.delete_records(topic, 0, before=3)
    assert broker.start_offsets(topic) == {0: 3}
    assert [each.json for each in broker.read_committed(topic)] == [3, 4]
    broker.add_partitions(topic, 3)
    assert broker.end_offsets(topic) == {0: 5, 1: 0, 2: 0}
    assert broker.group_offsets("unknown", topic) == {}
    broker.delete_topic(topic)
    broker.create_topic(topic)
    assert broker.read_committed(topic) == []


def test_the_offsets_that_a_group_has_committed_are_read(broker: Broker, topic: str):
    broker.create_topic(topic, partitions=2)
    consumer = Consumer(broker.settings_with(group_id=topic))
    consumer.commit(offsets=[TopicPartition(topic, 1, 7)], asynchronous=False)
    consumer.close()
    assert broker.group_offsets(topic, topic) == {1: 7}


def test_retention_takes_a_second_or_two(broker: Broker, topic: str):
    broker.create_topic(topic, retention_ms=100, segment_ms=100)
    broker.send(topic, ["old"], timestamp=1000)
    eventually(lambda: broker.start_offsets(topic) == {0: 1}, "retention", 180)


def test_compaction_takes_a_second_or_two(broker: Broker, topic: str):
    broker.create_topic(topic, cleanup_policy="compact", segment_ms=100, min_cleanable_dirty_ratio=0.01)

    def is_compacted() -> bool:
        broker.send(topic, ["newer"], key="k")  # the segment that is written to is never compacted
        return broker.read_committed(topic)[0].offset > 0

    broker.send(topic, ["first"], key="k")
    eventually(is_compacted, "compaction", 180)


def test_a_killed_broker_comes_back_with_its_data(topic: str, kafka_jars: None):
    with Broker() as victim:
        victim.create_topic(topic)
        victim.send(topic, ["kept"])
        victim.send_in_transaction(topic, ["kept, too"])
        address = victim.address
        victim.kill()
        victim.start()
        assert victim.address == address
        assert [each.value for each in victim.read_committed(topic)] == [b"kept", b"kept, too"]


def test_a_paused_broker_does_not_answer_until_it_is_resumed(topic: str, kafka_jars: None):
    with Broker() as paused:
        paused.create_topic(topic)
        paused.pause()
        with pytest.raises(KafkaException):
            paused.leader(topic, timeout=1)
        paused.resume()
        assert paused.send(topic, ["arrives"]) == [(0, 0)]


def test_a_broker_dies_with_the_process_that_started_it(tmp_path: Path, kafka_jars: None):
    program = "from kafka_broker import Broker; import time; print(Broker().pid, flush=True); time.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(SUPPORT), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as starter:
        pid = int(starter.stdout.readline())
        assert any_alive([pid])
        starter.send_signal(signal.SIGKILL)
    try:
        eventually(lambda: not any_alive([pid]), "the end of the broker", 180)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_cluster_survives_the_loss_of_a_leader(cluster: Cluster, topic: str):
    cluster.create_topic(topic)
    cluster.send_in_transaction(topic, ["before"])
    lost = cluster.leader(topic)
    cluster.broker(lost).kill()
    assert cluster.wait_for_leader(topic, other_than=lost) != lost
    cluster.send(topic, ["after"])
    cluster.start()
    cluster.wait_for_replicas(topic)
    assert [each.value for each in cluster.read_committed(topic)] == [b"before", b"after"]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_user_logs_in(secured: SecuredBroker, topic: str, mechanism: str):
    secured.broker.create_topic(topic)
    secured.as_user(secured.sasl_address, secured.sasl(ADMIN, mechanism)).send(topic, ["arrives"])
    assert [each.value for each in secured.broker.read_committed(topic)] == [b"arrives"]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password_is_refused(secured: SecuredBroker, topic: str, mechanism: str):
    secured.broker.create_topic(topic)
    options = secured.sasl(ADMIN, mechanism, password="wrong")
    assert "_AUTHENTICATION" in errors_of(secured.as_user(secured.sasl_address, options))


def test_a_client_needs_a_certificate(secured: SecuredBroker, topic: str):
    secured.broker.create_topic(topic)
    secured.as_user(secured.ssl_address, secured.ssl(ADMIN)).send(topic, ["arrives"])
    assert [each.value for each in secured.broker.read_committed(topic)] == [b"arrives"]
    assert errors_of(secured.as_user(secured.ssl_address, secured.ssl(None))) & {"_SSL", "_TRANSPORT"}


@pytest.mark.parametrize("listener", ["sasl", "ssl"])
def test_a_restricted_user_may_do_what_a_rule_allows(secured: SecuredBroker, topic: str, listener: str):
    secured.broker.create_topic(topic)
    address = secured.sasl_address if listener == "sasl" else secured.ssl_address
    options = secured.sasl(RESTRICTED) if listener == "sasl" else secured.ssl(RESTRICTED)
    restricted = secured.as_user(address, options)
    with pytest.raises(KafkaException) as refused:
        restricted.send(topic, ["refused"])
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    secured.allow(RESTRICTED, topic, "WRITE")
    restricted.send(topic, ["allowed"])
    assert [each.value for each in secured.broker.read_committed(topic)] == [b"allowed"]


def errors_of(user: Operations) -> set[str]:
    """The names of the errors that a client hears of while it tries to connect."""
    heard: set[str] = set()
    client = user.producer(error_cb=lambda error: heard.add(error.name()))

    def hears_of_one() -> bool:
        client.poll(0.1)
        return bool(heard - {"_ALL_BROKERS_DOWN"})

    eventually(hears_of_one, "an error", 180)
    return heard
