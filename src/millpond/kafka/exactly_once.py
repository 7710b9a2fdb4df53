"""One delivery to Kafka: its messages and its entry in the register in one transaction, unless it is there already."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from millpond.errors import Fenced, Incompatible
from millpond.kafka.clients import KafkaSettings
from millpond.kafka.outgoing import OutgoingMessages
from millpond.kafka.register import EntryKey, PartitionEntry, Register
from millpond.kafka.transactions import PartitionWork, write_once
from millpond.sinks.base import Delivery


@dataclass(frozen=True)
class DeliveryPlace:
    """Where a delivery goes: its transactional id, its entry in the register, and its topic."""

    transactional_id: str
    key: EntryKey
    topic: str | None  # None if each row names its topic
    topic_id: str | None
    target: str  # the topic in words


def deliver_once(
    settings: KafkaSettings, register: Register, place: DeliveryPlace, delivery: Delivery, messages: OutgoingMessages
) -> None:
    """Write the messages of a delivery, unless the register has it.

    Raises `Fenced` for an older claim, `Incompatible` if the topic is not the one that the driver has claimed. That is
    asked when the cluster has all messages, and before readers see them: a topic that is created again later is empty.
    """

    def decide(entry: PartitionEntry | None) -> PartitionWork | None:
        check_claim(entry, delivery, register.topic, place.target)
        found = entry or PartitionEntry(topic_id=place.topic_id)
        if found.has(delivery):
            return None
        return PartitionWork(messages.produce, found.with_delivery(delivery), check=partial(check_topic, found))

    def check_topic(entry: PartitionEntry) -> None:
        if place.topic is not None and (topic_id := register.id_of(place.topic)) != entry.topic_id:
            who = f"app {delivery.app!r}: sink {delivery.sink!r}"
            raise recreated_error(who, place.topic, settings.servers, is_there=topic_id is not None)

    write_once(settings, (place.transactional_id, place.key), register, decide, describe_delivery(delivery))


def check_claim(entry: PartitionEntry | None, delivery: Delivery, register: str, target: str) -> None:
    """Raise if another driver than the one that sends this delivery owns the target."""
    held = None if entry is None else entry.claim
    if delivery.claim is None or held == delivery.claim:
        return
    who = f"app {delivery.app!r}: sink {delivery.sink!r}"
    if held is not None and held[0] > delivery.claim[0]:
        raise fenced_error(who, held[0], target)
    raise Incompatible(
        f"{who}: the register {register!r} does not hold the claim of this driver, record "
        f"{delivery.claim[0]}, but {'none' if held is None else f'record {held[0]} of another copy of the app'}: a "
        "copy of the state directory, or another app with this name, delivers with the same transactional ids, or "
        "the register was deleted. Run the app again, if no other copy of it runs. Another app needs another name, "
        'or another prefix in options={"transactional.id": …}.'
    )


def fenced_error(who: str, claim: int, target: str) -> Fenced:
    """Return the error of a driver that a newer one has replaced."""
    return Fenced(
        f"{who}: a newer driver, whose claim is record {claim}, delivers to {target} now. This driver has stopped; "
        "nothing is lost."
    )


def recreated_error(who: str, topic: str, servers: str, *, is_there: bool) -> Incompatible:
    """Return the error for a topic that is not the one that a driver has claimed."""
    what = "deleted and created again" if is_there else "deleted"
    return Incompatible(
        f"{who}: topic {topic!r} at {servers} was {what} while the app ran. Run the app again: what is missing in the "
        "topic is delivered again from the log."
    )


def describe_delivery(delivery: Delivery) -> str:
    """Return a delivery in words, for messages."""
    return f"sink {delivery.sink!r}, batch {delivery.batch}, partition {delivery.partition}"
