"""Sinks for outputs. Each function returns an object that takes deliveries.

To write another, write a class as `mp.lowlevel.Sink` describes and test it with `millpond.testing.sink_suite`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from millpond.kafka.clients import KafkaSettings
from millpond.kafka.message_formats import Format
from millpond.kafka.outgoing import FieldOrFunction, MessageParts
from millpond.kafka.schema_registry import RegistrySettings
from millpond.sinks.base import Delivery
from millpond.sinks.console import ConsoleSink
from millpond.sinks.dataframe import DataFrameSink
from millpond.sinks.discard import DiscardSink
from millpond.sinks.files import FileSink, ParquetFileSink, SinkFormat
from millpond.sinks.function import FunctionSink
from millpond.sinks.kafka import KafkaSink, make_kafka_sink
from millpond.sinks.memory import MemorySink

__all__ = ["console", "dataframe", "discard", "files", "function", "kafka", "memory"]


def __dir__() -> list[str]:
    return __all__


def console() -> ConsoleSink:
    """Print every row on the driver's standard output, as `name: row`. After a crash a row may be printed again.

    >>> from millpond import sinks
    >>> from millpond.sinks.base import Delivery
    >>> sinks.console().deliver([{"customer": "a", "total": 3}], Delivery("orders", "5e1f", "totals", 42, 0))
    totals: {"customer": "a", "total": 3}
    """
    return ConsoleSink()


def discard() -> DiscardSink:
    """Deliver no rows: they stay in the log with the batch that made them.

    >>> from millpond import sinks
    >>> sinks.discard()
    discard()
    """
    return DiscardSink()


def memory() -> MemorySink:
    """Keep the rows in the driver's memory: `.rows` in the order of delivery, each delivery once.

    >>> from millpond import sinks
    >>> from millpond.sinks.base import Delivery
    >>> sink = sinks.memory()
    >>> sink.deliver([1, 2], Delivery("orders", "5e1f", "totals", 42, 0))
    >>> sink.rows, [delivery.batch for delivery in sink.deliveries]
    ([1, 2], [42])
    """
    return MemorySink()


def files(path: str | os.PathLike[str], format: SinkFormat = "jsonl") -> FileSink:
    """Write each delivery to a file of its own in the folder `path`, exactly once through any crash.

    `"jsonl"` takes any row that JSON can express: datetimes are written as ISO-8601, Decimals and UUIDs as
    strings, bytes as base64, sets and tuples as lists, nan and the infinities as null. `"parquet"` takes
    dicts, dataclasses and Structs, with one type per field; if the type changes from delivery to delivery, so
    do the schemas of the files. Files sort by batch and partition. The first row makes the folder, and every
    worker must see it under the same path.

    >>> import pathlib, tempfile
    >>> from millpond import sinks
    >>> from millpond.sinks.base import Delivery
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> sinks.files(folder).deliver([{"n": 1}, {"n": 2}], Delivery("orders", "5e1f", "totals", 42, 0))
    >>> [file.name for file in folder.iterdir()]
    ['00000000000000000042-00000-5e1f-totals.jsonl']
    >>> print(next(folder.iterdir()).read_text(), end="")
    {"n":1}
    {"n":2}
    """
    return ParquetFileSink(path) if format == "parquet" else FileSink(path, format)


def function(
    f: Callable[[list[Any], Delivery], object], where: Literal["driver", "workers"] = "driver"
) -> FunctionSink:
    """Call `f(rows, delivery)` for each delivery, in the driver or in the workers.

    After a crash a delivery may be repeated, with the same rows and the same `delivery.id`: a function that
    writes somewhere should store the id with the rows, or overwrite by it. It raises `Unavailable` to be
    called again later.

    >>> from millpond import sinks
    >>> from millpond.sinks.base import Delivery
    >>> seen = {}
    >>> sink = sinks.function(lambda rows, delivery: seen.update({delivery.id: rows}))
    >>> sink.deliver([{"n": 1}], Delivery("orders", "5e1f", "totals", 42, 0))
    >>> seen
    {'orders/5e1f/totals/42/0': [{'n': 1}]}
    """
    return FunctionSink(f, where)


def dataframe(f: Callable[[Any, Delivery], Any], schema: Any = None) -> DataFrameSink:
    """Call `f(df, delivery)` on the driver with each batch's outputs as a Spark DataFrame.

    The rows are read as JSON: `schema` names the columns and their types, and without it Spark infers them
    from each batch. All partitions come in one frame, so the delivery's partition is that of the first. A
    crash may cause a second call with the same delivery and the same rows: write so that it has no further
    effect, for example with `mode("overwrite")` to a path that holds `delivery.batch`, or Delta's `txnVersion`.

    >>> from millpond import sinks
    >>> def write(df, delivery):
    ...     df.write.mode("overwrite").parquet(f"totals/batch={delivery.batch}")
    >>> sink = sinks.dataframe(write, schema="customer string, total double")
    """
    return DataFrameSink(f, schema)


def kafka(
    topic: str | Callable[[Any], str],
    servers: str | Sequence[str],
    *,
    key: FieldOrFunction | None = None,
    value: Format = "json",
    headers: Mapping[str, FieldOrFunction] | Callable[[Any], Mapping[str, Any]] | None = None,
    partition: FieldOrFunction | None = None,
    timestamp: FieldOrFunction | None = None,
    deleted: Callable[[Any], Any] | None = None,
    exactly_once: bool = True,
    create: Mapping[str, Any] | None = None,
    registry: RegistrySettings | None = None,
    register: str = "millpond-deliveries",
    options: Mapping[str, Any] | None = None,
) -> KafkaSink:
    """Write each row as a message to a Kafka topic, exactly once for readers of committed messages.

    `topic` is a name or a function of the row. `key`, `partition` and `timestamp` are a field or a function of the row;
    `headers` maps names to fields or functions, or is a function that returns such a dict. Every message has the header
    `millpond-batch`. Keys are partitioned as Java's producer does. `value` is the format of the row: `"json"`,
    `"string"`, `"bytes"`, `"avro"`, a format of `mp.formats`, or a function that returns bytes. A row for which
    `deleted` is true becomes a message without a value, a tombstone.

    The rows that one partition of the app made in one batch become visible at once; those of different partitions one
    after the other. `exactly_once=False` is faster and has a lower latency; after a crash rows may come again.
    `create`, such as `{"partitions": 6, "replication": 3, "cleanup.policy": "compact"}`, creates a missing topic.
    `register` is the compacted topic that holds what was delivered; it is created if it is missing. `options` are
    settings of librdkafka; `transactional.id` among them is the prefix of the transactional ids. Neither may change.

    >>> from millpond import sinks
    >>> sinks.kafka("totals", servers="localhost:9092", key="customer")
    kafka('totals', servers='localhost:9092')
    """
    settings = KafkaSettings.of("sinks.kafka", servers, options)
    parts = MessageParts(topic, key, value, headers, partition, timestamp, deleted, registry)
    return make_kafka_sink(parts, settings, exactly_once, create, register)
