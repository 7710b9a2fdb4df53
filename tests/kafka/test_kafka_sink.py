"""The Kafka sink: what a message is made of, what a topic holds after trouble, and clear errors."""

from __future__ import annotations

import json
import logging
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kafka_bench import KafkaApp, KafkaBench, fence_in_process
from kafka_broker import Broker
from kafka_operations import Message
from local_drivers import run_locally
from processes import eventually
from secured_kafka import RESTRICTED, SecuredBroker

import millpond as mp
from millpond.errors import Fenced, Incompatible, InvalidUse, StepFailed


@pytest.fixture
def bench(broker: Broker, topic: str, tmp_path: Path) -> KafkaBench:
    return KafkaBench(broker, topic, tmp_path)


@pytest.fixture
def write(broker: Broker, topic: str, tmp_path: Path) -> Callable[..., list[Message]]:
    """Writes rows through an app to a topic of three partitions, and returns its messages."""

    def run(rows: list[Any], **how: Any) -> list[Message]:
        if how.get("create") is None and topic not in broker.admin.list_topics(timeout=30).topics:
            broker.create_topic(topic, 3)
        app = mp.App("writing", str(tmp_path / "state"), partitions=1)
        target = how.pop("topic", topic)
        options = {"transactional.id": topic, **how.pop("options", {})}
        sink = mp.sinks.kafka(target, servers=broker.address, options=options, **how)
        app.stream("rows", mp.sources.rows(rows)).to("out", sink)
        run_locally(app)
        return broker.read_committed(topic)

    return run


def sender_header(name: str, row: Any) -> dict[str, str]:
    return {"from": name}


# --- what a message is made of ---


def test_keys_go_to_the_partitions_that_java_chooses(write: Callable[..., list[Message]]) -> None:
    # murmur2 of Java's producer, as its own tests list it; the partition is the positive hash modulo 3
    hashes = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536}
    hashes |= {"a-little-bit-longer-string": -1486304829, "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971}
    hashes |= {"abc": 479470107}
    found = {
        (message.key or b"").decode(): message.partition for message in write([{"id": key} for key in hashes], key="id")
    }
    assert found == {key: (value & 0x7FFFFFFF) % 3 for key, value in hashes.items()}


def test_every_part_of_a_message_can_be_chosen(write: Callable[..., list[Message]]) -> None:
    row = {"id": 7, "who": "ann", "where": 2, "at": datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)}
    [message] = write(
        [row],
        key=lambda row: (row["who"], row["id"]),
        value=lambda row: f"{row['who']}!".encode(),
        headers={"who": "who", "double": lambda row: row["id"] * 2, "none": lambda row: None},
        partition="where",
        timestamp="at",
    )
    assert (message.partition, message.key, message.value) == (2, b'["ann",7]', b"ann!")
    assert message.timestamp == int(row["at"].timestamp() * 1000)  # type: ignore[attr-defined]
    batch, *own = message.headers
    assert batch[0] == "millpond-batch" and int(batch[1] or 0) >= 1
    assert own == [("who", b"ann"), ("double", b"14"), ("none", None)]


@pytest.mark.parametrize(
    ("value", "row", "expected"),
    [("string", "grün", "grün".encode()), ("bytes", b"\x00\xff", b"\x00\xff"), ("json", {"a": None}, b'{"a":null}')],
)
def test_a_row_is_written_in_its_format(
    write: Callable[..., list[Message]], value: Any, row: Any, expected: bytes
) -> None:
    assert [message.value for message in write([row], value=value)] == [expected]


def test_headers_can_be_a_function_and_a_row_can_be_a_tombstone(write: Callable[..., list[Message]]) -> None:
    rows = [{"id": "a", "gone": False}, {"id": "a", "gone": True}]
    found = write(rows, key="id", headers=lambda row: {"gone": str(row["gone"])}, deleted=lambda row: row["gone"])
    assert [(message.value is None, dict(message.headers)["gone"]) for message in found] == [
        (False, b"False"),
        (True, b"True"),
    ]


@pytest.mark.parametrize("value", ["json", "string", "bytes", lambda row: row])
def test_a_row_of_none_is_a_tombstone(write: Callable[..., list[Message]], value: Any) -> None:
    full = {"json": {"a": None}, "string": "x"}.get(value, b"x") if isinstance(value, str) else b"x"
    rows = [None, full, None]
    found = write(rows, value=value, partition=lambda row: 0)
    assert [message.value is None for message in found] == [True, False, True]


