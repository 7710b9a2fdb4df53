"""The offsets of a consumer group, which tools for monitoring read. No app depends on them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from millpond.kafka.clients import KafkaSettings, Requests

log = logging.getLogger("millpond")

ANSWER_SECONDS = 30.0
WAIT_SECONDS = 0.2  # between two attempts
MOST_RETRIES = 25  # of the newest offsets, for example while the coordinator of the group is starting

GroupPosition = tuple[str, Mapping[tuple[str, int], int]]  # the name of the group, and an offset for each partition


class GroupOffsets:
    """Commits offsets in the background, the newest ones only. It is made again after a pickle."""

    def __init__(self, settings: KafkaSettings, requests: Requests, who: str) -> None:
        self._settings, self._requests, self._who = settings, requests, who
        self._next: GroupPosition | None = None  # to commit
        self._is_busy = False
        self._changed = threading.Condition()
        self._logged = ""

    def __reduce__(self) -> Any:
        return GroupOffsets, (self._settings, self._requests, self._who)

    def commit(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Send offsets to the cluster, after those that are on their way. Does not wait."""
        if not offsets:
            return
        with self._changed:
            self._next = (group, offsets)
            if not self._is_busy:
                self._is_busy = True
                threading.Thread(target=self._send_all, name="millpond-group-offsets", daemon=True).start()

    def wait(self, seconds: float) -> None:
        """Wait until the cluster has the last offsets, or has refused them."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_busy, seconds)

    def _send_all(self) -> None:
        retries = 0
        while True:
            with self._changed:
                position, self._next = self._next, None
                if position is None:
                    self._is_busy = False
                    self._changed.notify_all()
                    return
            try:
                self._send(position)
                retries = 0
            except Exception as error:
                retries += 1
                if retries > MOST_RETRIES or not _may_pass(error):
                    self._log_once(error)
                    continue
                with self._changed:
                    self._next = self._next or position
                    self._changed.wait(WAIT_SECONDS)

    def _send(self, position: GroupPosition) -> None:
        from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

        group, offsets = position
        places = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
        futures = self._requests.client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)])
        for future in futures.values():
            # Not by `Requests.wait`, which tells one thread what all have to know
            for place in future.result(ANSWER_SECONDS).topic_partitions or ():
                if place.error is not None:
                    raise KafkaException(place.error)

    def _log_once(self, error: Exception) -> None:
        text = self._settings.scrub(f"{type(error).__name__}: {error}")
        if text != self._logged:
            self._logged = text
            log.warning("%s: the offsets of the consumer group were not committed: %s", self._who, text)


def _may_pass(error: Exception) -> bool:
    """Return whether the next attempt may succeed: a coordinator starts, or moves, or is slow."""
    from confluent_kafka import KafkaError, KafkaException

    if not isinstance(error, KafkaException):
        return isinstance(error, TimeoutError)
    starting = (
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    )
    return error.args[0].retriable() or error.args[0].code() in starting
