"""Workers of one claim deliver through processes of their host, and by themselves if these cannot be reached."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka_broker import Broker
from processes import eventually

import millpond as mp
from millpond.errors import Fenced, InvalidUse
from millpond.kafka import delivery_process
from millpond.lowlevel import Delivery, FencingSink, RegisteredSink, Registration
from millpond.sinks.kafka import KafkaSink

CLAIM = Registration("orders", "5e1f", "totals", 40, "c1a1", 40, "c1a1")
ROWS = [{"id": str(n), "text": "ä\n" * n} for n in range(5)]


def processes() -> list[int]:
    """The delivery processes that this one has started, and that run. Other tests may have some at the same time."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command = (folder / "cmdline").read_bytes()
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if b"millpond.kafka.delivery_process import" in command and parent == os.getpid():
                found.append(int(folder.name))
    return found


@pytest.fixture
def in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process looks like a Python worker of Spark."""
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")


@pytest.fixture
def make_sink(broker: Broker, topic: str) -> Callable[..., KafkaSink]:
    broker.create_topic(topic)

    def make(**options: Any) -> KafkaSink:
        own = {"transactional.id": topic, **options}
        return mp.sinks.kafka(topic, broker.address, key="id", register=f"r-{topic}"[:200], options=own)

    return make


def fence(sink: KafkaSink, claim: Registration) -> None:
    assert isinstance(sink, FencingSink) and isinstance(sink, RegisteredSink)
    sink.register(claim)
    sink.fence(claim, 2)


def delivery(batch: int, claim: Registration = CLAIM, partition: int = 0) -> Delivery:
    return Delivery("orders", "5e1f", "totals", batch, partition, f"a{batch}", (claim.claim, claim.claim_attempt))


def test_one_process_keeps_the_producer_of_a_partition_for_all_workers(
    broker: Broker, topic: str, make_sink: Callable[..., KafkaSink], in_a_worker: None
) -> None:
    sink, before = make_sink(), set(processes())
    fence(sink, CLAIM)
    for batch in (41, 42, 42):
        sink.deliver(ROWS, delivery(batch))
    [started] = set(processes()) - before
    make_sink().deliver(ROWS, delivery(43))  # as another worker would
    assert set(processes()) - before == {started}
    sink.deliver(ROWS, delivery(43, partition=1))
    assert len(set(processes()) - before) == min(os.cpu_count() or 1, 2)
    found = broker.read_committed(topic)
    assert [message.json for message in found] == ROWS * 4
    assert [message.key for message in found] == [row["id"].encode() for row in ROWS] * 4
    assert [dict(message.headers)["millpond-batch"] for message in found[::5]] == [b"41", b"42", b"43", b"43"]


def test_a_worker_delivers_once_although_the_process_is_killed(
    broker: Broker, topic: str, make_sink: Callable[..., KafkaSink], in_a_worker: None
) -> None:
    sink, before = make_sink(), set(processes())
    fence(sink, CLAIM)
    for batch in range(41, 47):
        sink.deliver(ROWS[:2], delivery(batch))
        for number in set(processes()) - before:
            os.kill(number, signal.SIGKILL)
    assert [message.json for message in broker.read_committed(topic)] == ROWS[:2] * 6


def test_errors_of_the_process_are_those_of_the_delivery(
    make_sink: Callable[..., KafkaSink], in_a_worker: None
) -> None:
    sink = make_sink()
    fence(sink, CLAIM)
    sink.deliver(ROWS, delivery(41))
    newer = Registration("orders", "5e1f", "totals", 50, "d0d0", 50, "d0d0")
    fence(make_sink(), newer)
    with pytest.raises(Fenced, match="claim is record 50"):
        sink.deliver(ROWS, delivery(42))
    with pytest.raises(InvalidUse, match="compression"):
        make_sink(**{"compression.type": "no such thing"}).deliver(ROWS, delivery(51, newer))


def test_options_that_are_functions_are_not_sent(
    broker: Broker, topic: str, make_sink: Callable[..., KafkaSink], in_a_worker: None
) -> None:
    sink, before = make_sink(stats_cb=print), set(processes())
    fence(sink, CLAIM)
    sink.deliver(ROWS, delivery(41))
    assert set(processes()) == before
    assert [message.json for message in broker.read_committed(topic)] == ROWS


class Code(bytes):
    """A key as a library may return it: MessagePack takes no subclasses, and librdkafka does."""


def test_a_worker_delivers_by_itself_what_cannot_be_sent(
    broker: Broker, topic: str, make_sink: Callable[..., KafkaSink], in_a_worker: None
) -> None:
    make_sink()
    own = {"transactional.id": topic}
    sink = mp.sinks.kafka(
        topic, broker.address, key=lambda row: Code(row["id"].encode()), register=f"r-{topic}"[:200], options=own
    )
    fence(sink, CLAIM)
    sink.deliver(ROWS, delivery(41))
    assert [message.key for message in broker.read_committed(topic)] == [row["id"].encode() for row in ROWS]


def test_a_worker_waits_once_for_a_process_that_does_not_answer(
    broker: Broker,
    topic: str,
    make_sink: Callable[..., KafkaSink],
    in_a_worker: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claim = Registration("orders", "5e1f", "totals", 40, "abba", 40, "abba")
    sink, before = make_sink(), set(processes())
    fence(sink, claim)
    sink.deliver(ROWS, delivery(41, claim))
    [started] = set(processes()) - before
    os.kill(started, signal.SIGSTOP)
    try:
        delivery_process.process_client.close()
        monkeypatch.setattr(delivery_process, "DELIVERY_SECONDS", 1.0)
        opened, open_connection = [], delivery_process.open_connection
        monkeypatch.setattr(
            delivery_process, "open_connection", lambda path: opened.append(path) or open_connection(path)
        )
        for batch in (42, 43, 44):
            sink.deliver(ROWS, delivery(batch, claim))
        assert len(opened) == 1
    finally:
        os.kill(started, signal.SIGKILL)
        delivery_process.process_client.close()
    assert [message.json for message in broker.read_committed(topic)] == ROWS * 4


def test_a_worker_delivers_by_itself_if_another_that_starts_the_process_hangs(
    broker: Broker,
    topic: str,
    make_sink: Callable[..., KafkaSink],
    in_a_worker: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "socket")
    monkeypatch.setattr(delivery_process, "socket_path", lambda *_: path)
    monkeypatch.setattr(delivery_process, "START_SECONDS", 0.2)
    sink = make_sink()
    fence(sink, CLAIM)
    with open(f"{path}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        work = threading.Thread(target=sink.deliver, args=(ROWS, delivery(41)), daemon=True)
        work.start()
        work.join(60.0)
        assert not work.is_alive()
    assert [message.json for message in broker.read_committed(topic)] == ROWS


def test_a_worker_leaves_the_processes_of_a_run_before(make_sink: Callable[..., KafkaSink], in_a_worker: None) -> None:
    claim = Registration("orders", "5e1f", "totals", 40, "acdc", 40, "acdc")
    sink, before = make_sink(), set(processes())
    fence(sink, claim)
    sink.deliver(ROWS, delivery(41, claim))
    [first] = set(processes()) - before
    newer = Registration("orders", "5e1f", "totals", 50, "dada", 50, "dada")
    fence(sink, newer)
    sink.deliver(ROWS, delivery(51, newer))
    eventually(lambda: first not in processes(), "the end of the first process", 180.0)


def test_a_process_without_deliveries_ends_although_a_worker_is_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_process, "IDLE_SECONDS", 0.2, raising=False)
    path = str(tmp_path / "socket")
    work = threading.Thread(target=delivery_process.DeliveryServer().run, args=(path,), daemon=True)
    work.start()
    eventually(lambda: os.path.exists(path), "the socket", 60.0)
    with delivery_process.open_connection(path):
        work.join(60.0)
        assert not work.is_alive()


def test_the_process_ends_when_no_worker_is_connected(make_sink: Callable[..., KafkaSink], in_a_worker: None) -> None:
    process_client = delivery_process.process_client
    claim = Registration("orders", "5e1f", "totals", 60, "e0e0", 60, "e0e0")
    sink, before = make_sink(), set(processes())
    fence(sink, claim)
    sink.deliver(ROWS, delivery(61, claim))
    started = set(processes()) - before
    assert len(started) == 1
    process_client.close()

    def is_over() -> bool:
        process_client.close()
        return not started & set(processes())

    eventually(is_over, "the end of the process", 180.0)