def test_rows_that_are_all_none_are_tombstones(write: Callable[..., list[Message]]) -> None:
    assert [message.value for message in write([None, None], key=lambda row: "a")] == [None, None]


RECORD = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "string"}, {"name": "n", "type": "long"}]}


@pytest.mark.parametrize("value", ["json", mp.formats.avro(RECORD), lambda row: f"{row['n'] + 1}".encode()])
def test_a_row_that_is_deleted_need_not_be_one_that_can_be_encoded(
    write: Callable[..., list[Message]], value: Any
) -> None:
    rows = [{"id": "a", "n": 1}, {"id": "a", "n": None}, {"id": "a", "n": 2}]
    found = write(rows, key="id", value=value, deleted=lambda row: row["n"] is None)
    assert [message.value is None for message in found] == [False, True, False]


def test_a_time_is_written_to_the_millisecond(write: Callable[..., list[Message]]) -> None:
    times = [-5, 1, "2026-01-02T03:04:05.678+01:00", datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)]
    found = write([{"at": time} for time in times], timestamp="at", partition=lambda row: 0)
    assert [message.timestamp for message in found] == [-5, 1, 1767319445678, -1]


@pytest.mark.parametrize("exactly_once", [True, False])
def test_the_time_0_is_not_the_time_of_writing(write: Callable[..., list[Message]], exactly_once: bool) -> None:
    rows = [{"at": 0}, {"at": datetime(1970, 1, 1, tzinfo=UTC)}]
    found = write(rows, timestamp="at", exactly_once=exactly_once)
    assert [message.timestamp for message in found] == [1, 1], "librdkafka takes 0 for no time"


def test_a_topic_is_created_as_it_is_asked_for(write: Callable[..., list[Message]], broker: Broker, topic: str) -> None:
    from confluent_kafka.admin import ConfigResource

    assert len(write([{"id": "a"}], key="id", create={"partitions": 5, "cleanup.policy": "compact"})) == 1
    assert len(broker.partitions(topic)) == 5
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    [future] = broker.admin.describe_configs([resource]).values()
    assert future.result()["cleanup.policy"].value == "compact"


def test_each_row_can_name_its_topic(broker: Broker, topic: str, write: Callable[..., list[Message]]) -> None:
    for name in (f"{topic}-a", f"{topic}-b"):
        broker.create_topic(name)
    write([{"n": i} for i in range(6)], topic=lambda row, topic=topic: f"{topic}-{'ab'[row['n'] % 2]}")
    found = {name: [m.json["n"] for m in broker.read_committed(f"{topic}-{name}")] for name in "ab"}
    assert found == {"a": [0, 2, 4], "b": [1, 3, 5]}


