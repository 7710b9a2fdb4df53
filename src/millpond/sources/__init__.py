"""Sources of rows. Each function returns an object that plans on the driver and reads in tasks.

To write another, write a class with the two methods of `mp.lowlevel.Source` and test it with
`millpond.testing.source_suite`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from millpond.errors import InvalidUse
from millpond.kafka.clients import KafkaSettings
from millpond.kafka.message_formats import Format
from millpond.kafka.schema_registry import RegistrySettings
from millpond.sources.files import FileSource, SourceFormat
from millpond.sources.iterated import IteratedSource
from millpond.sources.kafka import KafkaOptions, KafkaSource, Start, make_kafka_source
from millpond.sources.rate import RateSource
from millpond.sources.row_list import RowSource

__all__ = ["files", "iterate", "kafka", "rate", "rows"]


def __dir__() -> list[str]:
    return __all__


def files(path: str | os.PathLike[str], format: SourceFormat | None = None) -> FileSource:
    """Read the rows of a file, a folder or a glob. Files may be added, and may grow.

    `format` is `"jsonl"`, `"csv"` or `"parquet"`; without it the names of the files show it (.jsonl, .ndjson, .csv,
    .parquet). A folder means the files in it, not its subfolders; `**` in a glob includes subfolders. Names that begin
    with `.` or `_` are left out. Files are read in the order of their names; an appended line is read when its newline
    is there. Bytes that were read must stay. A file named .gz is unpacked and read by one task. Every worker must see
    the files under the same path.

    - JSON lines: any JSON value per line; blank lines are skipped.
    - CSV: each file's first line names the fields; all values are strings, and `type=` on the stream converts
      them. A field has up to 131,072 characters. A line with a quote that is never closed is a bad row.
    - Parquet: Arrow columns, which become Python rows where a function needs them.

    >>> import pathlib, tempfile
    >>> from millpond import sources
    >>> from millpond.sources.base import Limit
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.jsonl").write_text('{"n": 1}\\n{"n": 2}\\n{"n":')
    >>> source = sources.files(folder)
    >>> [split] = source.plan({}, Limit(rows=100, bytes=1 << 20), now=0.0)
    >>> chunk = list(source.read(split))[0]
    >>> chunk.rows.lines, chunk.position
    ([b'{"n": 1}', b'{"n": 2}'], {'offset': 18})
    """
    return FileSource(path, format)


def rows(rows: Iterable[Any]) -> RowSource:
    """Read the rows of a list, of any type. Rows that are appended later are read later.

    A restart goes on after the rows that were read: give the same list, with new rows at its end.

    >>> from millpond import sources
    >>> from millpond.sources.base import Limit
    >>> source = sources.rows([{"n": 1}, {"n": 2}, {"n": 3}])
    >>> [split] = source.plan({"0": 1}, Limit(rows=100, bytes=1 << 20), now=0.0)
    >>> [chunk.rows for chunk in source.read(split)]
    [[{'n': 2}, {'n': 3}]]
    """
    return RowSource(rows)


def iterate(f: Callable[..., Iterable[Any]]) -> IteratedSource:
    """Read the items of an iterator that `f` makes, such as a generator: as many as a batch may have, at each batch.

    `f` is called in a worker: when the app starts, whenever another worker than before reads, and if a batch is
    repeated. Each call must return a new iterator over the same items, of any type that a row can have; one that is
    different each time cannot be resumed where it was. If `f` has a parameter `start`, it is called with the number of
    items that were taken, and returns the items after them; otherwise these are read once more and left out.

    The items may have no end. Once they have ended, nothing more is read in this run; the next one asks again. An
    iterator that has nothing at the moment raises `mp.errors.Unavailable(…, retry_after=…)`: the items before it are
    a batch, and `f` is called again after that time. Any other exception ends the run with `InvalidUse`.

    >>> from millpond import sources
    >>> from millpond.sources.base import Limit
    >>> def squares(start=0):
    ...     n = start
    ...     while True:
    ...         yield {"n": n, "square": n * n}
    ...         n += 1
    >>> source = sources.iterate(squares)
    >>> [split] = source.plan({"0": {"n": 1000}}, Limit(rows=2, bytes=1 << 20), now=0.0)
    >>> [chunk] = source.read(split)
    >>> chunk.rows, chunk.position
    ([{'n': 1000, 'square': 1000000}, {'n': 1001, 'square': 1002001}], {'n': 1002})
    """
    return IteratedSource(f)


def rate(rows_per_second: float, start: datetime | float | None = None) -> RateSource:
    """Make rows `{"timestamp": …, "value": 0, 1, 2, …}` at a steady rate, from `start` or the first batch on.

    Row n has the time `start + n / rows_per_second`, however late it is read. Rows that fall due while the app is down
    come after its restart.

    >>> from millpond import sources
    >>> from millpond.sources.base import Limit
    >>> source = sources.rate(2, start=1_700_000_000.0)
    >>> [split] = source.plan({}, Limit(rows=100, bytes=1 << 20), now=1_700_000_001.0)
    >>> [chunk] = source.read(split)
    >>> for row in chunk.rows.to_pylist():
    ...     print(row["timestamp"].isoformat(), row["value"])
    2023-11-14T22:13:20+00:00 0
    2023-11-14T22:13:20.500000+00:00 1
    """
    return RateSource(rows_per_second, start)


def kafka(
    topics: str | Sequence[str],
    servers: str | Sequence[str],
    *,
    value: Format = "json",
    key: Format = "string",
    start: Start = "earliest",
    metadata: str | None = None,
    group: str | None = None,
    registry: RegistrySettings | None = None,
    on_data_loss: Literal["stop", "continue"] = "stop",
    options: Mapping[str, Any] | None = None,
) -> KafkaSource:
    """Read the messages of Kafka topics: one name, a list of names, or a pattern that begins with `^`.

    The row is the value of the message, decoded as `value` says: `"json"`, `"string"`, `"bytes"`, `"avro"`,
    `"protobuf"`, a format of `mp.formats`, or a function of bytes. `registry` is the URL of a schema registry. A
    message without a value (a tombstone) is the row None. With `metadata`, the row is a dict that has
    `{"topic", "partition", "offset", "timestamp", "key", "headers"}` under that name; a value that is no dict is then
    under `"value"`. `timestamp=mp.message_time` on the stream takes the time of the message.

    `start` says where partitions begin of which nothing was read yet: `"earliest"`, `"latest"`, a datetime, or offsets
    as `{topic: {partition: offset}}`. A partition that is added later is read from its first message. Only committed
    messages are read, unless `options` sets `isolation.level`.

    If messages are gone that were not read, because retention removed them or the topic was deleted, the app stops with
    an error that names them; with `on_data_loss="continue"` it goes on and counts them in `millpond status`. After each
    commit the consumer group `group`, by default the name of the app, gets the offsets, for monitoring only. `options`
    are settings of librdkafka, such as those of TLS and SASL.

    >>> from millpond import sources
    >>> sources.kafka("orders", servers="localhost:9092")
    kafka('orders', servers='localhost:9092')
    """
    settings = KafkaSettings.of("sources.kafka", servers, options)
    source = make_kafka_source(topics, settings, start, KafkaOptions(value, key, metadata, registry), on_data_loss)
    if group is not None and (not isinstance(group, str) or not group):
        raise InvalidUse(f"sources.kafka(group): expected a name, got {group!r}")
    source.group = group
    return source
