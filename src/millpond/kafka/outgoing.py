"""Outputs as messages: topic, key, value, partition, timestamp and headers of each row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millpond.errors import InvalidUse, short_repr
from millpond.kafka.message_formats import Format, make_encoder
from millpond.kafka.schema_registry import RegistrySettings
from millpond.rows.fields import read_field
from millpond.rows.json_columns import encode_table
from millpond.rows.plain_json import encode_json, encode_json_lines
from millpond.timing import EPOCH

if TYPE_CHECKING:
    from confluent_kafka import Producer

BATCH_HEADER = "millpond-batch"
ANY_PARTITION = -1  # librdkafka chooses by the key
FieldOrFunction = str | Callable[[Any], Any]


@dataclass(frozen=True)
class MessageParts:
    """What a user says of the messages of a sink. A part is a field of the row, a function of it, or None."""

    topic: str | Callable[[Any], str]
    key: FieldOrFunction | None = None
    value: Format = "json"
    headers: Mapping[str, FieldOrFunction] | Callable[[Any], Mapping[str, Any]] | None = None
    partition: FieldOrFunction | None = None
    timestamp: FieldOrFunction | None = None
    deleted: Callable[[Any], Any] | None = None
    registry: RegistrySettings | None = None


MessageColumn = Sequence[Any] | Iterator[Any]


@dataclass(frozen=True)
class OutgoingMessages:
    """Messages in columns. A column is as long as there are messages, or repeats one value."""

    count: int
    topics: MessageColumn
    values: MessageColumn
    keys: MessageColumn
    partitions: MessageColumn
    timestamps: MessageColumn
    headers: MessageColumn

    def produce(self, producer: Producer) -> None:
        """Queue the messages, and wait while the queue is full."""
        send, columns = producer.produce, (self.topics, self.values, self.keys, self.partitions, self.headers)
        for topic, value, key, partition, headers, time in zip(*columns, self.timestamps, strict=False):
            while True:
                try:
                    if time is None:
                        send(topic, value, key, partition, headers=headers)
                    else:
                        send(topic, value, key, partition, headers=headers, timestamp=time)
                    break
                except BufferError:
                    producer.poll(0.05)


class MessageMaker:
    """Makes messages of outputs. It is made once per process."""

    def __init__(self, parts: MessageParts) -> None:
        self._parts = parts
        self._encode = None if parts.value == "json" else make_encoder(parts.value, registry=parts.registry)

    def of_rows(self, rows: Sequence[Any], batch: int) -> OutgoingMessages:
        """Return the messages of some rows."""
        parts = self._parts
        topics = repeat(parts.topic) if isinstance(parts.topic, str) else [_topic(parts.topic, row) for row in rows]
        return OutgoingMessages(
            len(rows),
            topics,
            self._values(rows, parts.topic if isinstance(parts.topic, str) else list(topics)),
            repeat(None) if parts.key is None else [encode_text(_part(parts.key, row)) for row in rows],
            repeat(ANY_PARTITION) if parts.partition is None else [_number(parts.partition, row) for row in rows],
            repeat(None) if parts.timestamp is None else [_time(parts.timestamp, row) for row in rows],
            self._headers(rows, batch),
        )

    def of_table(self, table: pa.Table, batch: int) -> OutgoingMessages | None:
        """Return the messages of uniform rows, from columns; None if that needs a Python object per row."""
        parts = self._parts
        functions = (parts.topic, parts.key, parts.partition, parts.timestamp, parts.headers, parts.deleted)
        if any(callable(part) for part in functions) or parts.value != "json" or parts.headers is not None:
            return None
        if parts.partition is not None or parts.timestamp is not None:
            return None
        values = encode_table(table)
        if values is None:
            return None
        keys: MessageColumn = repeat(None)
        if parts.key is not None:
            if parts.key not in table.column_names or not pa.types.is_string(table.column(parts.key).type):
                return None
            keys = table.column(parts.key).to_pylist()
        marks = self._headers((), batch)
        return OutgoingMessages(
            len(table), repeat(parts.topic), values, keys, repeat(ANY_PARTITION), repeat(None), marks
        )

    def _values(self, rows: Sequence[Any], topics: str | list[str]) -> MessageColumn:
        if self._encode is None:
            found: list[bytes | None] = list(encode_json_lines(list(rows)).split(b"\n")[:-1])
            if len(found) != len(rows):  # no JSON has a newline of its own
                found = [encode_json(row) for row in rows]
        else:
            encode = self._encode
            names = repeat(topics) if isinstance(topics, str) else topics
            found = [encode(row, topic) for row, topic in zip(rows, names, strict=False)]
        if self._parts.deleted is not None:
            deleted = self._parts.deleted
            found = [None if deleted(row) else value for row, value in zip(rows, found, strict=True)]
        return found

    def _headers(self, rows: Sequence[Any], batch: int) -> MessageColumn:
        mark = (BATCH_HEADER, str(batch).encode())
        own = self._parts.headers
        if own is None:
            return repeat([mark])
        if callable(own):
            return [[mark, *_header_items(own(row))] for row in rows]
        return [[mark, *_header_items({name: _part(part, row) for name, part in own.items()})] for row in rows]


def _part(part: FieldOrFunction, row: Any) -> Any:
    return read_field(row, part) if isinstance(part, str) else part(row)


def _topic(choose: Callable[[Any], str], row: Any) -> str:
    found = choose(row)
    if not isinstance(found, str) or not found:
        raise InvalidUse(f"sinks.kafka(topic=): expected the function to return a name, got {short_repr(found)}")
    return found


def _number(part: FieldOrFunction, row: Any) -> int:
    found = _part(part, row)
    if type(found) is not int or found < 0:
        raise InvalidUse(f"sinks.kafka(partition=): expected a whole number of 0 or more, got {short_repr(found)}")
    return found


def _time(part: FieldOrFunction, row: Any) -> int | None:
    """Return the time of a message in milliseconds since 1970."""
    found = _part(part, row)
    if found is None or type(found) is int:
        return found
    if isinstance(found, str):
        found = datetime.fromisoformat(found)
    if isinstance(found, datetime) and found.tzinfo is not None:
        return (found - EPOCH) // (datetime.resolution * 1000)
    raise InvalidUse(
        f"sinks.kafka(timestamp=): expected a datetime with a time zone or milliseconds, got {short_repr(found)}"
    )


def _header_items(given: Mapping[str, Any]) -> list[tuple[str, bytes | None]]:
    return [(name, None if value is None else encode_text(value)) for name, value in given.items()]


def encode_text(value: Any) -> bytes | None:
    """Return a key or header as bytes: text as UTF-8, bytes as they are, other values as JSON.

    >>> encode_text("ann"), encode_text(7), encode_text(("eu", 7)), encode_text(None)
    (b'ann', b'7', b'["eu",7]', None)
    """
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else encode_json(value)
