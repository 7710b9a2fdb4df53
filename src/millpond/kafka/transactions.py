"""The transactional producers of one process: one for each sink and partition.

A producer with a transactional id fences every other with the same id, in any process. So the process that has made
the newest one knows what the register holds for its partition, until it is fenced itself.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millpond.clock import elapsed
from millpond.errors import InvalidUse, MillpondError, Unavailable, short_repr
from millpond.kafka.batch_sizes import batch_config, is_sent_alone
from millpond.kafka.clients import RETRY_SECONDS, ErrorWatch, KafkaSettings, as_our_errors, import_kafka
from millpond.kafka.outgoing import TooLargeToQueue
from millpond.kafka.register import (
    EntryKey,
    PartitionEntry,
    Register,
    encode_entry,
    register_partition,
)

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer

log = logging.getLogger("millpond")

TRANSACTION_SECONDS = 60.0
BROKER_SECONDS = 30.0
TRANSACTION_COMMIT_SECONDS = 1.0  # a call that takes longer is repeated, and goes on
ABORT_SECONDS = 5.0  # librdkafka may wait much longer after a message was refused
MOST_TAKEOVERS = 8  # of one delivery, from other processes that deliver the same partition
MOST_IDLE = 64  # producers of a process

PRODUCER_DEFAULTS = {
    "linger.ms": 5,
    "queue.buffering.max.messages": 1_000_000,
    "message.max.bytes": 128 << 20,  # the broker decides what is too large
    "partitioner": "murmur2_random",  # as Java's producer does
    "delivery.report.only.error": True,
}

Produce = Callable[["Producer"], None]


@dataclass(frozen=True)
class RefusedMessage:
    """A message that was not written, in words, with the reason."""

    error: KafkaError
    what: str
    size: int  # of key and value, in bytes

    @classmethod
    def of(cls, error: KafkaError, message: Any) -> RefusedMessage:
        """Return what a person needs to find the row of the message."""
        value, key = message.value() or b"", message.key()
        what = f"a message of {len(value)} bytes to topic {message.topic()!r}, with key {short_repr(key)}"
        return cls(error, what, len(value) + len(key or b""))

    @property
    def is_too_large(self) -> bool:
        """Whether the batch that the message was in is larger than the topic allows."""
        return bool(self.error.code() == self.error.MSG_SIZE_TOO_LARGE)


def message_error(watch: ErrorWatch, error: KafkaError, doing: str) -> MillpondError:
    """Return our error for a message that was not written: `InvalidUse` if it will never be."""
    from confluent_kafka import KafkaError as E

    too_large = "Raise max.message.bytes of the topic, or run once with value=<a function that returns fewer bytes>"
    remedies = {
        E.INVALID_RECORD: "A compacted topic takes no message without a key: give key=",
        E.INVALID_TIMESTAMP: "Check timestamp=, and message.timestamp.before.max.ms and .after.max.ms of the topic",
        E.MSG_SIZE_TOO_LARGE: too_large,
        E.RECORD_LIST_TOO_LARGE: too_large,
        E._UNKNOWN_PARTITION: "The topic does not have the partition that partition= returns",
    }
    remedy = remedies.get(error.code())
    if remedy is not None:
        remedy += ". The outputs are committed and are not computed again: the next run delivers them"
    return watch.error_of(error, doing, remedy)


@dataclass(frozen=True)
class PartitionWork:
    """What one transaction writes: messages, the entry of the partition, and entries of the register to remove.

    `check` is called when the cluster has all of it. If it raises, the transaction is aborted.
    """

    produce: Produce
    entry: PartitionEntry
    remove: Sequence[EntryKey] = ()
    check: Callable[[], None] | None = None


class TooLarge(Exception):
    """The broker has refused a batch of messages for its size. A smaller batch may be small enough."""


class FencedProducer(Exception):
    """Another producer with the same transactional id has taken over, or this one cannot be used any more."""


class PartitionWriter:
    """The transactional producer of one sink and partition, and the entry of that partition in the register."""

    def __init__(
        self, settings: KafkaSettings, transactional_id: str, key: EntryKey, register: Register, *, batch_level: int
    ) -> None:
        kafka = import_kafka()
        self._watch, self._key, self._register = ErrorWatch(settings), key, register
        self._batch_level = batch_level
        self._refused: RefusedMessage | None = None  # the first message that was not taken
        own = {"transaction.timeout.ms": round(TRANSACTION_SECONDS * 1000), **PRODUCER_DEFAULTS}
        config = {**settings.with_defaults(own), "transactional.id": transactional_id}
        self._config = {**config, **batch_config(batch_level, config)}
        doing = f"opening the transactional producer {transactional_id!r}"
        with as_our_errors(self._watch, doing):
            self._producer: Producer = kafka.Producer(
                {**self._config, "error_cb": self._watch, "on_delivery": self._note_failure}
            )
        # Without a connection at that time, librdkafka asks for the coordinator every half second.
        with contextlib.suppress(kafka.KafkaException):
            self._producer.list_topics(timeout=1.0)  # of one topic only is not enough
        self._init(doing)
        self.entry = register.find(key)

    def _init(self, doing: str) -> None:
        kafka = import_kafka()
        began = elapsed()
        while True:
            try:
                self._producer.init_transactions(1.0)
                self._watch.succeed()
                return
            except kafka.KafkaException as error:
                with contextlib.suppress(kafka.KafkaException):  # it raises a fatal error, which `error` says, too
                    self._producer.poll(0)
                self._watch.check(doing)
                waited, found = elapsed() - began, error.args[0]
                if not found.retriable():
                    raise self._watch.error_of(found, doing) from error
                if waited > BROKER_SECONDS or (self._watch.is_down and waited > 3.0):
                    raise self._watch.timeout(doing) from error

    def _note_failure(self, error: KafkaError | None, message: Any) -> None:
        if error is None or error.code() in (error._PURGE_QUEUE, error._PURGE_INFLIGHT):
            return  # purged because the transaction has failed, which `commit_transaction` says
        if self._refused is None:
            self._refused = RefusedMessage.of(error, message)

    def write(self, work: PartitionWork, doing: str) -> None:
        """Write messages and the entry of the partition in one transaction.

        Raises FencedProducer if the outcome is to be read from the register by a new producer, `Unavailable` if the
        transaction was aborted, `TooLarge` or `InvalidUse` if a message cannot be written.
        """
        kafka = import_kafka()
        self._refused = None
        try:
            self._producer.begin_transaction()
            # The entry goes first and alone: a producer that was fenced fails here, before all rows are queued.
            self._put(self._key, encode_entry(work.entry))
            for key in work.remove:
                self._put(key, None)
            self._producer.flush(BROKER_SECONDS)
            work.produce(self._producer)
            if work.check is not None and self._flush():
                work.check()
            self._commit()
        except TooLargeToQueue as error:
            self._end()
            raise InvalidUse(f"{doing}: {error}") from None
        except kafka.KafkaException as error:
            self._abort(error.args[0], doing)
        except (kafka.KafkaError, SystemError) as error:  # raised by `flush` and `poll` of a producer that was fenced
            raise FencedProducer(str(error)) from error
        except BaseException:  # an open transaction would keep readers waiting, also those of the register
            self._end()
            raise
        self.entry = work.entry

    def _put(self, key: EntryKey, value: bytes | None) -> None:
        number = register_partition(key, self._register.partitions)
        self._producer.produce(self._register.topic, value, encode_entry(key), partition=number)

    def _flush(self) -> bool:
        """Wait until the cluster has all messages; False if it has not, which `commit_transaction` explains."""
        began = elapsed()
        while self._producer.flush(1.0):
            if self._refused is not None or elapsed() - began > 2 * TRANSACTION_SECONDS:
                return False
        return self._refused is None

    def _commit(self) -> None:
        kafka = import_kafka()
        began = elapsed()
        while True:
            try:
                self._producer.commit_transaction(TRANSACTION_COMMIT_SECONDS)
                return
            except kafka.KafkaException as error:
                # After a message was refused, librdkafka waits in vain for those behind it.
                is_failed = self._refused is not None or not error.args[0].retriable()
                if is_failed or elapsed() - began > 2 * TRANSACTION_SECONDS:
                    raise

    def _abort(self, error: KafkaError, doing: str) -> None:
        """Abort the transaction, and raise what a caller can do about the error.

        After a message was refused, every call says only that the transaction has failed. Which message it was, and
        why, is in the delivery reports, all of which have come when the transaction is aborted.
        """
        is_usable = not error.fatal() and self._try_to_abort()
        refused = self._refused
        if refused is None:
            found = message_error(self._watch, error, doing)
        else:
            found = message_error(self._watch, refused.error, f"{doing}: {refused.what}")
        if isinstance(found, Unavailable) and not is_usable:
            raise FencedProducer(str(found))
        if not is_usable:  # an open transaction would keep readers waiting
            self._abort_with_successor()
        is_alone = refused is None or is_sent_alone(self._batch_level, self._config, refused.size)
        raise TooLarge(str(found)) if refused is not None and refused.is_too_large and not is_alone else found

    def _end(self) -> None:
        """Abort the transaction, if need be with another producer."""
        if not self._try_to_abort():
            self._abort_with_successor()

    def _try_to_abort(self) -> bool:
        """Abort the transaction, and return whether the producer can be used again."""
        kafka = import_kafka()
        try:
            self._producer.abort_transaction(ABORT_SECONDS)
        except (kafka.KafkaException, kafka.KafkaError, SystemError):
            return False
        return True

    def _abort_with_successor(self) -> None:
        """Abort the transaction with another producer, if that is possible now."""
        kafka = import_kafka()
        self._producer.purge()
        with contextlib.suppress(kafka.KafkaException):
            successor = kafka.Producer(self._config)
            successor.list_topics(timeout=1.0)
            successor.init_transactions(ABORT_SECONDS)

    def close(self) -> None:
        """Give the producer up, without waiting. The next one with its id aborts a transaction that is open."""
        self._producer.purge()


WriterId = tuple[str, str, str, EntryKey]  # settings, register, transactional id, entry


class Writers:
    """The writers of this process, which are used again for the next batch. Threads share them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[WriterId, PartitionWriter] = {}
        self.batch_levels: dict[WriterId, int] = {}  # of those whose topics take only smaller batches
        self.takeovers = 0  # how often another process had taken a partition over

    def take(self, name: WriterId) -> PartitionWriter | None:
        """Return the idle writer of a partition, which is not idle any more; None if there is none."""
        with self._lock:
            return self._idle.pop(name, None)

    def keep(self, name: WriterId, writer: PartitionWriter) -> None:
        """Keep a writer for the next batch; the oldest makes room."""
        with self._lock:
            self._idle[name] = writer
            oldest = self._idle.pop(next(iter(self._idle))) if len(self._idle) > MOST_IDLE else None
        if oldest is not None:
            oldest.close()


