"""The register of deliveries: a small compacted topic that holds, for each sink and partition, what it has taken.

Key and value of a message are JSON. There are two kinds of entries:

    [owner, incarnation, sink, "claim", number, attempt]   a driver that delivers: its registration
    [owner, incarnation, sink, "partition", number]        the newest claim, and the last deliveries of the partition

The owner is an app, after the prefix of its transactional ids: `millpond/orders`.

The entry of a partition is written in the transaction that also writes the rows, so that both are there or neither.
The entries of one sink are spread over the partitions of the register: a transaction that is open hides what comes
after it in the same partition, also from other sinks.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from millpond.errors import InvalidUse, Unavailable
from millpond.kafka.clients import RETRY_SECONDS, ClientPool, KafkaSettings, Requests
from millpond.kafka.reader import OffsetsGone, PartitionReader
from millpond.sinks.base import Delivery, Registration

REGISTER_TOPIC = "millpond-deliveries"
REGISTER_PARTITIONS = 16
REGISTER_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),  # what is not in the newest segment is compacted
    "segment.ms": str(3600 * 1000),
    "min.cleanable.dirty.ratio": "0.1",
}
REMEMBERED = 16  # deliveries of a partition; a driver repeats the last few
NEAR_THE_END = 200  # messages of the register in which an entry is looked for first

EntryKey = tuple[str | int, ...]


class PartitionEntry(msgspec.Struct, frozen=True):
    """What the register holds of one partition of a sink."""

    claim: tuple[int, str] | None = None  # number and attempt id of the claim whose deliveries are taken
    delivered: tuple[tuple[int, str], ...] = ()  # batch and attempt id of the last deliveries
    topic_id: str | None = None  # of the topic that they are in; None if each row names its topic
    newest: int = -1  # batch of the newest delivery of the claim

    @property
    def number(self) -> int:
        """The number of the claim."""
        return -1 if self.claim is None else self.claim[0]

    def has(self, delivery: Delivery) -> bool:
        """Return whether a delivery is among those that are remembered, or its driver has delivered later batches.

        A driver delivers in order, so what it delivers late is repeated: by a task that Spark has given up, by a
        process that slept.
        """
        if delivery.claim is not None and delivery.claim == self.claim and delivery.batch < self.newest:
            return True
        return (delivery.batch, delivery.attempt) in self.delivered

    def is_older(self, delivery: Delivery) -> bool:
        """Return whether a delivery came before those that are remembered."""
        return bool(self.delivered) and delivery.batch < min(batch for batch, _ in self.delivered)

    def with_delivery(self, delivery: Delivery) -> PartitionEntry:
        """Return the entry after one more delivery."""
        kept = (*self.delivered, (delivery.batch, delivery.attempt))[-REMEMBERED:]
        claim = self.claim if delivery.claim is None else delivery.claim
        return PartitionEntry(claim, kept, self.topic_id, max(self.newest, delivery.batch))


class ClaimEntry(msgspec.Struct, frozen=True):
    """A driver that has registered, and the highest number of partitions of any driver of the sink up to it."""

    registration: Registration
    partitions: int
    topic_id: str | None = None

    @property
    def number(self) -> int:
        """The number of the claim."""
        return self.registration.claim


def partition_key(owner: str, incarnation: str, sink: str, partition: int) -> EntryKey:
    """Return the key of the entry of a partition."""
    return (owner, incarnation, sink, "partition", partition)


def claim_key(owner: str, registration: Registration) -> EntryKey:
    """Return the key of the entry of a claim."""
    one = registration
    return (owner, one.incarnation, one.sink, "claim", one.claim, one.claim_attempt)


def encode_entry(value: Any) -> bytes:
    """Return a key or an entry as the bytes of a message."""
    return msgspec.json.encode(value)


def decode_entry_key(key: bytes | None) -> EntryKey | None:
    """Return the key of an entry; None for a message that is none.

    >>> decode_entry_key(encode_entry(partition_key("orders", "5e1f", "totals", 1)))
    ('orders', '5e1f', 'totals', 'partition', 1)
    >>> decode_entry_key(b"hello"), decode_entry_key(None)
    (None, None)
    """
    try:
        found = tuple(msgspec.json.decode(b"" if key is None else key, type=list[str | int]))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return found if len(found) > 4 and found[3] in ("claim", "partition") and isinstance(found[4], int) else None


def decode_entry(key: EntryKey, value: bytes | None) -> ClaimEntry | PartitionEntry | None:
    """Return an entry; None if it was removed."""
    if value is None:
        return None
    if key[3] == "claim":
        return msgspec.json.decode(value, type=ClaimEntry)
    return msgspec.json.decode(value, type=PartitionEntry)


def register_partition(key: EntryKey, partitions: int) -> int:
    """Return the partition of the register that has an entry.

    >>> register_partition(partition_key("orders", "5e1f", "totals", 1), 16)
    5
    """
    number = key[4] if key[3] == "partition" else 0
    assert isinstance(number, int)
    return (zlib.crc32(encode_entry(key[:3])) + number) % partitions


Claim = tuple[int, str]  # number and attempt id of a driver's claim


@dataclass(frozen=True)
class SinkEntries:
    """What the register knows of one app and sink, with what open and aborted transactions have written.

    It is read without waiting for a transaction that is open. Claims are written outside of transactions, so they are
    certain. Of deliveries it says only what a driver has attempted.
    """

    claims: Mapping[EntryKey, ClaimEntry]  # of one incarnation
    attempted: Mapping[tuple[Claim, str | None], Claim]  # claim and topic id → batch and attempt id of the newest
    others: Mapping[EntryKey, int]  # entries of other incarnations, with the number of the claim that wrote them
    most_partitions: int  # that any driver of any incarnation may have delivered


class Register:
    """Reads the register. The driver reads all entries of a sink, a worker those of one partition."""

    def __init__(self, settings: KafkaSettings, topic: str = REGISTER_TOPIC) -> None:
        self.topic = topic
        self._settings = KafkaSettings(settings.servers, settings_for_reading(settings))
        self._requests = Requests(self._settings)
        self._partitions = 0
        self.topic_id = ""  # once `partitions` is known

    def __reduce__(self) -> Any:
        return Register, (self._settings, self.topic)

    @property
    def partitions(self) -> int:
        """The number of partitions of the register; 0 if the topic does not exist."""
        if not self._partitions:
            from confluent_kafka import TopicCollection

            future = self._requests.client.describe_topics(TopicCollection([self.topic]))[self.topic]
            topic = self._requests.wait_or_none(future, f"looking for topic {self.topic!r}")
            if topic is not None:
                self._partitions, self.topic_id = len(topic.partitions), str(topic.topic_id)
        return self._partitions

    def reset(self) -> None:
        """Ask again whether the topic exists. It may have been deleted."""
        self._partitions = 0

    def create(self, replication: int = -1) -> None:
        """Create the topic, if it does not exist."""
        if self.partitions:
            return
        create_topic(self._requests, self.topic, REGISTER_PARTITIONS, replication, REGISTER_CONFIG)
        for _ in range(50):
            if self.partitions:
                return
            threading.Event().wait(0.1)
        raise Unavailable(
            f"Kafka at {self._settings.servers}: topic {self.topic!r} was created and is not there yet",
            retry_after=RETRY_SECONDS,
        )

    def check_policy(self) -> None:
        """Raise `InvalidUse` if the cluster removes old entries. A user who may not ask is not refused."""
        from confluent_kafka.admin import ConfigResource

        def ask() -> Any:
            resource = ConfigResource(ConfigResource.Type.TOPIC, self.topic)
            [future] = self._requests.client.describe_configs([resource]).values()
            return self._requests.wait(future, f"reading the settings of topic {self.topic!r}")

        try:
            found = self._requests.persist(ask)  # a broker may not know yet a topic that was just created
        except InvalidUse:
            return
        policy = found["cleanup.policy"].value
        if policy != "compact":
            raise InvalidUse(
                f"sinks.kafka(register={self.topic!r}): expected a topic with cleanup.policy=compact, got {policy}: "
                "the cluster would remove entries after some days. Change the policy, or let the sink create the topic"
            )

    def entries_of(self, owner: str, incarnation: str, sink: str) -> SinkEntries:
        """Return what there is of a sink."""
        claims: dict[EntryKey, ClaimEntry] = {}
        attempted: dict[tuple[Claim, str | None], Claim] = {}
        others: dict[EntryKey, int] = {}
        most = 0
        numbers = range(self.partitions)
        starts, ends = self._starts(numbers), self._ends(numbers)
        for number in numbers:
            for key, value in self._read(number, starts[number], ends[number], "read_uncommitted"):
                if (key[0], key[2]) != (owner, sink) or register_partition(key, self.partitions) != number:
                    continue
                entry = decode_entry(key, value)
                if isinstance(entry, ClaimEntry):
                    most = max(most, entry.partitions)
                elif isinstance(key[4], int):
                    most = max(most, key[4] + 1)
                if key[1] != incarnation:
                    others.pop(key, None)
                    if entry is not None:
                        others[key] = entry.number
                elif key[3] == "claim":
                    claims.pop(key, None)
                    if isinstance(entry, ClaimEntry):
                        claims[key] = entry
                elif isinstance(entry, PartitionEntry) and entry.claim is not None and entry.delivered:
                    held = attempted.get((entry.claim, entry.topic_id), (-1, ""))
                    attempted[entry.claim, entry.topic_id] = max(held, *entry.delivered, key=lambda one: one[0])
        return SinkEntries(claims, attempted, others, most)

    def find(self, key: EntryKey) -> PartitionEntry | None:
        """Return the entry of a partition, which is read from the end of the register; None if there is none.

        It waits for transactions that are open: an entry may be behind them.
        """
        number = register_partition(key, self.partitions)
        first, end = self._starts([number])[number], self._ends([number])[number]
        for start in sorted({max(first, end - NEAR_THE_END), first}, reverse=True):
            found = None
            for other, value in self._read(number, start, end, "read_committed"):
                if other == key:
                    found = value
            if found is not None:
                return msgspec.json.decode(found, type=PartitionEntry)
        return None

    def _ends(self, numbers: Iterable[int]) -> dict[int, int]:
        """Return the ends of partitions of the register, with messages of open transactions."""
        return self._requests.persist(lambda: find_ends(self._requests, self.topic, list(numbers)))

    def _starts(self, numbers: Iterable[int]) -> dict[int, int]:
        """Return the first offsets that can be read: someone may have removed entries."""
        return self._requests.persist(lambda: find_starts(self._requests, self.topic, list(numbers)))

    def id_of(self, topic: str) -> str | None:
        """Ask for the id of any topic of the cluster; None if it does not exist."""
        from confluent_kafka import TopicCollection

        future = self._requests.client.describe_topics(TopicCollection([topic]))[topic]
        found = self._requests.wait_or_none(future, f"looking for topic {topic!r}")
        return None if found is None else str(found.topic_id)

    def _read(self, number: int, start: int, end: int, isolation: str) -> Iterable[tuple[EntryKey, bytes | None]]:
        """Yield the entries in a partition of the register."""
        settings = KafkaSettings(self._settings.servers, {**self._settings.options, "isolation.level": isolation})
        reader = register_readers.take(settings.identity, lambda: PartitionReader(settings))
        try:
            for run in reader.read(self.topic, number, start, end, has_more=False):
                for message in run.messages:
                    key = decode_entry_key(message.key())
                    if key is not None:
                        yield key, message.value()
        except OffsetsGone as error:
            reader.close()
            raise Unavailable(
                f"Kafka at {self._settings.servers}: reading topic {self.topic!r}: {error}", retry_after=RETRY_SECONDS
            ) from error
        except BaseException:
            reader.close()
            raise
        register_readers.put_back(settings.identity, reader)


register_readers = ClientPool()  # of this process


def settings_for_reading(settings: KafkaSettings) -> dict[str, Any]:
    """Return those of a sink's options that a reader of the register needs."""
    found = settings.for_requests()
    return {name: value for name, value in found.items() if name in settings.options}