def test_two_sinks_write_to_one_topic(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(topic)
    app = mp.App("writing", str(tmp_path / "state"), partitions=2)
    rows = app.stream("rows", mp.sources.rows([{"n": i} for i in range(10)]))
    for name in ("one", "other"):
        sink = mp.sinks.kafka(topic, servers=broker.address, headers=partial(sender_header, name))
        rows.to(name, sink)
    run_locally(app)
    found = [(dict(m.headers)["from"], m.json["n"]) for m in broker.read_committed(topic)]
    assert sorted(found) == sorted((name, n) for name in (b"one", b"other") for n in range(10))


def test_names_that_look_alike_when_they_are_joined_do_not_fence_each_other(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    broker.create_topic(topic)
    apps = [("a-b", "c"), ("a", "b-c"), ("a/b", "c"), ("a", "b/c")]
    drivers = []
    from local_drivers import start_driver

    for number, (name, sink) in enumerate(apps):
        app = mp.App(name, str(tmp_path / str(number)), partitions=1)
        out = mp.sinks.kafka(topic, servers=broker.address, options={"transactional.id": topic})
        app.stream("rows", mp.sources.rows([{"n": number}])).to(sink, out)
        drivers.append(start_driver(app))
    from millpond.kafka.transactions import writers

    before = writers.takeovers
    for driver in drivers:
        driver.batch(mp.lowlevel.Limit(100, 1 << 60))
        driver.close()
    assert sorted(m.json["n"] for m in broker.read_committed(topic)) == [0, 1, 2, 3]
    assert writers.takeovers == before


# --- clear errors ---


def within(seconds: float, work: Callable[[], object], kind: type[Exception], text: str) -> None:
    began = time.monotonic()
    with pytest.raises(kind, match=text):
        work()
    assert time.monotonic() - began < seconds


@pytest.mark.parametrize("make", [mp.sources.kafka, mp.sinks.kafka, partial(mp.sinks.kafka, exactly_once=False)])
def test_a_program_that_needs_the_package_says_so_when_it_is_built(
    monkeypatch: pytest.MonkeyPatch, make: Callable[..., object]
) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(InvalidUse, match=r"s\.kafka: .*confluent-kafka.* pip install 'millpond\[kafka\]'"):
        make("orders", servers="localhost:9092")


def test_a_row_that_is_too_large_is_one_error(write: Callable[..., list[Message]], broker: Broker, topic: str) -> None:
    broker.create_topic(topic, max_message_bytes=2000)
    rows = [{"id": str(i), "text": "x" * (5000 if i == 7 else 100)} for i in range(100)]
    within(30, lambda: write(rows, key="id"), InvalidUse, r"message of 5\d\d\d bytes to topic .* key b'7'")
    assert broker.read_committed(topic) == []


@pytest.mark.parametrize("exactly_once", [True, False])
def test_a_row_that_is_too_large_for_the_producer_is_one_error(
    write: Callable[..., list[Message]], exactly_once: bool
) -> None:
    rows = [{"id": "a"}, {"id": "b", "text": "x" * 5000}]
    how: dict[str, Any] = {"exactly_once": exactly_once, "options": {"message.max.bytes": 2000}}
    within(30, lambda: write(rows, key="id", **how), InvalidUse, r"sink 'out', batch 1.* of 50\d\d bytes .*key b'b'")
    assert len(write(rows, key="id", value=lambda row: b"x", **how)) >= 2


def test_rows_of_which_each_is_small_enough_are_written_to_a_topic_of_small_messages(
    write: Callable[..., list[Message]], broker: Broker, topic: str
) -> None:
    broker.create_topic(topic, max_message_bytes=2000)
    assert len(write([{"id": str(i), "text": "x" * 100} for i in range(100)])) == 100


def row_time(row: dict[str, Any]) -> int | None:
    return 4102444800000 if row["n"] == 0 else None  # 2100


@pytest.mark.parametrize("exactly_once", [True, False])
@pytest.mark.parametrize("behind", ["small", "large"])
@pytest.mark.parametrize(
    ("first", "how", "text"),
    [
        (
            {"n": 0, "text": "x" * 3_000_000},
            {},
            r"of 30000\d\d bytes .*TOO_LARGE.*max.message.bytes.*or run once with value=",
        ),
        ({"n": 0}, {"timestamp": row_time}, r"INVALID_TIMESTAMP.* Check timestamp="),
    ],
    ids=["too large", "too late"],
)
def test_a_message_that_is_refused_before_many_others_is_one_error(
    write: Callable[..., list[Message]],
    broker: Broker,
    topic: str,
    exactly_once: bool,
    behind: str,
    first: Any,
    how: dict[str, Any],
    text: str,
) -> None:
    large = [{"n": i, "text": "y" * 900_000} for i in range(1, 40)] if behind == "large" else []
    small = [{"n": i, "text": "y" * 10} for i in range(1, 200_000)] if behind == "small" else []
    rows = [first, *large, *small]
    within(30, lambda: write(rows, exactly_once=exactly_once, **how), InvalidUse, text)
    if exactly_once:
        assert broker.read_committed(topic) == []


@pytest.mark.parametrize("exactly_once", [True, False])
def test_many_rows_are_written_to_a_topic_whose_messages_are_smaller_than_a_batch(
    write: Callable[..., list[Message]],
    broker: Broker,
    topic: str,
    exactly_once: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker.create_topic(topic, max_message_bytes=50_000)
    rows = [{"n": i, "text": "y" * 40} for i in range(100_000)]
    found = [message.json["n"] for message in write(rows, exactly_once=exactly_once)]
    if exactly_once:
        assert found == list(range(100_000))
    assert found[-100_000:] == list(range(100_000)) and set(found) == set(found[-100_000:])
    assert not [record for record in caplog.records if record.name == "millpond" and record.levelname == "WARNING"]


def test_an_error_between_messages_leaves_no_open_transaction(
    write: Callable[..., list[Message]], broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    from millpond.kafka.outgoing import OutgoingMessages

    produce = OutgoingMessages.produce

    def produce_and_fail(messages: OutgoingMessages, producer: Any) -> None:
        produce(messages, producer)
        producer.flush(30)
        raise OverflowError("too much")

    def end(isolation: Any) -> int:
        asked = {TopicPartition(topic, 0): OffsetSpec.latest()}
        [found] = broker.admin.list_offsets(asked, isolation_level=isolation).values()
        return int(found.result(timeout=30).offset)

    monkeypatch.setattr(OutgoingMessages, "produce", produce_and_fail)
    with pytest.raises(StepFailed, match="too much"):
        write([{"n": 1}], partition=lambda row: 0)

    def is_closed() -> bool:  # the broker would end the transaction after 60 s
        return 0 < end(IsolationLevel.READ_UNCOMMITTED) == end(IsolationLevel.READ_COMMITTED)

    eventually(is_closed, "the end of the transaction", 30)


BAD_PARTS: list[tuple[str, Any, str]] = [
    ("key", "buyer", r"expected field 'buyer' in every row: the row has no field 'buyer'; it has: 'id'"),
    ("key", lambda row: object(), r"expected text, bytes, or what can be JSON, got <object .* \(object\)"),
    ("key", lambda row: "\ud800", r"expected text that UTF-8 can encode"),
    ("headers", {"from": "buyer"}, r"expected field 'buyer' in every row: .* it has: 'id'"),
    ("headers", lambda row: None, r"expected the function to return a dict, got None"),
    ("headers", lambda row: [("a", "b")], r"expected the function to return a dict, got \[\("),
    ("headers", lambda row: {1: "a"}, r"expected names that are text.*, got 1"),
    ("headers", lambda row: {"\ud800": "a"}, r"expected names that are text.*, got '\\ud800'"),
    ("headers", lambda row: {"millpond-batch": "77"}, r"expected names .*, got 'millpond-batch'"),
    ("headers", lambda row: {"a": object()}, r"expected text, bytes, or what can be JSON"),
    ("partition", lambda row: 2**31, r"expected the number of a partition.*, got 2147483648"),
    ("partition", lambda row: -1, r"expected the number of a partition.*, got -1"),
    ("timestamp", lambda row: "junk", r"expected a datetime with a time zone.*, got 'junk'"),
    ("timestamp", lambda row: "2026-01-01", r"expected a datetime with a time zone.*, got '2026-01-01'"),
    ("timestamp", lambda row: 2**70, r"expected a datetime with a time zone.*, got 1180591620717411303424"),
    ("topic", lambda row: "my topic", r"expected the function to return a name .*, got 'my topic'"),
]


@pytest.mark.parametrize(
    ("part", "how", "text"), BAD_PARTS, ids=[f"{part}-{i}" for i, (part, *_) in enumerate(BAD_PARTS)]
)
def test_a_part_that_no_message_can_have_is_one_error(
    broker: Broker, topic: str, part: str, how: Any, text: str
) -> None:
    sink = mp.sinks.kafka(**{"topic": topic, "servers": broker.address, part: how})
    place = "" if part == "topic" else f", topic '{topic}'"
    with pytest.raises(InvalidUse) as error:
        sink.deliver([{"id": 1}], mp.lowlevel.Delivery("orders", "5e1f", "out", 7, 0, "a7"))
    assert str(error.value).startswith(f"sink 'out', batch 7, partition 0{place}: sinks.kafka({part}=): ")
    assert re.search(text, str(error.value))
    assert str(error.value).endswith(f"The outputs are committed: correct {part}=, and the next run delivers them.")


def test_what_a_function_raises_is_not_taken_for_a_missing_field(write: Callable[..., list[Message]]) -> None:
    with pytest.raises(StepFailed, match="'out', batch 1: a function raised KeyError: 'buyer'"):
        write([{"id": 1}], key=lambda row: row["buyer"])


def test_a_corrected_key_delivers_what_is_committed(write: Callable[..., list[Message]]) -> None:
    rows = [{"id": "a"}]
    with pytest.raises(InvalidUse, match="the next run delivers them"):
        write(rows, key="buyer")
    assert [message.key for message in write(rows, key="id")] == [b"a"]


@pytest.mark.parametrize(
    ("value", "row", "text"),
    [
        ("json", {"x": {(1, 2): 3}}, "cannot be written as JSON"),
        ("string", {"x": 1}, "expected str, got"),
        (mp.formats.avro(RECORD), {"id": 1, "n": 1}, "expected string"),
        (lambda row: "text", {"x": 1}, "expected <lambda> to return bytes"),
    ],
    ids=["json", "string", "avro", "function"],
)
def test_an_output_that_does_not_fit_its_format_is_delivered_by_a_function(
    write: Callable[..., list[Message]], topic: str, value: Any, row: Any, text: str
) -> None:
    with pytest.raises(InvalidUse, match=text) as error:
        write([row], value=value)
    assert str(error.value).startswith(f"sink 'out', batch 1, partition 0, topic '{topic}': sinks.kafka(value=): ")
    assert "are not computed again" in str(error.value) and "a run with value=<a function" in str(error.value)
    assert [message.value for message in write([row], value=lambda row: repr(row).encode())] == [repr(row).encode()]
    assert len(write([row], value=value)) == 1, "nothing is left to deliver"


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"headers": {"millpond-batch": "id"}}, r"\(headers\): expected names .*, got 'millpond-batch'"),
        ({"headers": {"a": 7}}, r"\(headers\): expected a field or a function of the row for 'a', got 7"),
        ({"deleted": "gone"}, r"\(deleted\): expected a function of the row, got 'gone'"),
        ({"topic": "."}, r"\(topic\): expected a name"),
    ],
)
def test_what_can_be_seen_to_be_wrong_is_refused_when_the_sink_is_made(how: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidUse, match=text):
        mp.sinks.kafka(**{"topic": "orders", "servers": "localhost:9092", **how})


