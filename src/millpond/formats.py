"""Formats of Kafka messages with a schema that the program gives: `mp.formats.avro(schema)`.

`mp.sources.kafka` and `mp.sinks.kafka` take them as `value=` and `key=`, beside "json", "string", "bytes", "avro",
"protobuf" and functions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millpond.kafka.avro import AvroFormat, make_avro_format
from millpond.kafka.protobuf import ProtobufFormat, make_protobuf_format

__all__ = ["avro", "protobuf"]


def __dir__() -> list[str]:
    return __all__


def avro(schema: dict[str, Any] | list[Any] | str | Path) -> AvroFormat:
    """Return the Avro format with a schema: a dict, JSON text, or the path of an .avsc file, which is read now.

    Without a registry messages are plain Avro, with nothing before the value. With one they begin with a schema id:
    a source reads what was written with other versions of the schema as this one, and a sink registers the schema.

    >>> import millpond as mp
    >>> mp.formats.avro({"type": "record", "name": "Order", "fields": [{"name": "amount", "type": "long"}]})
    formats.avro(Order)
    """
    return make_avro_format(schema)


def protobuf(message: type) -> ProtobufFormat:
    """Return the Protobuf format with a message class that protoc has generated.

    Rows are dicts with the names of the fields in the .proto file. Without a registry messages are plain Protobuf;
    with one they begin with a schema id, and a sink registers the file of the class and those that it imports.

    >>> import millpond as mp
    >>> from google.protobuf.timestamp_pb2 import Timestamp
    >>> mp.formats.protobuf(Timestamp)
    formats.protobuf(google.protobuf.Timestamp)
    """
    return make_protobuf_format(message)
