"""What tests do to a Kafka cluster besides the code under test: topics, messages, transactions, offsets."""

from __future__ import annotations

import functools
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from itertools import count
from typing import Any, NamedTuple

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)
from processes import eventually

TIMEOUT = 180.0  # seconds for one operation; a busy machine is slow
MARKER_SECONDS = 5.0  # that a committed transaction may take until all of its partitions show it
SILENT = logging.getLogger("kafka-operations")  # a broker that a test has stopped is no news
SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False
# Answers about a partition whose leader has just changed, or of a coordinator that has just started
NOT_YET = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._TIMED_OUT,
}

Headers = Mapping[str, bytes | str | None] | list[tuple[str, bytes | str | None]]


class Message(NamedTuple):
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: int | None  # milliseconds since 1970

    @property
    def json(self) -> Any:
        """The value, decoded from JSON; None for a tombstone."""
        return None if self.value is None else json.loads(self.value)


class Operations:
    """Operations on the brokers at `address`, through confluent-kafka.

    `client_settings` are settings of librdkafka that every client of this object gets, for example for a login.
    """

    client_settings: Mapping[str, Any] = {}
    replication = 1

    @property
    def address(self) -> str:
        """What a client needs as `bootstrap.servers`."""
        raise NotImplementedError

    def settings_with(self, **more: Any) -> dict[str, Any]:
        """The settings of a client; underscores in the names of `more` stand for dots, except in `error_cb`."""
        named = {name if name.endswith("_cb") else name.replace("_", "."): value for name, value in more.items()}
        # Tests restart brokers, so clients reconnect soon; tests pause them, so clients soon ask another one.
        quick = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "socket.timeout.ms": 5000}
        return {"bootstrap.servers": self.address, **quick, **self.client_settings, **named}

    @functools.cached_property
    def admin(self) -> AdminClient:
        """One client for all operations: a client that is collected as garbage takes its pending requests along."""
        return AdminClient(self.settings_with(), logger=SILENT)

    # Topics

    def create_topic(self, name: str, partitions: int = 1, *, timeout: float = TIMEOUT, **config: Any) -> str:
        """Create a topic and wait until each partition has a leader; return its name.

        `config`: settings of the topic, with underscores for dots: `cleanup_policy="compact"`.
        """
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        topic = NewTopic(name, partitions, self.replication, config=settings)
        wait_for_all(self.admin.create_topics([topic], operation_timeout=timeout, request_timeout=timeout))
        self._wait_for_partitions(name, partitions, timeout)
        return name

    def delete_topic(self, name: str) -> None:
        wait_for_all(self.admin.delete_topics([name], operation_timeout=TIMEOUT, request_timeout=TIMEOUT))
        eventually(lambda: name not in self.admin.list_topics(timeout=TIMEOUT).topics, f"{name} to disappear", TIMEOUT)

    def add_partitions(self, name: str, total: int) -> None:
        """Raise the number of partitions of a topic to `total`."""
        wait_for_all(
            self.admin.create_partitions(
                [NewPartitions(name, total)], operation_timeout=TIMEOUT, request_timeout=TIMEOUT
            )
        )
        self._wait_for_partitions(name, total)

    def partitions(self, topic: str) -> list[int]:
        return sorted(self.admin.list_topics(topic, timeout=TIMEOUT).topics[topic].partitions)

    def leader(self, topic: str, partition: int = 0, *, timeout: float = TIMEOUT) -> int:
        """The id of the broker that leads a partition; -1 while there is none."""
        return int(self.admin.list_topics(topic, timeout=timeout).topics[topic].partitions[partition].leader)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete the messages of a partition with offsets smaller than `before`, as retention does."""
        wait_for_all(self.admin.delete_records([TopicPartition(topic, partition, before)], request_timeout=TIMEOUT))

    def _wait_for_partitions(self, name: str, count: int, timeout: float = TIMEOUT) -> None:
        def have_leaders() -> bool:
            found = self.admin.list_topics(timeout=timeout).topics.get(name)
            if found is None or found.error is not None or len(found.partitions) != count:
                return False
            return all(each.leader >= 0 and each.error is None for each in found.partitions.values())

        eventually(have_leaders, f"leaders of {name}", timeout)
        self.end_offsets(name)  # a broker can be named as a leader before it is ready to be one

    # Messages

    def producer(self, **settings: Any) -> Producer:
        return Producer(self.settings_with(linger_ms=0, acks="all", **settings), logger=SILENT)

    def send(self, topic: str, values: Iterable[Any], **how: Any) -> list[tuple[int, int]]:
        """Send values and wait until the brokers have them; return the partition and the offset of each.

        Values are bytes, str, None (a tombstone) or anything that JSON can hold. `how`: `key` (bytes, str, or a
        function of the value that returns one), `partition`, `headers`, `timestamp` (milliseconds since 1970).
        """
        return produce_all(self.producer(), topic, values, **how)

    def send_in_transaction(
        self, topic: str, values: Iterable[Any], *, abort: bool = False, transactional_id: str = "tests", **how: Any
    ) -> None:
        """Send values in one transaction, and commit or abort it. `how` is as for `send`."""
        producer = self.producer(transactional_id=transactional_id)
        producer.init_transactions(TIMEOUT)
        producer.begin_transaction()
        produce_all(producer, topic, values, **how)
        if abort:
            producer.abort_transaction(TIMEOUT)
        else:
            producer.commit_transaction(TIMEOUT)

    def read_committed(self, topic: str, *, timeout: float = TIMEOUT) -> list[Message]:
        """All messages of a topic that no transaction has aborted, ordered by partition and offset.

        Messages after the first one of a transaction that is still open are left out, as for any such consumer.
        """
        self._wait_for_markers(topic)
        return self._read(topic, "read_committed", timeout)

    def _wait_for_markers(self, topic: str) -> None:
        """Wait until no transaction is open, but not for long: a test may have left one open.

        A commit is acknowledged when the coordinator has decided it. Its markers reach the partitions a moment later,
        one after the other.
        """
        until = time.monotonic() + MARKER_SECONDS
        while self.end_offsets(topic, committed=True) != self.end_offsets(topic) and time.monotonic() < until:
            time.sleep(0.02)

    def read_uncommitted(self, topic: str, *, timeout: float = TIMEOUT) -> list[Message]:
        """All messages of a topic, also those of aborted and of open transactions."""
        return self._read(topic, "read_uncommitted", timeout)

    def _read(self, topic: str, isolation: str, timeout: float) -> list[Message]:
        consumer = Consumer(
            self.settings_with(
                group_id="tests-read",  # required, and unused: nothing is committed
                enable_auto_commit=False,
                enable_partition_eof=True,
                auto_offset_reset="earliest",
                isolation_level=isolation,
                fetch_wait_max_ms=20,
            ),
            logger=SILENT,
        )
        try:
            rest = set(self.partitions(topic))
            consumer.assign([TopicPartition(topic, partition, 0) for partition in rest])
            found: list[Message] = []

            until = time.monotonic() + timeout
            while rest:
                assert time.monotonic() < until, f"partitions {sorted(rest)} of {topic} not read within {timeout:.0f} s"
                message = consumer.poll(1.0)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    found.append(as_message(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    rest.discard(message.partition())
                elif not error.retriable():
                    raise KafkaException(error)
        finally:
            consumer.close()
        return sorted(found, key=lambda message: (message.partition, message.offset))

    # Offsets

    def end_offsets(self, topic: str, *, committed: bool = False) -> dict[int, int]:
        """The offset after the last message of each partition; with `committed`, before the first open transaction."""
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        return self._offsets(topic, OffsetSpec.latest(), level)

    def start_offsets(self, topic: str) -> dict[int, int]:
        """The first offset of each partition that can be read."""
        return self._offsets(topic, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)

    def _offsets(self, topic: str, which: OffsetSpec, level: IsolationLevel) -> dict[int, int]:
        asked = {TopicPartition(topic, partition): which for partition in self.partitions(topic)}

        attempts = count(1)

        def answers() -> dict[TopicPartition, Any] | None:
            if next(attempts) % 5 == 0:  # a client may ask a broker that is no longer the leader for minutes
                self.__dict__.pop("admin", None)
            return results_or_none(self.admin.list_offsets(asked, isolation_level=level, request_timeout=5.0))

        found = eventually(answers, f"offsets of {topic}", TIMEOUT)
        return {place.partition: result.offset for place, result in found.items()}

    def group_offsets(self, group: str, topic: str) -> dict[int, int]:
        """The offsets that a consumer group has committed, by partition; partitions without one are left out."""
        places = [TopicPartition(topic, partition) for partition in self.partitions(topic)]
        # Not by the admin client: librdkafka 2.15 crashes if the coordinator of the group is just starting.
        consumer = Consumer(self.settings_with(group_id=group, enable_auto_commit=False), logger=SILENT)

        def committed() -> list[TopicPartition] | None:
            try:
                found: list[TopicPartition] = consumer.committed(places, timeout=TIMEOUT)
            except KafkaException as error:
                if is_not_yet(error):
                    return None
                raise
            return found

        try:
            found = eventually(committed, f"offsets of group {group}", TIMEOUT) if places else []
        finally:
            consumer.close()
        return {place.partition: place.offset for place in found if place.offset >= 0}


def results_or_none(futures: Mapping[Any, Future[Any]]) -> dict[Any, Any] | None:
    """The results of all futures; None while a broker is not ready to answer."""
    try:
        return {what: future.result(TIMEOUT) for what, future in futures.items()}
    except KafkaException as error:
        if is_not_yet(error):
            return None
        raise


def is_not_yet(error: KafkaException) -> bool:
    """Whether a broker is not ready to answer, as when the coordinator of a group is just starting."""
    return error.args[0].retriable() or error.args[0].code() in NOT_YET


def produce_all(
    producer: Producer,
    topic: str,
    values: Iterable[Any],
    *,
    key: bytes | str | Callable[[Any], bytes | str | None] | None = None,
    partition: int = -1,
    headers: Headers | None = None,
    timestamp: int = 0,
) -> list[tuple[int, int]]:
    """Produce values with an open producer and wait until they have arrived; return their partitions and offsets."""
    places: dict[int, tuple[int, int]] = {}
    failures: list[KafkaError] = []
    count = 0
    for count, value in enumerate(values, start=1):

        def arrived(error: KafkaError | None, message: Any, number: int = count) -> None:
            if error is None:
                places[number] = (message.partition(), message.offset())
            else:
                failures.append(error)

        producer.produce(
            topic,
            as_bytes(value),
            key(value) if callable(key) else key,
            partition,
            arrived,
            timestamp=timestamp,
            headers=list(headers.items()) if isinstance(headers, Mapping) else headers or [],
        )
        producer.poll(0)
    left = producer.flush(TIMEOUT)
    if failures:
        raise KafkaException(failures[0])
    assert len(places) == count, f"{left} of {count} messages did not arrive at {topic} within {TIMEOUT:.0f} s"
    return [places[number] for number in sorted(places)]


def as_bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def as_message(message: Any) -> Message:
    kind, timestamp = message.timestamp()
    return Message(
        message.topic(),
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        list(message.headers() or []),
        None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
    )


def wait_for_all(futures: Mapping[Any, Future[Any]]) -> None:
    for future in futures.values():
        future.result(TIMEOUT)
