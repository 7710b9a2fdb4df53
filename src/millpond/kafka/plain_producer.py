"""A producer without transactions, and those that the sinks of one process share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.errors import InvalidUse
from millpond.kafka.batch_sizes import batch_config, is_sent_alone
from millpond.kafka.clients import ErrorWatch, KafkaSettings, as_our_errors, import_kafka
from millpond.kafka.outgoing import OutgoingMessages, TooLargeToQueue
from millpond.kafka.transactions import PRODUCER_DEFAULTS, RefusedMessage, TooLarge, message_error

if TYPE_CHECKING:
    from confluent_kafka import Producer

FLUSH_SECONDS = 60.0


class PlainProducer:
    """A producer without transactions."""

    def __init__(self, settings: KafkaSettings, *, is_idempotent: bool = True, batch_level: int = 0) -> None:
        kafka = import_kafka()
        self._watch, self._batch_level = ErrorWatch(settings), batch_level
        self._refused: RefusedMessage | None = None  # the first message that was not taken
        config = settings.with_defaults({"enable.idempotence": is_idempotent, "acks": "all", **PRODUCER_DEFAULTS})
        self._config = {**config, **batch_config(batch_level, config)}
        with as_our_errors(self._watch, "connecting"):
            self._producer: Producer = kafka.Producer(
                {**self._config, "error_cb": self._watch, "on_delivery": self._note_failure}
            )

    def _note_failure(self, error: Any, message: Any) -> None:
        if error is None or error.code() in (error._PURGE_QUEUE, error._PURGE_INFLIGHT):
            return  # purged after a delivery that has failed
        if self._refused is None:
            self._refused = RefusedMessage.of(error, message)

    def write(self, messages: OutgoingMessages, doing: str) -> None:
        """Write messages, and wait until the cluster has them all.

        Raises `TooLarge` if a batch was refused for its size: smaller ones may be taken.
        """
        with as_our_errors(self._watch, doing):
            try:
                messages.produce(self._producer)
            except TooLargeToQueue as error:
                raise InvalidUse(f"{doing}: {error}") from None
            self._flush(doing, is_alone=False)

    def put(self, topic: str, partition: int, key: bytes, value: bytes | None) -> None:
        """Write one message."""
        doing = f"writing to topic {topic!r}"
        with as_our_errors(self._watch, doing):
            self._producer.produce(topic, value, key, partition)
            self._flush(doing, is_alone=True)

    def _flush(self, doing: str, is_alone: bool) -> None:
        left = self._producer.flush(FLUSH_SECONDS)
        if left:
            self._producer.purge()
        refused, self._refused = self._refused, None
        self._watch.check(doing)
        if refused is not None:
            found = message_error(self._watch, refused.error, f"{doing}: {refused.what}")
            is_alone = is_alone or is_sent_alone(self._batch_level, self._config, refused.size)
            raise TooLarge(str(found)) if refused.is_too_large and not is_alone else found
        if left:
            raise self._watch.timeout(doing)

    def close(self) -> None:
        """Give the producer up, with what it has not sent."""
        self._producer.purge()


class PlainProducers:
    """The producers of this process, which are used again for the next batch."""

    def __init__(self) -> None:
        self._producers: dict[tuple[str, int], PlainProducer] = {}  # settings, level of batches
        self._levels: dict[tuple[str, str], int] = {}  # settings, topic → level of batches that it takes

    def write(self, settings: KafkaSettings, topic: str, messages: OutgoingMessages, doing: str) -> None:
        """Write messages. `topic` is empty if each of them names its own.

        After a batch that was too large for the topic all messages are written again, so that those of one key stay in
        order: some are there twice then.
        """
        place = (settings.identity, topic)
        while True:
            level = self._levels.get(place, 0)
            producer = self._producers.get((settings.identity, level))
            if producer is None:
                producer = PlainProducer(settings, batch_level=level)
                self._producers[settings.identity, level] = producer
            try:
                producer.write(messages, doing)
                return
            except TooLarge:
                self._levels[place] = level + 1


plain_producers = PlainProducers()