@pytest.mark.parametrize("exactly_once", [True, False])
def test_a_message_that_the_topic_never_takes_is_one_error(
    write: Callable[..., list[Message]], broker: Broker, topic: str, exactly_once: bool
) -> None:
    broker.create_topic(topic, 2, cleanup_policy="compact")
    within(30, lambda: write([{"id": 1}], exactly_once=exactly_once), InvalidUse, "without a key: give key=")


def test_a_partition_that_the_topic_does_not_have_is_one_error(write: Callable[..., list[Message]]) -> None:
    within(30, lambda: write([{"id": 7}], partition="id"), InvalidUse, "partition that partition= returns")


def test_an_unknown_topic_is_one_error(write: Callable[..., list[Message]]) -> None:
    within(30, lambda: write([{"id": 1}], topic="nowhere-at-all"), InvalidUse, "no topic 'nowhere-at-all'.*create=")


@pytest.mark.parametrize("create", [{"partition": 3}, {"replication": 3}, {"cleanup.policy": "never"}])
def test_a_topic_that_cannot_be_created_as_asked_for_is_one_error(
    write: Callable[..., list[Message]], topic: str, create: dict[str, Any]
) -> None:
    within(30, lambda: write([{"id": 1}], create=create), InvalidUse, "creating topic .* Check create=")


