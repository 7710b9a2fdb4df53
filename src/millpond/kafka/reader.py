"""Reads messages of one partition of a topic after the other, in a worker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millpond.clock import elapsed
from millpond.errors import MillpondError, Unavailable
from millpond.kafka.clients import (
    RETRY_SECONDS,
    ClientPool,
    ErrorWatch,
    KafkaSettings,
    as_our_errors,
    make_consumer,
    missing_topic_codes,
)

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

RUN_MESSAGES = 50_000
FIRST_RUN_MESSAGES = 1_000  # of a chunk while the size of messages is not known
RUN_BYTES = 16 << 20
POLL_SECONDS = 0.05
PATIENCE_SECONDS = 2.0  # without any message, before the partition counts as unavailable

# A consumer waits for `fetch.wait.max.ms` before it looks at another partition, and for `fetch.queue.backoff.ms` after
# its queue was full: with librdkafka's own values every split would take half a second or more.
CONSUMER_DEFAULTS = {
    "group.id": "millpond",  # it is never joined
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 5,
    "fetch.queue.backoff.ms": 2,
    "fetch.error.backoff.ms": 100,
    "fetch.message.max.bytes": 4 << 20,
    "queued.min.messages": 100_000,
    "queued.max.messages.kbytes": 32 << 10,
}

readers = ClientPool()  # of this process


class OffsetsGone(Exception):
    """The offset to read is not in the partition any more, or not yet, or the partition is gone."""


@dataclass
class MessageRun:
    """Consecutive messages of a partition, and the offset to go on from."""

    messages: list[Message]
    next_offset: int


class PartitionReader:
    """A consumer that is given one partition at a time. It belongs to no consumer group."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._watch = ErrorWatch(settings, is_connected=True, has_group=False)  # the driver has reached the cluster
        self._consumer = make_consumer(settings, self._watch, CONSUMER_DEFAULTS)
        # Topic, partition, and the offset of the next message in its queue
        self._at: tuple[str, int, int] | None = None
        self._row_bytes = 0.0
        self.is_waiting = False  # the broker did not answer in time, but the same reader can wait on

    def read(self, topic: str, partition: int, start: int, stop: int, *, has_more: bool) -> Iterator[MessageRun]:
        """Yield all messages from `start` up to `stop`, which must exist or have existed.

        Offsets may be missing, because messages were compacted or aborted, or are markers of transactions. So the end
        is known by a later message, or by the end of the partition. With `has_more` the reader goes on to fetch what
        follows, for the next batch. Raises `OffsetsGone`, or `Unavailable`; after the latter, a read that begins at the
        same offset waits for the same answer.
        """
        if start >= stop:
            return
        doing = f"reading topic {topic!r}, partition {partition}, offset {start}"
        if self._at != (topic, partition, start):
            self._assign(topic, partition, start, doing)
        self._at, self.is_waiting = None, False
        at, quiet_since = start, elapsed()
        while at < stop:
            with as_our_errors(self._watch, doing):
                got = self._consume(self._most_messages(stop - at), stop)
            at_end = self._check(got, doing)
            good = [message for message in got if message.error() is None]
            inside = good if not good or good[-1].offset() < stop else [m for m in good if m.offset() < stop]
            is_done = len(inside) < len(good) or (at_end is not None and at_end >= stop)
            if inside:
                at, quiet_since = inside[-1].offset() + 1, elapsed()
                self._watch.succeed()
                self._learn(inside)
            elif elapsed() - quiet_since > PATIENCE_SECONDS:
                self._at, self.is_waiting = (topic, partition, at), True
                raise self._watch.timeout(doing)
            if is_done:
                at = stop
            if inside or is_done:
                yield MessageRun(inside, at)
            if is_done and good and good[-1].offset() >= stop:
                return  # messages beyond the end were taken from the queue: the next read begins afresh
        if has_more and at_end is None:
            self._at = (topic, partition, stop)
        else:
            self._consumer.unassign()  # at the end of the partition, a consumer would ask the broker again and again

    def _consume(self, most: int, stop: int) -> list[Message]:
        """Return at most this many messages; fewer at the end of the partition, past `stop`, or after a while.

        The consumer itself would wait until it has as many as it was asked for, and offsets may be missing.
        """
        got: list[Message] = []
        until = elapsed() + POLL_SECONDS
        while len(got) < most:
            more = self._consumer.consume(1, timeout=max(0.0, until - elapsed()))
            if more and most - len(got) > 1:
                more += self._consumer.consume(most - len(got) - 1, timeout=0)
            got += more
            if not more or more[-1].error() is not None or more[-1].offset() >= stop:
                break
        return got

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    def _assign(self, topic: str, partition: int, start: int, doing: str) -> None:
        from confluent_kafka import TopicPartition

        with as_our_errors(self._watch, doing):
            self._consumer.assign([TopicPartition(topic, partition, start)])

    def _most_messages(self, left: int) -> int:
        most = FIRST_RUN_MESSAGES if not self._row_bytes else max(1, int(RUN_BYTES / self._row_bytes))
        return min(left, most, RUN_MESSAGES)

    def _learn(self, messages: list[Message]) -> None:
        sample = messages[:: max(1, len(messages) // 100)]
        self._row_bytes = max(1.0, sum(len(message) for message in sample) / len(sample))

    def _check(self, got: list[Message], doing: str) -> int | None:
        """Return the end of the partition, if it was reached. Raises errors that do not go away by waiting."""
        from confluent_kafka import KafkaError

        found = None
        for message in got:
            error = message.error()
            if error is None:
                continue
            if error.code() == KafkaError._PARTITION_EOF:
                found = message.offset()
            elif error.code() in _gone_codes():
                raise OffsetsGone(error.str())
            else:
                self._raise_permanent(error, doing)
        self._watch.check(doing)
        return found

    def _raise_permanent(self, error: KafkaError, doing: str) -> None:
        found: MillpondError = self._watch.error_of(error, doing)
        if error.fatal():
            raise Unavailable(str(found), retry_after=RETRY_SECONDS)
        if not isinstance(found, Unavailable):
            raise found


def _gone_codes() -> set[int]:
    from confluent_kafka import KafkaError

    return {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, *missing_topic_codes()}


def take_reader(settings: KafkaSettings) -> PartitionReader:
    """Return a reader that is not in use, or a new one."""
    return readers.take(settings.identity, lambda: PartitionReader(settings))


def put_back_reader(settings: KafkaSettings, reader: Any) -> None:
    """Keep a reader for the next task of this process."""
    readers.put_back(settings.identity, reader)
