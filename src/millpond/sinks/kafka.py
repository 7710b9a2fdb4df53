"""A sink that writes outputs as messages to Kafka topics."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import pyarrow as pa

from millpond.errors import Incompatible, InvalidUse, Unavailable
from millpond.kafka.clients import KafkaSettings, Requests, import_kafka
from millpond.kafka.delivery_process import process_client
from millpond.kafka.exactly_once import (
    DeliveryPlace,
    deliver_once,
    describe_delivery,
    fenced_error,
    recreated_error,
)
from millpond.kafka.message_formats import check_format
from millpond.kafka.outgoing import (
    HEADER_NAMES,
    MessageMaker,
    MessageParts,
    OutgoingMessages,
    Unwritable,
    is_header_name,
    is_topic_name,
)
from millpond.kafka.plain_producer import PlainProducer, plain_producers
from millpond.kafka.register import (
    REGISTER_TOPIC,
    Claim,
    ClaimEntry,
    EntryKey,
    PartitionEntry,
    Register,
    SinkEntries,
    claim_key,
    create_topic,
    encode_entry,
    find_ends,
    partition_key,
    register_partition,
)
from millpond.kafka.transactions import PartitionWork, write_once
from millpond.sinks.base import Delivery, Registration

log = logging.getLogger("millpond")

PREFIX_OPTION = "transactional.id"
FENCING_THREADS = 8
NOT_REGISTERED = ""  # the topic id of a claim that is fenced and not registered yet
CREATION_CHECKS = 50  # of a topic that was just created, every tenth of a second


@dataclass(frozen=True)
class NewTopics:
    """How missing topics are created; `is_wanted` is False if they are not."""

    is_wanted: bool = False
    partitions: int = -1
    replication: int = -1
    config: Mapping[str, str] = field(default_factory=dict)


class KafkaSink:
    """Made by `millpond.sinks.kafka(…, exactly_once=False)`; every row arrives at least once.

    After a crash, or if a reply is lost, the rows of a delivery may be written again.

    >>> from millpond.sinks import kafka
    >>> kafka("totals", servers="localhost:9092", exactly_once=False)
    kafka('totals', servers='localhost:9092', exactly_once=False)
    """

    where: Literal["workers"] = "workers"

    def __init__(self, parts: MessageParts, settings: KafkaSettings, create: NewTopics) -> None:
        self._parts, self._create = parts, create
        self._prefix = str(settings.options.get(PREFIX_OPTION, "millpond"))
        options = {name: value for name, value in settings.options.items() if name != PREFIX_OPTION}
        self._settings = replace(settings, options=options)
        self._requests = Requests(self._settings)

    def deliver(self, rows: list[Any], delivery: Delivery) -> None:
        """Write the rows; on return all replicas that the topic asks for have them."""
        if rows:
            with self._as_invalid_use(delivery):
                messages = self._maker.of_rows(rows, delivery.batch)
            self._write(messages, delivery)

    def deliver_table(self, table: pa.Table, delivery: Delivery) -> None:
        """Write uniform rows, from their columns if the messages need no Python objects."""
        with self._as_invalid_use(delivery):
            messages = self._maker.of_table(table, delivery.batch)
            if messages is None:
                messages = self._maker.of_rows(table.to_pylist(), delivery.batch)
        self._write(messages, delivery)

    @contextmanager
    def _as_invalid_use(self, delivery: Delivery) -> Iterator[None]:
        """Raise `InvalidUse`, which says where it was, for a row of which no message can be made."""
        try:
            yield
        except Unwritable as error:
            topic = f", topic {self._parts.topic!r}" if isinstance(self._parts.topic, str) else ""
            raise InvalidUse(f"{describe_delivery(delivery)}{topic}: {error}") from None

    def for_changes(self) -> KafkaSink:
        """Return a sink that writes a tombstone for a key that is gone, unless the user gave `deleted`."""
        if self._parts.deleted is not None:
            return self
        found = copy(self)
        found._parts = replace(self._parts, deleted=is_deletion)
        return found

    def _write(self, messages: OutgoingMessages, delivery: Delivery) -> None:
        self._check_topics(messages)
        topic = self._parts.topic if isinstance(self._parts.topic, str) else ""
        plain_producers.write(self._settings, topic, messages, describe_delivery(delivery))

    @cached_property
    def _maker(self) -> MessageMaker:
        return MessageMaker(self._parts)

    @cached_property
    def _known_topics(self) -> dict[str, str]:
        return {}

    def _check_topics(self, messages: OutgoingMessages) -> None:
        """Raise `InvalidUse` if a topic does not exist, unless it is to be created. Asks once for each."""
        names = {self._parts.topic} if isinstance(self._parts.topic, str) else set(messages.topics)
        for name in sorted(names - self._known_topics.keys()):
            self._topic_id(name)

    def _topic_id(self, name: str) -> str:
        """Return the id of a topic. One that is missing is created, if the user wants that."""
        collection = import_kafka().TopicCollection([name])
        is_created = False
        for _ in range(CREATION_CHECKS):
            future = self._requests.client.describe_topics(collection)[name]
            topic = self._requests.wait_or_none(future, f"looking for topic {name!r}")
            if topic is not None:
                self._known_topics[name] = str(topic.topic_id)
                return self._known_topics[name]
            if not self._create.is_wanted:
                break
            if not is_created:
                new, is_created = self._create, True
                create_topic(self._requests, name, new.partitions, new.replication, new.config)
            else:
                threading.Event().wait(0.1)  # until all brokers know it
        if is_created:
            raise Unavailable(f"topic {name!r} was created and is not there yet", retry_after=0.5)
        raise InvalidUse(
            f"sinks.kafka: there is no topic {name!r} at {self._settings.servers}. Create it, or let the sink do it: "
            'create={"partitions": 6}'
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_maker", "_known_topics")}

    def __repr__(self) -> str:
        topic = self._parts.topic if isinstance(self._parts.topic, str) else "…"
        options = f", options={sorted(self._settings.options)}" if self._settings.options else ""
        return f"kafka({topic!r}, servers={self._settings.servers!r}, exactly_once=False{options})"


class ExactlyOnceKafkaSink(KafkaSink):
    """Made by `millpond.sinks.kafka`; readers of committed messages see each row once.

    The rows of a delivery and its entry in the register, a small compacted topic, are one transaction. Each sink and
    partition has a transactional id of its own. A driver that claims the app fences all of them, which aborts what an
    older driver has left open, and writes its claim into the register: a delivery of another claim is refused.

    >>> from millpond.sinks import kafka
    >>> kafka("totals", servers="localhost:9092")
    kafka('totals', servers='localhost:9092')
    """

    can_take_back = False

    def __init__(
        self, parts: MessageParts, settings: KafkaSettings, create: NewTopics, register: str = REGISTER_TOPIC
    ) -> None:
        super().__init__(parts, settings, create)
        self._register = Register(self._settings, register)
        self._fenced = FencedEntries()

    def _write(self, messages: OutgoingMessages, delivery: Delivery) -> None:
        self._check_topics(messages)
        self._register.create(self._create.replication)
        place = DeliveryPlace(
            self._transactional_id(delivery.app, delivery.sink, delivery.partition),
            self._partition_key(delivery),
            self._parts.topic if isinstance(self._parts.topic, str) else None,
            self._current_id(),
            self.target,
        )
        if not process_client.deliver(self._settings, self._register.topic, place, delivery, messages):
            deliver_once(self._settings, self._register, place, delivery, messages)

    # --- the register ---

    @property
    def target(self) -> str:
        """The topic, and the cluster that it is in."""
        topic = self._parts.topic if isinstance(self._parts.topic, str) else "of each row"
        return f"Kafka topic {topic} at {self._settings.servers}"

    def registrations(self, app: str, incarnation: str, sink: str) -> list[Registration]:
        """Return the claims in the register, each with the newest delivery that was attempted under it.

        A claim that was registered for another topic, or before the topic was created again, is left out.
        """
        self._prepare_register()
        self._known_topics.clear()
        topic_id = self._current_id()
        entries = self._register.entries_of(self._owner(app), incarnation, sink)
        found = []
        for entry in entries.claims.values():
            held = entry.registration
            if entry.topic_id != topic_id:
                continue
            newest = entries.attempted.get(((held.claim, held.claim_attempt), topic_id))
            if newest is not None and newest[0] > held.batch:
                held = replace(held, batch=newest[0], attempt=newest[1])
            found.append(held)
        return found

    def is_emptied(self, app: str, incarnation: str, sink: str) -> bool:
        """Return whether the topic was created again since a driver registered, or has never had a message."""
        topic = self._parts.topic
        if not isinstance(topic, str):
            return False
        topic_id = self._current_id()
        claims = self._register.entries_of(self._owner(app), incarnation, sink).claims.values()
        registered = [claim.topic_id for claim in claims if claim.topic_id != NOT_REGISTERED]
        if registered:
            return topic_id not in registered
        return not any(self._requests.persist(lambda: find_ends(self._requests, topic)).values())

    def register(self, registration: Registration) -> None:
        """Write the entry of a claim."""
        self._prepare_register()
        most = self._fenced.most
        if most is None:
            one = registration
            most = self._register.entries_of(self._owner(one.app), one.incarnation, one.sink).most_partitions
        entry = ClaimEntry(registration, most, self._current_id())
        self._put([(self._claim_key(registration), encode_entry(entry))])

    def forget(self, registrations: Sequence[Registration]) -> None:
        """Remove the entries of some claims."""
        self._put([(self._claim_key(registration), None) for registration in registrations])

    def fence(self, registration: Registration, partitions: int, over: Sequence[Registration] = ()) -> None:
        """Open a producer for every partition, which aborts what older drivers left open, and write the claim.

        Entries of an incarnation that was cleared are removed: a driver of it that wakes up is refused. If the topic is
        not the one that the last claim was registered for, the entry of this claim says so until `register` is called.
        """
        self._prepare_register()
        one = registration
        entries = self._register.entries_of(self._owner(one.app), one.incarnation, one.sink)
        most = max(partitions, entries.most_partitions)
        cleared = [key for key, number in entries.others.items() if number < one.claim]
        if len(cleared) < len(entries.others):
            log.warning(
                "%s: sink %r: another app of this name has delivered to the same cluster, from another state "
                'directory. If it still runs, give one of them another prefix: options={"transactional.id": …}',
                one.app,
                one.sink,
            )
        topic_id = self._current_id()
        told = ClaimEntry(one, most, self._registered_id(entries, one))
        self._put([(self._claim_key(one), encode_entry(told)), *((key, None) for key in cleared if key[3] == "claim")])
        self._fenced = FencedEntries(topic_id, self._register.topic_id, most, is_policy_checked=True)
        claim, accepted = (one.claim, one.claim_attempt), {(other.claim, other.claim_attempt) for other in over}

        def fence_partition(partition: int) -> None:
            def decide(entry: PartitionEntry | None) -> PartitionWork:
                held = entry or PartitionEntry()
                if held.claim is not None and held.claim != claim and held.claim not in accepted:
                    self._check_older(one, held.claim)
                delivered = held.delivered if held.topic_id == topic_id else ()
                if held.claim != claim:  # what another copy of the app has delivered may have numbers after the claim
                    delivered = tuple(each for each in delivered if each[0] < one.claim)
                self._fenced.partitions[partition] = fenced = PartitionEntry(claim, delivered, topic_id)
                remove = [key for key in cleared if key[3:] == ("partition", partition)]
                return PartitionWork(lambda producer: None, fenced, remove)

            names = (
                self._transactional_id(one.app, one.sink, partition),
                partition_key(self._owner(one.app), one.incarnation, one.sink, partition),
            )
            doing = f"sink {one.sink!r}: taking over partition {partition}"
            write_once(self._settings, names, self._register, decide, doing)

        fence_partition(0)  # alone: of two copies of an app that start at the same time, one is refused here
        with ThreadPoolExecutor(FENCING_THREADS, thread_name_prefix="millpond-fence") as pool:
            list(pool.map(fence_partition, range(1, most)))

    def _check_older(self, registration: Registration, held: Claim) -> None:
        """Raise if the claim that a partition has is not older than the one that takes it over."""
        who = f"app {registration.app!r}: sink {registration.sink!r}"
        if held[0] > registration.claim:
            raise fenced_error(who, held[0], self.target)
        if held[0] == registration.claim:
            raise Incompatible(
                f"{who}: another copy of the app, which has also claimed record {held[0]}, delivers to {self.target} "
                f"now. Stop one of them, and run the other again with accept=[{registration.sink!r}], or --accept "
                f"{registration.sink}."
            )

    def check_target(self, registration: Registration) -> None:
        """Raise `Incompatible` if the topic or the register was created again since `fence`. One request."""
        from confluent_kafka import TopicCollection

        topic = self._parts.topic
        asked = {self._register.topic: self._fenced.register_id}
        if isinstance(topic, str):
            asked[topic] = self._fenced.topic_id
        futures = self._requests.client.describe_topics(TopicCollection(sorted(asked)))
        for name, future in futures.items():
            found = self._requests.wait_or_none(future, f"looking for topic {name!r}")
            if found is None or str(found.topic_id) != asked[name]:
                who = f"app {registration.app!r}: sink {registration.sink!r}"
                raise recreated_error(who, name, self._settings.servers, is_there=found is not None)

    def status(self, delivery: Delivery) -> Literal["held", "void", "gone"]:
        """Return whether the delivery is in the topic, by what `fence` has read, or by the register."""
        entry = self._fenced.partitions.get(delivery.partition) or self._find(delivery)
        if entry is None or entry.topic_id != self._current_id():
            return "gone"
        return "held" if entry.has(delivery) or entry.is_older(delivery) else "gone"

    def _find(self, delivery: Delivery) -> PartitionEntry | None:
        if not self._register.partitions:
            return None
        return self._register.find(self._partition_key(delivery))

    def _partition_key(self, delivery: Delivery) -> EntryKey:
        return partition_key(self._owner(delivery.app), delivery.incarnation, delivery.sink, delivery.partition)

    def take_back(self, registration: Registration, known: Callable[[int, str], bool]) -> Callable[[], list[str]]:
        """Raise `InvalidUse`: messages cannot be taken back."""
        raise InvalidUse(
            f"sink {registration.sink!r}: {self.target}: messages in Kafka cannot be taken back. Use "
            f"run(accept=[{registration.sink!r}]), or --accept {registration.sink}: they stay beside what comes."
        )

    def revive(self, rows: list[Any], delivery: Delivery) -> None:
        """Deliver the rows. No delivery is void in Kafka."""
        self.deliver(rows, delivery)

    def _prepare_register(self) -> None:
        """Create the register if it is missing; its number of partitions is asked again."""
        self._register.reset()
        self._register.create(self._create.replication)
        if not self._fenced.is_policy_checked:
            self._register.check_policy()
            self._fenced.is_policy_checked = True

    def _registered_id(self, entries: SinkEntries, registration: Registration) -> str | None:
        """Return the id of the topic that a claim is for: that of the claim before, until it is registered."""
        newest = max(entries.claims.values(), key=lambda entry: entry.number, default=None)
        held = entries.claims.get(self._claim_key(registration), newest)
        return NOT_REGISTERED if held is None else held.topic_id

    def _current_id(self) -> str | None:
        """Return the id of the topic; None if each row names its own."""
        topic = self._parts.topic
        if not isinstance(topic, str):
            return None
        return self._known_topics.get(topic) or self._topic_id(topic)

    def _transactional_id(self, app: str, sink: str, partition: int) -> str:
        return f"{self._owner(app)}/{_as_part(sink)}/{partition}"

    def _owner(self, app: str) -> str:
        """Return the name of an app in the register: those with different prefixes have nothing in common."""
        return f"{self._prefix}/{_as_part(app)}"

    def _claim_key(self, registration: Registration) -> EntryKey:
        return claim_key(self._owner(registration.app), registration)

    def _put(self, entries: Sequence[tuple[EntryKey, bytes | None]]) -> None:
        """Write entries into the register, outside of a transaction."""
        producer = PlainProducer(self._settings, is_idempotent=False)  # which would take half a second more
        try:
            for key, value in entries:
                number = register_partition(key, self._register.partitions)
                producer.put(self._register.topic, number, encode_entry(key), value)
        finally:
            producer.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_fenced": FencedEntries()}

    def __repr__(self) -> str:
        return super().__repr__().replace(", exactly_once=False", "")


@dataclass
class FencedEntries:
    """What a driver has seen when it fenced the sink."""

    topic_id: str | None = None
    register_id: str | None = None
    most: int | None = None  # partitions, of any driver
    partitions: dict[int, PartitionEntry] = field(default_factory=dict)
    is_policy_checked: bool = False


def is_deletion(change: dict[str, Any]) -> bool:
    """Return whether a row of `app.changes` says that its key is gone.

    >>> is_deletion({"key": "ann", "value": None, "batch": 7})
    True
    """
    return change["value"] is None


def _as_part(name: str) -> str:
    """Return a name without slashes, for names that are joined by slashes."""
    return name.replace("%", "%25").replace("/", "%2F")


def make_kafka_sink(
    parts: MessageParts, settings: KafkaSettings, exactly_once: Any, create: Any, register: Any
) -> KafkaSink:
    """Check what the user gave, and return the sink."""
    where = "sinks.kafka"
    for name, topic in (("topic", parts.topic), ("register", register)):
        if callable(topic) and name == "topic":
            continue
        if is_topic_name(topic):
            continue
        raise InvalidUse(
            f"{where}({name}): expected a name of letters, digits, '.', '_' and '-'"
            f"{', or a function of the row' if name == 'topic' else ''}, got {topic!r}"
        )
    for name in ("key", "partition", "timestamp"):
        part = getattr(parts, name)
        if part is not None and not isinstance(part, str) and not callable(part):
            raise InvalidUse(f"{where}({name}): expected a field or a function of the row, got {part!r}")
    if parts.headers is not None and not callable(parts.headers) and not isinstance(parts.headers, Mapping):
        raise InvalidUse(
            f"{where}(headers): expected a dict of names and fields or functions, or a function of the row that "
            f"returns a dict, got {parts.headers!r}"
        )
    _check_header_names(where, parts)
    if parts.deleted is not None and not callable(parts.deleted):
        raise InvalidUse(f"{where}(deleted): expected a function of the row, got {parts.deleted!r}")
    if type(exactly_once) is not bool:
        raise InvalidUse(f"{where}(exactly_once): expected True or False, got {exactly_once!r}")
    check_format(where, "value", parts.value, parts.registry)
    if exactly_once:
        return ExactlyOnceKafkaSink(parts, settings, check_create(create), register)
    return KafkaSink(parts, settings, check_create(create))


def _check_header_names(where: str, parts: MessageParts) -> None:
    if not isinstance(parts.headers, Mapping):
        return
    for name, part in parts.headers.items():
        if not is_header_name(name):
            raise InvalidUse(f"{where}(headers): expected {HEADER_NAMES}, got {name!r}")
        if not isinstance(part, str) and not callable(part):
            raise InvalidUse(f"{where}(headers): expected a field or a function of the row for {name!r}, got {part!r}")


def check_create(create: Any) -> NewTopics:
    """Check how missing topics are to be created.

    >>> check_create({"partitions": 6, "cleanup.policy": "compact"})
    NewTopics(is_wanted=True, partitions=6, replication=-1, config={'cleanup.policy': 'compact'})
    """
    if create is None:
        return NewTopics()
    if not isinstance(create, Mapping) or not all(isinstance(name, str) for name in create):
        raise InvalidUse(
            'sinks.kafka(create): expected a dict such as {"partitions": 6, "replication": 3, "cleanup.policy": '
            f'"compact"}}, got {create!r}'
        )
    counts = {name: create.get(name, -1) for name in ("partitions", "replication")}
    for name, count in counts.items():
        if type(count) is not int or (count < 1 and count != -1):
            raise InvalidUse(f"sinks.kafka(create): expected {name!r} as a whole number of 1 or more, got {count!r}")
    config = {name: str(value) for name, value in create.items() if name not in counts}
    return NewTopics(True, counts["partitions"], counts["replication"], config)