def test_a_register_that_is_not_compacted_is_refused(
    write: Callable[..., list[Message]], broker: Broker, topic: str
) -> None:
    broker.create_topic(f"{topic}-register", cleanup_policy="delete")
    within(
        30, lambda: write([{"id": 1}], register=f"{topic}-register"), InvalidUse, "cleanup.policy=compact, got delete"
    )


@pytest.mark.parametrize("missing", ["topic", "transactional id", "nothing"])
def test_a_refused_authorization_is_one_error(secured: SecuredBroker, topic: str, tmp_path: Path, missing: str) -> None:
    secured.broker.create_topic(topic)
    rules = {
        "topic": (topic, ("WRITE", "DESCRIBE"), "TOPIC"),
        "transactional id": (f"{topic}/writing/out/0", ("WRITE", "DESCRIBE"), "TRANSACTIONAL_ID"),
    }
    for name, (resource, operations, kind) in rules.items():
        allowed = operations if name != missing else ("DESCRIBE",)
        secured.allow(RESTRICTED, resource, *allowed, kind=kind)
    register = f"{topic}-register"
    secured.broker.create_topic(register, cleanup_policy="compact")
    secured.allow(RESTRICTED, register, "READ", "WRITE", "DESCRIBE")
    secured.allow(RESTRICTED, "millpond", "DESCRIBE", kind="GROUP")
    app = mp.App("writing", str(tmp_path / "state"), partitions=1)
    options = {"transactional.id": topic, **secured.sasl(RESTRICTED)}
    sink = mp.sinks.kafka(topic, servers=secured.sasl_address, register=register, options=options)
    app.stream("rows", mp.sources.rows([{"n": 1}])).to("out", sink)
    if missing == "nothing":
        run_locally(app)
        assert len(secured.broker.read_committed(topic)) == 1
        return
    within(30, lambda: run_locally(app), InvalidUse, "(?i)authoriz.*permissions")
    assert secured.broker.read_committed(topic) == []


