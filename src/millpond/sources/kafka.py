"""A source of messages in Kafka topics."""

from __future__ import annotations

import contextlib
import logging
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from millpond.clock import elapsed
from millpond.errors import InvalidUse, MillpondError, Unavailable, short_repr
from millpond.kafka.clients import KafkaSettings, Requests, show_names
from millpond.kafka.group_offsets import GroupOffsets
from millpond.kafka.message_formats import Format, check_format, make_decoder
from millpond.kafka.reader import MessageRun, OffsetsGone, PartitionReader, put_back_reader, take_reader
from millpond.kafka.schema_registry import RegistrySettings
from millpond.kafka.topics import Offsets, TopicPartitionId, Topics
from millpond.shares import allot_rows
from millpond.sources.base import BadRow, Chunk, JsonLines, Limit, Split, TooMuch
from millpond.steps.failure import FAULTS
from millpond.timing import EPOCH

if TYPE_CHECKING:
    from confluent_kafka import Message

log = logging.getLogger("millpond")

StartOffsets = Mapping[str, Mapping[int, int]]  # topic → partition → offset
Start = Literal["earliest", "latest"] | datetime | StartOffsets

PIECE_ROWS = 50_000  # of a split: several tasks read a long partition
FIRST_ROW_BYTES = 200.0  # until a batch has told
SPARSE = 0.5  # messages per offset, below which a plan goes by messages, not by offsets
LARGEST_READ = 64 << 20  # bytes that a split may have beyond what was planned
NO_TIME = -1
LAST_ANSWER_SECONDS = 2.0  # that the end of a run waits for the offsets of the group
MISSING_SECONDS = 2.0  # after which a topic that is not found does not exist: a broker may not know it yet


@dataclass(frozen=True)
class KafkaOptions:
    """What a user says of the messages."""

    value: Format
    key: Format
    metadata: str | None
    registry: RegistrySettings | None


@dataclass(frozen=True)
class OffsetRange:
    """What can be read of a partition now: from `start` up to `end`."""

    part: TopicPartitionId
    start: int
    end: int
    origin: int  # the first offset that was ever read of it
    lost: int = 0  # messages that were gone before they were read

    @property
    def size(self) -> int:
        """How many offsets there are, at most as many messages."""
        return self.end - self.start


