"""What a cluster has of some topics: their partitions, and the offsets that can be read. Asked by the driver."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from millpond.clock import elapsed
from millpond.errors import Unavailable
from millpond.kafka.clients import RETRY_SECONDS, Requests, show_names
from millpond.timing import EPOCH

PATTERN_SECONDS = 2.0  # after which the topics of a pattern are looked up again
LISTING_SECONDS = 2.0  # that a list of all topics may take
ATTEMPTS = 3  # at the ends of topics that are being deleted or created


@dataclass(frozen=True)
class TopicPartitionId:
    """One partition of one topic. A topic that is deleted and created again has another id.

    >>> TopicPartitionId("orders", 3, "h7Qx").place
    'orders/3'
    """

    topic: str
    partition: int
    topic_id: str

    @property
    def place(self) -> str:
        """The name of the partition in positions. Names of topics have no slash."""
        return f"{self.topic}/{self.partition}"


Offsets = dict[TopicPartitionId, int]


class Topics:
    """The topics that a source reads: names, or a pattern that begins with `^`."""

    def __init__(self, requests: Requests, topics: Sequence[str] | re.Pattern[str], isolation: str) -> None:
        self._requests, self._topics, self._isolation = requests, topics, isolation
        self._names: list[str] = []
        self._looked_up = -PATTERN_SECONDS
        self._known: dict[str, list[TopicPartitionId]] = {}
        self._checks = 0  # the number of the next call of `ids_now`

    def __reduce__(self) -> Any:
        return Topics, (self._requests, self._topics, self._isolation)

    def ends(self) -> Offsets:
        """Return the end offset of every partition: one more than that of the newest message that can be read.

        The offsets are of the topics that have these ids: a topic that was created again in between is asked again.
        """
        self._checks += 1  # what follows is about later reads
        names = self._current_names()
        for _ in range(ATTEMPTS):
            known = self._known if self._known.keys() >= set(names) else self._describe(names)
            ends = self._ask("latest", [part for name in names for part in known[name]])
            self._known = self._describe(names)
            if ends is not None and all(self._known[name] == known[name] for name in names):
                return ends
        raise self._changing()

    def firsts(self, partitions: Iterable[TopicPartitionId]) -> Offsets:
        """Return the offset of the oldest message of some partitions."""
        return self._ask_existing("earliest", partitions)

    def offsets_at(self, time: datetime, partitions: Iterable[TopicPartitionId]) -> Offsets:
        """Return the offsets of the first messages that are not older than a time; -1 if all are older.

        Kafka finds no time before 1970: that of such a time is the oldest message.
        """
        return self._ask_existing(time if time >= EPOCH else "earliest", partitions)

    def find(self, topic: str, partition: int) -> TopicPartitionId | None:
        """Return a partition as it is now; None if it does not exist."""
        return next((part for part in self._describe([topic])[topic] if part.partition == partition), None)

    def ids_now(self, topics: Sequence[str]) -> dict[str, str | None]:
        """Return the ids of topics, as they are after this call began; None for a topic that does not exist.

        No answer to an earlier question counts. Only after `Unavailable` the next call waits for the same answer.
        """
        found = self._describe(topics, self._checks)
        self._checks += 1
        return {topic: parts[0].topic_id if parts else None for topic, parts in found.items()}

    def end_of(self, part: TopicPartitionId) -> int:
        """Return the end offset of one partition."""
        return self._ask_existing("latest", [part])[part]

    def forget(self) -> None:
        """Ask again what was asked before and not answered."""
        self._requests.forget()
        self._looked_up = -PATTERN_SECONDS

    def _ask_existing(self, what: Any, partitions: Iterable[TopicPartitionId]) -> Offsets:
        found = self._ask(what, list(partitions))
        if found is None:
            raise self._changing()
        return found

    def _changing(self) -> Unavailable:
        return Unavailable("Kafka: a topic is being deleted or created", retry_after=RETRY_SECONDS)

    def _ask(self, what: Any, partitions: Sequence[TopicPartitionId]) -> Offsets | None:
        """Return one offset of each partition; None if a topic or partition is gone."""
        if not partitions:
            return {}
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        if isinstance(what, datetime):
            spec = OffsetSpec.for_timestamp(-((EPOCH - what) // timedelta(milliseconds=1)))  # rounded up
        else:
            spec = OffsetSpec.latest() if what == "latest" else OffsetSpec.earliest()
        level = "READ_COMMITTED" if self._isolation == "read_committed" else "READ_UNCOMMITTED"
        asked = {TopicPartition(part.topic, part.partition): part for part in partitions}
        answers = self._requests.ask(
            ("offsets", str(what), tuple(partitions)),
            lambda: self._requests.client.list_offsets(
                {name: spec for name in asked}, isolation_level=getattr(IsolationLevel, level)
            ),
            "asking for offsets",
        )
        found = {asked[name]: answer.offset for name, answer in answers.items() if answer is not None}
        return found if len(found) == len(asked) else None

    def _current_names(self) -> list[str]:
        if not isinstance(self._topics, re.Pattern):
            return list(self._topics)
        if elapsed() - self._looked_up >= PATTERN_SECONDS:
            listed = self._requests.list_topics("looking for topics", LISTING_SECONDS)
            self._names = sorted(name for name in listed.topics if self.includes(name))
            self._looked_up = elapsed()
        return self._names

    def includes(self, name: str) -> bool:
        """Return whether the user has named a topic, or it matches the pattern.

        Topics of Kafka itself must be named, as in `^__consumer`.
        """
        if not isinstance(self._topics, re.Pattern):
            return name in self._topics
        is_internal = name.startswith("__") and not self._topics.pattern.startswith("^__")
        return not is_internal and self._topics.match(name) is not None

    def _describe(self, names: Sequence[str], check: int | None = None) -> dict[str, list[TopicPartitionId]]:
        """Return the partitions of each topic. A topic that does not exist has none.

        An answer that is still to come is waited for, if it is to the same names and `check`.
        """
        if not names:
            return {}
        from confluent_kafka import TopicCollection

        answers = self._requests.ask(
            ("topics", tuple(names), check),
            lambda: self._requests.client.describe_topics(TopicCollection(list(names))),
            f"looking for topic {show_names(names)}",
        )
        found: dict[str, list[TopicPartitionId]] = {}
        for name, topic in answers.items():
            parts = [] if topic is None else [(part.id, str(topic.topic_id)) for part in topic.partitions]
            found[name] = [TopicPartitionId(name, number, topic_id) for number, topic_id in sorted(parts)]
        return found

    def missing(self, ends: Mapping[TopicPartitionId, int]) -> set[str]:
        """Return the topics that the user named and that do not exist."""
        named = set() if isinstance(self._topics, re.Pattern) else set(self._topics)
        return named - {part.topic for part in ends}