def test_a_broker_that_is_down_is_waited_for_and_named_once(
    topic: str, tmp_path: Path, kafka_jars: None, caplog: pytest.LogCaptureFixture
) -> None:
    with Broker() as own:
        bench = KafkaBench(own, topic, tmp_path)
        app = bench.app.build()
        bench.send(30)
        driver = bench.app.start()
        bench.app.batch(driver)
        bench.send(30)
        caplog.set_level(logging.WARNING, "millpond")

        def stop_at_delivery(step: str, when: str) -> None:
            if (step, when) == ("deliver", "before") and not down.is_set():
                down.set()
                own.kill()
                threading.Timer(8.0, own.start).start()

        down = threading.Event()
        driver.release()
        driver.close()
        driver = bench.app.start(stop_at_delivery)
        while bench.app.batch(driver):
            pass
        driver.release()
        driver.close()
        bench.check()
        assert down.is_set()
        warnings = [record.getMessage() for record in caplog.records if "is asked again" in record.getMessage()]
        assert len(warnings) == 1 and "Kafka at" in warnings[0] and own.address in warnings[0]
        assert app.name == "sums"


# --- what a topic holds after trouble ---


def test_a_topic_that_was_created_again_gets_its_messages_again(bench: KafkaBench) -> None:
    for _ in range(3):
        bench.send(30)
        bench.app.run()
    bench.brokers.delete_topic(bench.app.target)
    bench.brokers.create_topic(bench.app.target, 3)
    bench.app.run()
    bench.check()
    bench.send(30)
    bench.app.run()
    bench.check()


def test_a_driver_that_dies_while_it_fills_a_topic_again_is_followed_by_one_that_goes_on(bench: KafkaBench) -> None:
    from kafka_bench import AppProcess, Point

    for _ in range(3):
        bench.send(30)
        bench.app.run()
    bench.brokers.delete_topic(bench.app.target)
    bench.brokers.create_topic(bench.app.target, 3)
    for number in (2, 4):  # before the first delivery, and after some
        assert AppProcess(bench.app, Point("commit_transaction", when="after", number=number)).result() == "killed"
    bench.app.run()
    bench.check()


