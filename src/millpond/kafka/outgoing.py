"""Outputs as messages: topic, key, value, partition, timestamp and headers of each row."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import compress, repeat
from operator import not_
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millpond.errors import InvalidUse, short_repr
from millpond.kafka.clients import import_kafka
from millpond.kafka.message_formats import Format, make_encoder
from millpond.kafka.schema_registry import RegistrySettings
from millpond.rows.fields import MissingField, read_field
from millpond.rows.json_columns import encode_table
from millpond.rows.plain_json import encode_json, encode_json_lines
from millpond.timing import EPOCH

if TYPE_CHECKING:
    from confluent_kafka import Producer

BATCH_HEADER = "millpond-batch"
ANY_PARTITION = -1  # librdkafka chooses by the key
HEADER_NAMES = f"names that are text without NUL, and not {BATCH_HEADER!r}, which the sink writes itself"
LAST_PARTITION = (1 << 31) - 1
TIMES = range(-(1 << 63), 1 << 63)  # in milliseconds
FieldOrFunction = str | Callable[[Any], Any]


class TooLargeToQueue(Exception):
    """A message is larger than its producer takes, whatever the topic allows."""


class Unwritable(Exception):
    """A row of which no message can be made, because of what an argument of the sink says."""

    def __init__(self, argument: str, why: str) -> None:
        super().__init__(argument, why)
        self.argument, self.why = argument, why

    def __str__(self) -> str:
        text = f"sinks.kafka({self.argument}=): {self.why.rstrip('.')}. "
        if self.argument != "value":
            return f"{text}The outputs are committed: correct {self.argument}=, and the next run delivers them."
        return (
            f"{text}The outputs are committed and are not computed again: a change of the steps before the sink does "
            "not reach them. Change the sink: a run with value=<a function of the row that returns bytes, or None> "
            "delivers them; after it, value= can be as before."
        )


def is_topic_name(name: Any) -> bool:
    """Return whether a topic can have this name.

    >>> is_topic_name("orders-v2"), is_topic_name("my orders"), is_topic_name("..")
    (True, False, False)
    """
    return isinstance(name, str) and bool(re.fullmatch(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}", name))


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
        """Queue the messages, and wait while the queue is full. Raises `TooLargeToQueue`."""
        kafka = import_kafka()
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
                except kafka.KafkaException as error:
                    if error.args[0].code() != kafka.KafkaError.MSG_SIZE_TOO_LARGE:
                        raise
                    size = len(value or b"")
                    raise TooLargeToQueue(
                        f"a message of {size} bytes to topic {topic!r}, with key {short_repr(key)}: expected at most "
                        "message.max.bytes of the producer. Raise it in options=, or run once with value=<a function "
                        "that returns fewer bytes>. The outputs are committed and are not computed again: the next run "
                        "delivers them"
                    ) from None


class MessageMaker:
    """Makes messages of outputs. It is made once per process."""

    def __init__(self, parts: MessageParts) -> None:
        self._parts = parts
        self._encode = None if parts.value == "json" else make_encoder(parts.value, registry=parts.registry)

    def of_rows(self, rows: Sequence[Any], batch: int) -> OutgoingMessages:
        """Return the messages of some rows. Raises Unwritable, or what a function of the user raises."""
        parts = self._parts
        topics = repeat(parts.topic) if isinstance(parts.topic, str) else [_topic(parts.topic, row) for row in rows]
        return OutgoingMessages(
            len(rows),
            topics,
            self._values(rows, parts.topic if isinstance(parts.topic, str) else list(topics)),
            repeat(None) if parts.key is None else [_text("key", _part("key", parts.key, row)) for row in rows],
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
        """Return the value of each message. A row that is deleted need not be one that can be encoded."""
        is_json, deleted = self._encode is None, self._parts.deleted
        gone = [
            (row is None and is_json) or (row is not None and deleted is not None and bool(deleted(row)))
            for row in rows
        ]
        kept = [row for row, is_gone in zip(rows, gone, strict=True) if not is_gone] if any(gone) else rows
        try:
            if self._encode is None:
                found = _json_values(kept)
            else:
                encode = self._encode
                names = repeat(topics) if isinstance(topics, str) else compress(topics, map(not_, gone))
                found = [encode(row, topic) for row, topic in zip(kept, names, strict=False)]
        except InvalidUse as error:
            raise Unwritable("value", str(error)) from None
        if len(kept) == len(rows):
            return found
        values = iter(found)
        return [None if is_gone else next(values) for is_gone in gone]

    def _headers(self, rows: Sequence[Any], batch: int) -> MessageColumn:
        mark = (BATCH_HEADER, str(batch).encode())
        own = self._parts.headers
        if own is None:
            return repeat([mark])
        if callable(own):
            return [[mark, *_header_items(own(row))] for row in rows]
        return [
            [mark, *_header_items({name: _part("headers", part, row) for name, part in own.items()})] for row in rows
        ]


def _json_values(rows: Sequence[Any]) -> list[bytes | None]:
    found: list[bytes | None] = list(encode_json_lines(list(rows)).split(b"\n")[:-1])
    return found if len(found) == len(rows) else [encode_json(row) for row in rows]  # JSON has no newline of its own


def _part(argument: str, part: FieldOrFunction, row: Any) -> Any:
    if not isinstance(part, str):
        return part(row)
    try:
        return read_field(row, part)
    except MissingField as error:
        raise Unwritable(argument, f"expected field {part!r} in every row: {error}") from None


def _text(argument: str, value: Any) -> bytes | None:
    try:
        return encode_text(value)
    except (InvalidUse, UnicodeEncodeError):
        kind = "text that UTF-8 can encode" if isinstance(value, str) else "text, bytes, or what can be JSON"
        raise Unwritable(argument, f"expected {kind}, got {short_repr(value)} ({type(value).__name__})") from None


def _topic(choose: Callable[[Any], str], row: Any) -> str:
    found = choose(row)
    if not is_topic_name(found):
        why = f"expected the function to return a name of letters, digits, '.', '_' and '-', got {short_repr(found)}"
        raise Unwritable("topic", why)
    return found


def _number(part: FieldOrFunction, row: Any) -> int:
    found = _part("partition", part, row)
    if type(found) is not int or not 0 <= found <= LAST_PARTITION:
        why = f"expected the number of a partition, a whole number of 0 or more, got {short_repr(found)}"
        raise Unwritable("partition", why)
    return found


def _time(part: FieldOrFunction, row: Any) -> int | None:
    """Return the time of a message in milliseconds since 1970; None for the time of writing."""
    given = found = _part("timestamp", part, row)
    if found is None:
        return None
    if isinstance(found, str):
        with suppress(ValueError):
            found = datetime.fromisoformat(found)
    if isinstance(found, datetime) and found.tzinfo is not None:
        found = (found - EPOCH) // (datetime.resolution * 1000)
    if type(found) is int and found in TIMES:
        return found or 1  # librdkafka takes 0 for no time
    kinds = "a datetime with a time zone, ISO-8601 text of one, or milliseconds since 1970 in 64 bits"
    raise Unwritable("timestamp", f"expected {kinds}, got {short_repr(given)}")


def _header_items(given: Any) -> list[tuple[str, bytes | None]]:
    if not isinstance(given, Mapping):
        raise Unwritable("headers", f"expected the function to return a dict, got {short_repr(given)}")
    for name in given:
        if not is_header_name(name):
            raise Unwritable("headers", f"expected {HEADER_NAMES}, got {name!r}")
    return [(name, _text("headers", value)) for name, value in given.items()]


def is_header_name(name: Any) -> bool:
    """Return whether a user's header can have this name. confluent_kafka crashes on one that UTF-8 cannot encode.

    >>> is_header_name("trace"), is_header_name(7), is_header_name("millpond-batch")
    (True, False, False)
    """
    if not isinstance(name, str) or name == BATCH_HEADER or "\0" in name:
        return False
    with suppress(UnicodeEncodeError):
        name.encode()
        return True
    return False


def encode_text(value: Any) -> bytes | None:
    """Return a key or header as bytes: text as UTF-8, bytes as they are, other values as JSON.

    >>> encode_text("ann"), encode_text(7), encode_text(("eu", 7)), encode_text(None)
    (b'ann', b'7', b'["eu",7]', None)
    """
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else encode_json(value)