def find_ends(requests: Requests, topic: str, numbers: Sequence[int] | None = None) -> dict[int, int]:
    """Return the ends of partitions of a topic, of all if None is given, with messages of open transactions."""
    from confluent_kafka import TopicCollection
    from confluent_kafka.admin import OffsetSpec

    if numbers is None:
        future = requests.client.describe_topics(TopicCollection([topic]))[topic]
        numbers = [part.id for part in requests.wait(future, f"reading topic {topic!r}").partitions]
    return _find_offsets(requests, topic, numbers, OffsetSpec.latest())


def find_starts(requests: Requests, topic: str, numbers: Sequence[int]) -> dict[int, int]:
    """Return the first offsets of partitions of a topic."""
    from confluent_kafka.admin import OffsetSpec

    return _find_offsets(requests, topic, numbers, OffsetSpec.earliest())


def _find_offsets(requests: Requests, topic: str, numbers: Sequence[int], which: Any) -> dict[int, int]:
    from confluent_kafka import IsolationLevel, TopicPartition

    doing = f"reading topic {topic!r}"
    asked = {TopicPartition(topic, number): which for number in numbers}
    futures = requests.client.list_offsets(asked, isolation_level=IsolationLevel.READ_UNCOMMITTED)
    try:
        return {part.partition: requests.wait(future, doing).offset for part, future in futures.items()}
    except Unavailable:
        requests.list_topics(doing)  # otherwise the client asks those that were leaders before
        raise


def create_topic(requests: Requests, name: str, partitions: int, replication: int, config: Mapping[str, str]) -> None:
    """Create a topic; one that another process has created meanwhile is as good."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewTopic

    topic = NewTopic(name, num_partitions=partitions, replication_factor=replication, config=dict(config))
    [future] = requests.client.create_topics([topic]).values()
    try:
        requests.wait(future, f"creating topic {name!r}")
    except (InvalidUse, Unavailable) as error:
        cause = error.__cause__
        if not (isinstance(cause, KafkaException) and cause.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS):
            raise