def test_a_topic_that_was_created_again_and_whose_outputs_are_gone_is_named(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    bench = KafkaBench(broker, topic, tmp_path, keep=2)
    for _ in range(8):
        bench.send(20)
        bench.app.run()
    broker.delete_topic(bench.app.target)
    broker.create_topic(bench.app.target, 3)
    with pytest.raises(Incompatible, match=r"batches \d+ to \d+ are gone.*accept"):
        bench.app.run()
    bench.send(20)
    bench.app.with_(accept=("out",)).run()
    assert len(bench.outputs()) == 20


def test_a_topic_that_is_replaced_under_a_running_driver_is_noticed(bench: KafkaBench) -> None:
    bench.send(30)
    driver = bench.app.start()
    assert bench.app.batch(driver)
    bench.brokers.delete_topic(bench.app.target)
    bench.brokers.create_topic(bench.app.target, 3)
    bench.send(30)
    with pytest.raises(Incompatible, match="deleted and created again while the app ran"):
        bench.app.batch(driver)
    driver.close()
    bench.app.run()
    bench.check()


def test_a_register_that_was_deleted_doubles_nothing(broker: Broker, topic: str, tmp_path: Path) -> None:
    bench = KafkaBench(broker, topic, tmp_path, sink={"register": f"{topic}-register"})
    bench.send(30)
    bench.app.run()
    broker.delete_topic(f"{topic}-register")
    bench.send(30)
    for _ in range(2):
        with pytest.raises(Incompatible, match=r"knows no driver of app 'sums'.*accept=\['out'\]"):
            bench.app.run()
    bench.app.with_(accept=("out",)).run()
    bench.check()
    bench.send(30)
    bench.app.run()
    bench.check()


@pytest.mark.parametrize("changed", ["register", "transactional.id"])
def test_a_register_or_prefix_that_was_changed_is_named(
    broker: Broker, topic: str, tmp_path: Path, changed: str
) -> None:
    bench = KafkaBench(broker, topic, tmp_path)
    bench.send(30)
    bench.app.run()
    if changed == "register":
        other = bench.app.with_(sink={"register": f"{topic}-register"})
    else:
        other = bench.app.with_(options={"transactional.id": f"{topic}-other"})
    with pytest.raises(
        Incompatible, match=r"register= or transactional\.id in options= of the sink was changed: put it back"
    ):
        other.run()
    bench.app.run()
    bench.check()


def test_a_register_that_is_deleted_under_a_running_driver_is_noticed(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    bench = KafkaBench(broker, topic, tmp_path, sink={"register": f"{topic}-register"})
    bench.send(30)
    driver = bench.app.start()
    assert bench.app.batch(driver)
    broker.delete_topic(f"{topic}-register")
    bench.send(30)
    with pytest.raises(Incompatible, match=r"register' at .* was deleted while the app ran"):
        bench.app.batch(driver)
    driver.close()
    bench.app.with_(accept=("out",)).run()
    bench.check()


def test_exactly_once_can_be_switched_off_and_on(bench: KafkaBench) -> None:
    for exactly_once in (True, False, True, True):
        bench.send(30)
        bench.app.with_(exactly_once=exactly_once).run()
        bench.check()


def test_a_sink_that_is_given_another_topic_begins_there_and_can_come_back(bench: KafkaBench, topic: str) -> None:
    bench.send(30)
    bench.app.run()
    other = bench.app.with_(
        target=bench.brokers.create_topic(f"{topic}-other", 3), options={"transactional.id": bench.app.target}
    )
    bench.send(20)
    other.run()
    assert len(bench.outputs()) == 30
    assert len(bench.brokers.read_committed(other.target)) == 20
    bench.send(10)
    bench.app.run()
    assert len(bench.outputs()) == 40
    assert len(bench.brokers.read_committed(other.target)) == 20


@pytest.mark.parametrize("partitions", [(2, 5, 3), (4, 1, 4)])
def test_partitions_can_become_more_and_fewer(bench: KafkaBench, partitions: tuple[int, ...]) -> None:
    for count in partitions:
        bench.send(30)
        bench.app.with_(partitions=count).run()
    bench.check(bench.app.with_(partitions=partitions[-1]))


def test_a_rollback_delivers_what_follows_it_once(bench: KafkaBench) -> None:
    bench.send(30)
    bench.app.run()
    newest = mp.open(bench.app.state, bench.app.name).newest
    assert newest is not None
    bench.send(20)
    bench.app.run()
    bench.app.build().rollback(newest.number)
    bench.app.run()
    counts: dict[int, int] = {}
    for row in bench.outputs():
        counts[row["id"]] = counts.get(row["id"], 0) + 1
    assert counts == {**dict.fromkeys(range(30), 1), **dict.fromkeys(range(30, 50), 2)}, "messages cannot be taken back"


# --- two copies of one state directory ---


def copy_of(app: KafkaApp, name: str) -> KafkaApp:
    state = Path(app.state)
    shutil.copytree(state, state.parent / name / "state")
    return app.with_(state=str(state.parent / name / "state"))


def test_an_older_copy_stops_before_it_changes_anything(bench: KafkaBench) -> None:
    bench.send(30)
    bench.app.run()
    older = copy_of(bench.app, "older")
    bench.send(30)
    bench.app.run()
    for _ in range(2):
        with pytest.raises(Incompatible, match=r"does not contain them.*Then run\(accept=\['out'\]\)") as error:
            older.run()
        assert "take" not in str(error.value).split("Stop the other one.")[1]
    with pytest.raises(InvalidUse, match=r"run\(take_back=\): .*'out'.* cannot be taken back.*accept=\['out'\]"):
        older.with_(take_back=("out",)).run()
    bench.send(10)
    bench.app.run()
    bench.check()


def test_what_another_copy_delivered_stays_if_that_is_accepted(bench: KafkaBench) -> None:
    bench.send(30)
    bench.app.run()
    older = copy_of(bench.app, "older")
    bench.send(30)
    bench.app.run()
    older.with_(accept=("out",)).run()
    older.run()  # once accepted, it need not be accepted again
    assert sorted(row["id"] for row in bench.outputs()) == sorted([*range(60), *range(30, 60)])
    with pytest.raises(Incompatible, match="does not contain them"):
        bench.app.run()


@pytest.mark.parametrize("accept", [(), ("out",)])
def test_two_drivers_on_two_copies_end_in_an_error_for_one(bench: KafkaBench, accept: tuple[str, ...]) -> None:
    bench.send(30)
    bench.app.run()
    copied = copy_of(bench.app, "copy").with_(accept=accept)
    first = bench.app.start()
    if not accept:
        with pytest.raises(Incompatible, match="does not contain them"):
            copied.start()
        bench.send(30)
        assert bench.app.batch(first)
        first.close()
        bench.check()
        return
    second = copied.start()
    bench.send(30)
    with pytest.raises((Incompatible, Fenced), match=r"copy|newer driver"):
        bench.app.batch(first)
    assert copied.batch(second)
    first.close(), second.close()
    bench.check(copied)


def test_a_driver_that_follows_another_in_one_process_delivers(bench: KafkaBench) -> None:
    """The process still has the producers of the first, whose claim is not the newest."""
    for _ in range(3):
        bench.send(10)
        first = bench.app.start()
        assert bench.app.batch(first)
        first.close()
    bench.check()


def test_a_process_that_delivered_for_a_driver_delivers_for_the_next_one(broker: Broker, topic: str) -> None:
    """Spark's workers outlive a driver of their session. They know what the first one wrote."""
    broker.create_topic(topic)
    sink = mp.sinks.kafka(topic, servers=broker.address, options={"transactional.id": topic})
    for batch, claim in ((11, 10), (21, 20)):
        fence_in_process(sink, mp.lowlevel.Registration("orders", "5e1f", "out", claim, "c1", claim, "c1"), 1)
        sink.deliver([{"n": batch}], mp.lowlevel.Delivery("orders", "5e1f", "out", batch, 0, "a7", (claim, "c1")))
    assert [message.json["n"] for message in broker.read_committed(topic)] == [11, 21]


# --- published state ---


def table_of(messages: list[Message]) -> Mapping[str, Any]:
    """The table that a reader builds from a compacted topic."""
    found: dict[str, Any] = {}
    for message in messages:
        key = (message.key or b"").decode()
        found.pop(key, None)
        if message.value is not None:
            found[key] = json.loads(message.value)["value"]
    return found


def keep_count(key: str, row: dict[str, Any], count: int) -> tuple[None, int | None]:
    return None, None if row["gone"] else count + 1


def test_changes_of_state_are_a_table_in_a_compacted_topic(broker: Broker, topic: str, tmp_path: Path) -> None:
    source = broker.create_topic(f"{topic}-in")

    def build() -> mp.App:
        app = mp.App("counts", str(tmp_path / "state"), partitions=2)
        rows = app.stream("rows", mp.sources.kafka(source, servers=broker.address)).key_by("key")
        rows.stateful_map("count", keep_count, initial=0)
        sink = mp.sinks.kafka(
            topic, servers=broker.address, key="key", create={"partitions": 2, "cleanup.policy": "compact"}
        )
        app.changes("count").to("table", sink)
        return app

    def step(*rows: tuple[str, bool]) -> None:
        broker.send(source, [{"key": key, "gone": gone} for key, gone in rows])
        run_locally(build())

    step(("a", False), ("b", False), ("a", False), ("c", False))
    assert table_of(broker.read_committed(topic)) == {"a": 2, "b": 1, "c": 1}
    before = mp.open(str(tmp_path / "state"), "counts").newest
    step(("b", True), ("c", False), ("d", False))
    messages = broker.read_committed(topic)
    assert table_of(messages) == {"a": 2, "c": 2, "d": 1} == dict(build().state("count").items())
    assert [message.key for message in messages if message.value is None] == [b"b"]
    assert before is not None
    build().rollback(before.number)
    run_locally(build())
    assert table_of(broker.read_committed(topic)) == dict(build().state("count").items())