writers = Writers()


def write_once(
    settings: KafkaSettings,
    names: tuple[str, EntryKey],
    register: Register,
    decide: Callable[[PartitionEntry | None], PartitionWork | None],
    doing: str,
) -> None:
    """Write to a partition what `decide` returns for its entry, in one transaction; nothing if that is None.

    Spark may give the next batch of a partition to another process, whose producer fences the one here. Then a new
    producer is made and the register is read again: it shows whether the transaction was committed.
    """
    transactional_id, key = names
    name = (settings.identity, register.topic, transactional_id, key)
    why = ""
    for _ in range(MOST_TAKEOVERS):
        writer = writers.take(name)
        if writer is not None and _is_refused(decide, writer.entry):
            # The entry is what this process wrote last, perhaps for a driver before. A process that slept meanwhile
            # must not abort the transaction of a newer driver: it reads the register before it makes a new producer.
            writer.close()
            writer = None
            decide(register.find(key))
        if writer is None:
            level = writers.batch_levels.get(name, 0)
            writer = PartitionWriter(settings, transactional_id, key, register, batch_level=level)
        try:
            work = decide(writer.entry)
            if work is not None:
                writer.write(work, doing)
        except FencedProducer as error:
            writers.takeovers += 1
            why = str(error)
            log.debug("%s: take-over %d: %s", doing, writers.takeovers, error)
            writer.close()
        except TooLarge:
            writers.batch_levels[name] = writers.batch_levels.get(name, 0) + 1
            writer.close()
        except BaseException:
            writer.close()
            raise
        else:
            writers.keep(name, writer)
            return
    raise Unavailable(
        f"{doing}: {MOST_TAKEOVERS} transactions failed. Another process delivers with the transactional id "
        f"{transactional_id!r}, or a transaction takes longer than transaction.timeout.ms. The last error: {why}",
        retry_after=RETRY_SECONDS,
    )


def _is_refused(decide: Callable[[PartitionEntry | None], object], entry: PartitionEntry | None) -> bool:
    try:
        decide(entry)
    except MillpondError:
        return True
    return False