class KafkaSource:
    """Made by `millpond.sources.kafka`; reads each partition of the topics in the order of its offsets.

    A position maps `topic/partition` to the next offset, with the id of the topic. Planning asks the cluster for the
    ends of all partitions, in two or three requests. Tasks read without a consumer group.

    >>> from millpond.sources import kafka
    >>> kafka("orders", servers="localhost:9092", options={"sasl.password": "tea"})
    kafka('orders', servers='localhost:9092', options=['sasl.password'])
    """

    has_times = True

    def __init__(
        self, topics: str | Sequence[str], settings: KafkaSettings, start: Start, options: KafkaOptions, on_loss: str
    ) -> None:
        self._topics = topics
        self._settings, self._start, self._options, self._on_loss = settings, start, options, on_loss
        self._requests = Requests(settings)
        self.group: str | None = None
        self._row_bytes: float | None = None  # of the last batch
        self._rows = 0  # of the last batch
        self._read_to: Mapping[str, Any] | None = None  # the position of the last commit
        self._density = 1.0  # messages per offset
        self._seen: dict[TopicPartitionId, int] = {}  # the ends of the last plan
        self._missing: dict[str, float] = {}  # topic → since when it is not found
        self._is_snapshot = False
        self._snapshot: dict[str, int] | None = None  # place → its end when the snapshot was taken
        self._group_offsets = GroupOffsets(settings, self._requests, repr(self))

    # --- on the driver ---

    @cached_property
    def _lookup(self) -> Topics:
        isolation = str(self._settings.options.get("isolation.level", "read_committed"))
        if isinstance(self._topics, str) and self._topics.startswith("^"):
            return Topics(self._requests, re.compile(self._topics), isolation)
        return Topics(self._requests, [self._topics] if isinstance(self._topics, str) else self._topics, isolation)

    def plan(self, position: Mapping[str, Any], limit: Limit, now: float) -> Sequence[Split]:
        """Plan the next messages of all partitions, each with a fair share of the limit.

        Raises InvalidUse if a topic does not exist or messages are gone, and Unavailable if no broker answers.
        """
        ends = self._lookup.ends()
        self._check_topics(position, ends)
        if not ends and not position and self._start == "latest":  # a pattern: what comes after this plan is read
            return [Split(str(self._topics), 0, 0, rows=0, detail={"topic_id": "", "from": 0, "lost": 0})]
        ranges = self._ranges(position, ends)
        self._seen.update(ends)
        return self._splits(ranges, limit)

    def plan_to(self, position: Mapping[str, Any], end: Mapping[str, Any], limit: Limit, now: float) -> Sequence[Split]:
        """Plan the next messages before `end`. Raises InvalidUse if some of them are gone."""
        wanted = {place: entry for place, entry in _partitions(end).items() if position.get(place) != entry}
        ends = self._lookup.ends()
        there = {part.place: part for part in ends}
        firsts = self._lookup.firsts(part for place, part in there.items() if place in wanted)
        ranges = []
        for place, entry in wanted.items():
            before = position.get(place)
            is_same = before is not None and before["topic_id"] == entry["topic_id"]
            begin = before["offset"] if before is not None and is_same else entry["from"]
            part = there.get(place)
            if begin >= entry["offset"]:
                continue
            if not self._lookup.includes(topic_of(place)):
                gap = "topics= no longer has the topic"
            elif part is None or part.topic_id != entry["topic_id"]:
                gap = "the topic was deleted since"
            elif firsts[part] > begin or ends[part] < entry["offset"]:
                gap = f"the partition has offsets {firsts[part]} to {ends[part] - 1}"
            else:
                ranges.append(OffsetRange(part, begin, entry["offset"], entry["from"], entry.get("lost", 0)))
                continue
            raise InvalidUse(
                f"sources.kafka: {place}: the topic no longer reaches back far enough: expected offsets {begin} to "
                f"{entry['offset'] - 1}, which were read before, and {gap}."
            )
        return self._splits(ranges, limit, is_bounded=True)

    def as_of(self, now: float) -> KafkaSource:
        """Return the same source without messages and partitions that are added from now on.

        If no broker answers, it is without those that are added after its first plan.
        """
        made = copy(self)
        made._is_snapshot, made._snapshot = True, None
        self._lookup.forget()  # an answer to an earlier run is too old
        with contextlib.suppress(Unavailable):
            made._snapshot = {part.place: end for part, end in self._lookup.ends().items()}
        return made

    def learned(self, rows: int, bytes: int) -> None:
        """Take note of the size of messages."""
        self._rows, self._row_bytes = rows, max(1.0, bytes / rows)

    def check_read(self, position: Mapping[str, Any]) -> None:
        """Raise TooMuch if a topic of which a batch has read was deleted since it was planned.

        Messages are fetched by the name of their topic: if it was created again, they may be those of the new one,
        under the offsets of the old one. An id is never used twice, so a topic that still has the id of the plan after
        the last message was fetched had it all the time.
        """
        ids = {topic_of(place): entry["topic_id"] for place, entry in _partitions(position).items()}
        for topic, found in self._lookup.ids_now(sorted(ids)).items():
            if found != ids[topic]:
                raise TooMuch(f"sources.kafka: topic {topic!r} was deleted while it was read")

    def check_retained(self, position: Mapping[str, Any], newest: Mapping[str, Any]) -> None:
        """Raise InvalidUse if messages after a position are gone.

        A partition that was not read up to there must still have what was read of it since.
        """
        needed = {place: (entry["from"], entry["topic_id"]) for place, entry in _partitions(newest).items()}
        needed |= {place: (entry["offset"], entry["topic_id"]) for place, entry in _partitions(position).items()}
        there = {part.place: part for part in self._lookup.ends()}
        firsts = self._lookup.firsts(part for place, part in there.items() if place in needed)
        for place, (offset, topic_id) in needed.items():
            part = there.get(place)
            if not self._lookup.includes(topic_of(place)):
                raise InvalidUse(
                    f"{place}: topics= no longer has the topic, so its messages after offset {offset} are not read. "
                    "Add it to the list in topics= again."
                )
            if part is None or part.topic_id != topic_id:
                raise InvalidUse(f"{place} was deleted since, so its messages after offset {offset} are gone.")
            if firsts[part] > offset:
                raise InvalidUse(
                    f"{place}: offsets {offset} to {firsts[part] - 1} are gone from the topic: the oldest is "
                    f"{firsts[part]}."
                )

    def acknowledge(self, app: str, position: Mapping[str, Any]) -> None:
        """Commit the offsets of the consumer group, which tools for monitoring read. Does not wait for the answer."""
        position = _partitions(position)
        self._note_density(position)
        places = [(*place.rsplit("/", 1), entry["offset"]) for place, entry in position.items()]
        self._group_offsets.commit(
            self.group or app, {(topic, int(number)): offset for topic, number, offset in places}
        )

    def finish_acknowledging(self) -> None:
        """Wait for the offsets that were sent last. Gives up after two seconds."""
        self._group_offsets.wait(LAST_ANSWER_SECONDS)

    def _note_density(self, position: Mapping[str, Any]) -> None:
        """Take note of how many offsets had no message in the batch that was committed."""
        before, self._read_to = self._read_to, position
        rows, self._rows = self._rows, 0
        if before is not None and self._row_bytes is not None:
            moved = sum(entry["offset"] - before.get(place, {}).get("offset", 0) for place, entry in position.items())
            if moved > 0:
                self._density = min(1.0, max(1e-6, rows / moved))

    def _log_once(self, text: str) -> None:
        text = self._settings.scrub(f"{self!r}: {text}")
        if text != getattr(self, "_logged", None):
            self._logged = text
            log.warning("%s", text)

    def _check_topics(self, position: Mapping[str, Any], ends: Offsets) -> None:
        """Raise InvalidUse if a topic does not exist that the user named, or one that was read before is not read."""
        places = _partitions(position)
        read = {topic_of(place) for place in places}
        dropped = {topic for topic in read if not self._lookup.includes(topic)}
        gone = read - dropped - {part.topic for part in ends}
        unknown = self._lookup.missing(ends) - read
        missing = gone | unknown
        self._missing = {topic: self._missing.get(topic, elapsed()) for topic in missing}
        if (gone or dropped) and self._on_loss == "continue":
            why = {"was deleted": gone, "is no longer among topics=": dropped}
            said = [f"the topic {show_names(sorted(topics))} {what}" for what, topics in why.items() if topics]
            self._log_once(f"{' and '.join(said)}; going on without it")
            missing, dropped = unknown, set()
        if not missing:
            if dropped:
                raise self._dropped_error(min(dropped), places)
            return
        if any(elapsed() - self._missing[topic] < MISSING_SECONDS for topic in missing):
            raise Unavailable(f"{self!r}: there is no topic {show_names(sorted(missing))}", retry_after=0.2)
        if unknown:
            raise InvalidUse(
                f"sources.kafka: there is no topic {show_names(sorted(unknown))} on this cluster. Create it, or "
                "correct the name or servers="
            )
        place = min(place for place in places if topic_of(place) in gone)
        raise self._loss_error(
            place, f"the topic was deleted, with all messages from offset {places[place]['offset']} on", None
        )

    def _dropped_error(self, topic: str, places: Mapping[str, Any]) -> InvalidUse:
        """Return the error for a topic that was read before and that the program does not name any more."""
        offsets = [
            f"{place} up to offset {entry['offset']}" for place, entry in places.items() if topic_of(place) == topic
        ]
        exists = "still" if self._lookup.ids_now([topic])[topic] is not None else "no longer"
        return InvalidUse(
            f"sources.kafka: topics={self._topics!r} no longer has {topic!r}, which the stream has read ("
            f"{', '.join(offsets[:3])}{', …' if len(offsets) > 3 else ''}); the topic {exists} exists. Nothing was "
            "read. Add it to the list in topics= again; or, if what it has beyond these offsets is not to be read, let "
            'the app go on without it with on_data_loss="continue"; or give the stream another name, so that it begins '
            "without a position."
        )

    def _snapshot_of(self, part: TopicPartitionId, end: int) -> int | None:
        """Return up to where a partition is read; None if it was added after the snapshot."""
        if not self._is_snapshot:
            return end
        assert self._snapshot is not None
        return None if part.place not in self._snapshot else min(end, self._snapshot[part.place])

    def _ranges(self, position: Mapping[str, Any], ends: Offsets) -> list[OffsetRange]:
        """Return what can be read of each partition. One that was not read before may have nothing but a start."""
        if self._is_snapshot and self._snapshot is None:
            self._snapshot = {part.place: end for part, end in ends.items()}
        news = [part for part, end in ends.items() if _has_news(position.get(part.place), part, end)]
        firsts = self._lookup.firsts(news)
        starts = self._starts([part for part in news if part.place not in position], firsts, ends, not position)
        ranges = []
        for part in news:
            stop = self._snapshot_of(part, ends[part])
            if stop is None:
                continue
            entry = position.get(part.place)
            if entry is not None:
                start, origin, lost = self._resume(part, entry, firsts[part], ends[part])
            else:
                start = origin = starts[part]
                lost = 0
            # The start is noted, even without a message, where another plan could find another one.
            if start < stop or (entry is None and self._start != "earliest") or (entry and start != entry["offset"]):
                ranges.append(OffsetRange(part, start, max(start, stop), origin, lost))
        return ranges

    def _resume(self, part: TopicPartitionId, entry: Mapping[str, Any], first: int, end: int) -> tuple[int, int, int]:
        """Return the offset to go on from, the first that was ever read, and how many messages were lost so far."""
        offset, origin, lost = entry["offset"], entry["from"], entry.get("lost", 0)
        if entry["topic_id"] != part.topic_id:
            before = TopicPartitionId(part.topic, part.partition, entry["topic_id"])
            gap = f"the topic was deleted and created again: what it had from offset {offset} on is gone"
            self._lose(part.place, gap, None)
            return first, first, lost + max(0, self._seen.get(before, 0) - offset)
        if offset > end:
            gap = f"the partition ends at offset {end}, before the offset to read next, {offset}"
            self._lose(part.place, gap, end)
            return end, min(origin, end), lost
        if offset < first:
            self._lose(part.place, f"offsets {offset} to {first - 1} were removed before they were read", first)
            return first, origin, lost + first - offset
        return offset, origin, lost

    def _starts(self, parts: Sequence[TopicPartitionId], firsts: Offsets, ends: Offsets, is_first: bool) -> Offsets:
        """Return where to begin to read partitions without a position.

        A partition that was added later is read from its first message, also with `start="latest"`: messages that
        came before it was noticed would be skipped otherwise.
        """
        start = self._start
        if isinstance(start, datetime):
            found = self._lookup.offsets_at(start, parts)
            return {part: found[part] if found[part] >= 0 else ends[part] for part in parts}
        if isinstance(start, str):
            return {part: ends[part] if start == "latest" and is_first else firsts[part] for part in parts}
        for topic, offsets in start.items():
            numbers = {part.partition for part in ends if part.topic == topic}
            is_new = numbers and numbers == {part.partition for part in parts if part.topic == topic}
            if is_new and (extra := sorted(offsets.keys() - numbers)):
                raise InvalidUse(
                    f"sources.kafka(start=): {topic}/{extra[0]}: expected a partition from 0 to {max(numbers)}, which "
                    f"the topic has, got {extra[0]}"
                )
        starts = {}
        for part in parts:
            starts[part] = given = start.get(part.topic, {}).get(part.partition, firsts[part])
            if not firsts[part] <= given <= ends[part]:
                raise InvalidUse(
                    f"sources.kafka(start=): {part.place}: expected an offset from {firsts[part]} to {ends[part]}, "
                    f"which the partition has, got {given}"
                )
        return starts

    def _lose(self, place: str, what: str, going_on: int | None) -> None:
        """Raise an error for messages that were lost or, if the user has said so, log it."""
        if self._on_loss == "stop":
            raise self._loss_error(place, what, going_on)
        log.warning("%r: %s: %s; going on, because of on_data_loss='continue'", self, place, what)

    def _loss_error(self, place: str, what: str, going_on: int | None) -> InvalidUse:
        on = "what is there" if going_on is None else f"offset {going_on}"
        return InvalidUse(
            f"sources.kafka: {place}: {what}. Nothing was read past them. Put the messages back, or let the app go on "
            f'with {on}: on_data_loss="continue" counts what was lost in `millpond status`.'
        )

    def _splits(self, ranges: Sequence[OffsetRange], limit: Limit, is_bounded: bool = False) -> list[Split]:
        """Divide the limit fairly among the partitions.

        Long ranges are cut, so that several tasks read them. While the size of messages is not known, or if many
        offsets are missing, a range is read in one piece by a task that counts messages and bytes.
        """
        row_bytes = self._row_bytes or FIRST_ROW_BYTES
        rows = max(1, min(limit.rows, int(limit.bytes / row_bytes)))
        shares = allot_rows(_take_turns([item for item in ranges if item.size > 0], rows), rows)
        counts = (self._row_bytes is None or self._density < SPARSE) and not is_bounded
        splits: list[Split] = []
        for item in ranges:
            share = shares.get(item.part.place, 0)
            if item.size and not share:
                continue
            if counts and share:
                most = {"rows": share, "bytes": max(1, limit.bytes * share // sum(shares.values()))}
                splits.append(self._split(item, item.start, item.end, most))
                continue
            stop = item.start + min(share, item.size)
            for at in range(item.start, max(stop, item.start + 1), PIECE_ROWS):
                splits.append(self._split(item, at, min(at + PIECE_ROWS, stop), None))
        return splits

    def _split(self, item: OffsetRange, start: int, stop: int, most: Mapping[str, int] | None) -> Split:
        part, rows = item.part, stop - start if most is None else most["rows"]
        detail = {
            "topic": part.topic,
            "partition": part.partition,
            "topic_id": part.topic_id,
            "from": item.origin,
            "lost": item.lost,
            "end": item.end,
            "most": most,
        }
        weight = max(1, round(rows * (self._row_bytes or FIRST_ROW_BYTES)))
        return Split(
            part.place, start, stop, part.place, weight=weight, detail=detail, rows=rows, may_join=most is None
        )

    # --- in workers ---

    def read(self, split: Split) -> Iterator[Chunk]:
        """Yield the messages of the split. Raises Unavailable if the broker does not answer."""
        if split.start >= split.stop:
            yield Chunk([], _position(split, split.stop))
            return
        reader = take_reader(self._settings)
        try:
            yield from self._chunks(reader, split)
        except GeneratorExit:  # the task has all rows that it may read
            put_back_reader(self._settings, reader)
            raise
        except BaseException:
            if reader.is_waiting:
                put_back_reader(self._settings, reader)
            else:
                reader.close()
            raise
        put_back_reader(self._settings, reader)

    def _chunks(self, reader: PartitionReader, split: Split) -> Iterator[Chunk]:
        most, largest = split.detail["most"] or {}, max(LARGEST_READ, 4 * split.weight)
        rows, size = most.get("rows", split.stop - split.start), most.get("bytes", largest)
        for run in self._runs(reader, split):
            messages, after = run.messages[:rows], run.next_offset
            sizes = list(accumulate(map(len, messages)))
            if sizes and sizes[-1] > size:
                if not most and split.stop - split.start > 1:
                    raise TooMuch(f"{split.place}: messages from offset {split.start} on are larger than those before")
                messages = messages[: max(1, bisect_right(sizes, size))]
            if len(messages) < len(run.messages):
                after = messages[-1].offset() + 1
            yield self._decoder.chunk(messages, _position(split, after))
            rows, size = rows - len(messages), size - (sizes[len(messages) - 1] if messages else 0)
            if most and (rows <= 0 or size <= 0):
                return

    def _runs(self, reader: PartitionReader, split: Split) -> Iterator[MessageRun]:
        """Yield the messages of a split. If some are gone since it was planned, the driver plans again and decides."""
        topic, partition, at = split.detail["topic"], split.detail["partition"], split.start
        try:
            for run in reader.read(topic, partition, at, split.stop, has_more=split.stop < split.detail["end"]):
                yield run
                at = run.next_offset
        except OffsetsGone as error:
            self._check_retained(split, at)
            raise Unavailable(f"{self!r}: {split.place}: {error}", retry_after=0.2) from None
        except Unavailable:
            self._check_retained(split, at)
            raise

    def _check_retained(self, split: Split, at: int) -> None:
        """Raise TooMuch if messages of a split are gone."""
        part = self._lookup.find(split.detail["topic"], split.detail["partition"])
        if part is None or part.topic_id != split.detail["topic_id"]:
            raise TooMuch(f"sources.kafka: {split.place}: the topic was deleted while it was read, at offset {at}")
        first, end = self._lookup.firsts([part])[part], self._lookup.end_of(part)
        if not (first <= at and split.stop <= end):
            raise TooMuch(
                f"sources.kafka: {split.place}: expected offsets {at} to {split.stop - 1}, and the partition has "
                f"{first} to {end - 1}"
            )

    @cached_property
    def _decoder(self) -> MessageDecoder:
        return MessageDecoder(self._options)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_lookup", "_decoder")}

    def __repr__(self) -> str:
        options = f", options={sorted(self._settings.options)}" if self._settings.options else ""
        return f"kafka({self._topics!r}, servers={self._settings.servers!r}{options})"


def _has_news(entry: Mapping[str, Any] | None, part: TopicPartitionId, end: int) -> bool:
    return entry is None or entry["offset"] != end or entry["topic_id"] != part.topic_id


def topic_of(place: str) -> str:
    """Return the topic of a place in a position.

    >>> topic_of("orders/3")
    'orders'
    """
    return place.rsplit("/", 1)[0]


def _partitions(position: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of partitions. A pattern has one of its own, if it had no topic at its first plan."""
    return {place: entry for place, entry in position.items() if not place.startswith("^")}


def _take_turns(ranges: Sequence[OffsetRange], most: int) -> dict[str, int]:
    """Return the sizes of ranges; of at most `most` of them, others in the next plan."""
    first = sum(item.start for item in ranges) if len(ranges) > most else 0  # moves on with what is read
    turns = [ranges[(first + i) % len(ranges)] for i in range(min(most, len(ranges)))]
    return {item.part.place: item.size for item in turns}


def _position(split: Split, offset: int) -> dict[str, Any]:
    detail = split.detail
    found = {"offset": offset, "from": detail["from"], "topic_id": detail["topic_id"]}
    return {**found, "lost": detail["lost"]} if detail["lost"] else found


class MessageDecoder:
    """Makes rows of messages, as the options of a source say."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._decode = make_decoder(options.value, registry=options.registry)
        self._decode_key = make_decoder(options.key, registry=options.registry, is_key=True)

    def chunk(self, messages: list[Message], position: Any) -> Chunk:
        """Return the messages as a chunk. JSON without metadata stays text until a function needs its fields."""

        def where(i: int) -> str:
            return locate_message(messages[i])

        if self._options.value == "json" and self._options.metadata is None:
            lines = _json_lines(messages)
            if lines is not None:
                return Chunk(JsonLines(lines), position, where, times=lambda: _times(messages))
        rows: list[Any] = []
        bad: list[BadRow] = []
        good: list[Message] = []
        for message in messages:
            try:
                rows.append(self._row(message))
                good.append(message)
            except InvalidUse as error:  # a schema registry that refuses
                raise InvalidUse(f"{locate_message(message)}: {error}") from None
            except MillpondError:  # one that does not answer
                raise
            except FAULTS as error:
                bad.append(BadRow(locate_message(message), message.value(), f"{type(error).__name__}: {error}"))
        size = sum(map(len, messages))
        messages = good
        return Chunk(rows, position, where, bad, times=lambda: _times(good), size=size)

    def _row(self, message: Message) -> Any:
        data, topic = message.value(), message.topic() or ""
        value = None if data is None else self._decode(data, topic)
        if self._options.metadata is None:
            return value
        row = dict(value) if isinstance(value, dict) else {"value": value}
        row[self._options.metadata] = self._metadata(message, topic)
        return row

    def _metadata(self, message: Message, topic: str) -> dict[str, Any]:
        key, (time,) = message.key(), _times([message])
        return {
            "topic": topic,
            "partition": message.partition(),
            "offset": message.offset(),
            "timestamp": None if time is None else EPOCH + timedelta(microseconds=time),
            "key": None if key is None else self._decode_key(_as_bytes(key), topic),
            "headers": dict(message.headers() or ()),
        }


def locate_message(message: Message) -> str:
    """Return in words where a message is."""
    return f"topic {message.topic()!r}, partition {message.partition()}, offset {message.offset()}"


def _as_bytes(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data


def _times(messages: list[Message]) -> list[int | None]:
    """Return the times of messages in microseconds since 1970."""
    stamps = [message.timestamp() for message in messages]
    return [None if kind == 0 or time == NO_TIME else time * 1000 for kind, time in stamps]


def _json_lines(messages: list[Message]) -> list[bytes] | None:
    """Return the values of messages as lines of JSON; None if one of them cannot be such a line.

    A line must have no newline: JSON may have them between its tokens, where a blank means the same. Nor may it be
    blank: lines are decoded together, and counted.
    """
    lines: list[Any] = [message.value() for message in messages]
    if None in lines:
        lines = [b"null" if line is None else line for line in lines]
    if b"".join(lines).find(b"\n") < 0 and b"" not in lines and not any(map(bytes.isspace, lines)):
        return lines
    for i, line in enumerate(lines):
        if b"\n" in line or not line.strip():
            try:
                msgspec.json.decode(line)
            except FAULTS:  # no JSON, no UTF-8, or nested too deep
                return None
            lines[i] = line.replace(b"\n", b" ")
    return lines


def make_kafka_source(
    topics: Any,
    settings: KafkaSettings,
    start: Any,
    options: KafkaOptions,
    on_data_loss: Any,
) -> KafkaSource:
    """Check what the user gave, and return the source."""
    where = "sources.kafka"
    names = [topics] if isinstance(topics, str) else topics
    if not isinstance(names, (list, tuple)) or not names or not all(isinstance(n, str) and n for n in names):
        raise InvalidUse(f"{where}(topics): expected a name, a list of names, or a pattern '^…', got {topics!r}")
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise InvalidUse(f"{where}(topics): expected each name once, got {twice[0]!r} twice")
    for name in names:
        if name.startswith("^"):
            if not isinstance(topics, str):
                raise InvalidUse(f"{where}(topics): expected names in a list, got the pattern {name!r}")
            try:
                re.compile(name)
            except re.error as error:
                raise InvalidUse(f"{where}(topics): {name!r} is no pattern: {error}") from error
        elif not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name) or name in (".", ".."):
            raise InvalidUse(
                f"{where}(topics): expected names of letters, digits, '.', '_' and '-', or a pattern that begins with "
                f"'^', got {name!r}"
            )
    if on_data_loss not in ("stop", "continue"):
        raise InvalidUse(f'{where}(on_data_loss): expected "stop" or "continue", got {on_data_loss!r}')
    if options.metadata is not None and (not isinstance(options.metadata, str) or not options.metadata):
        raise InvalidUse(f"{where}(metadata): expected the name of a field, got {options.metadata!r}")
    if options.metadata == "value":
        raise InvalidUse(
            f"{where}(metadata): expected a name other than 'value', under which a tombstone, or a value that is no "
            "dict, is put beside the metadata, got 'value'. Choose another name, such as 'kafka'."
        )
    check_format(where, "value", options.value, options.registry)
    check_format(where, "key", options.key, options.registry)
    found = check_start(start)
    if isinstance(found, Mapping) and not names[0].startswith("^") and (others := sorted({*found} - {*names})):
        raise InvalidUse(f"{where}(start=): expected offsets of {show_names(names)}, got some of {show_names(others)}")
    return KafkaSource(topics if isinstance(topics, str) else list(names), settings, found, options, on_data_loss)


def check_start(start: Any) -> Start:
    """Check where a stream is to begin.

    >>> check_start({"orders": {0: 17}})
    {'orders': {0: 17}}
    """
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise InvalidUse(
                f"sources.kafka(start): expected a datetime with a time zone, such as "
                f"datetime(2026, 1, 1, tzinfo=timezone.utc), got {start!r}"
            )
        return start
    if start in ("earliest", "latest"):
        return start  # type: ignore[no-any-return]
    if isinstance(start, Mapping) and all(
        isinstance(topic, str)
        and isinstance(offsets, Mapping)
        and all(type(part) is int and type(offset) is int and offset >= 0 for part, offset in offsets.items())
        for topic, offsets in start.items()
    ):
        return {topic: dict(offsets) for topic, offsets in start.items()}
    raise InvalidUse(
        'sources.kafka(start): expected "earliest", "latest", a datetime, or offsets as '
        f"{{'orders': {{0: 17}}}}, got {short_repr(start)}"
    )
