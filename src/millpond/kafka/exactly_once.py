"""One delivery to Kafka: its messages and its entry in the register in one transaction, unless it is there already."""

from __future__ import annotations

from dataclasses import dataclass

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
    topic_id: str | None
    target: str  # the topic in words


def deliver_once(
    settings: KafkaSettings, register: Register, place: DeliveryPlace, delivery: Delivery, messages: OutgoingMessages
) -> None:
    """Write the messages of a delivery, unless the register has it. Raises `Fenced` for an older claim."""

    def decide(entry: PartitionEntry | None) -> PartitionWork | None:
        check_claim(entry, delivery, register.topic, place.target)
        found = entry or PartitionEntry(topic_id=place.topic_id)
        if found.has(delivery):
            return None
        return PartitionWork(messages.produce, found.with_delivery(delivery))

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


def describe_delivery(delivery: Delivery) -> str:
    """Return a delivery in words, for messages."""
    return f"sink {delivery.sink!r}, batch {delivery.batch}, partition {delivery.partition}"
