"""Message formats: how the bytes of a Kafka message become a value, and a value becomes bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from millpond.errors import InvalidUse, short_repr
from millpond.kafka.avro import AvroDecoder, AvroEncoder, AvroFormat
from millpond.kafka.libraries import load_library
from millpond.kafka.protobuf import ProtobufDecoder, ProtobufEncoder, ProtobufFormat
from millpond.kafka.schema_registry import Registry, RegistrySettings, check_registry, mask_registry
from millpond.rows.plain_json import encode_json
from millpond.user_functions import check_function

__all__ = ["Decoder", "Encoder", "Format", "check_format", "make_decoder", "make_encoder", "mask_registry"]

Format = str | AvroFormat | ProtobufFormat | Callable[[Any], Any]
Decoder = Callable[[bytes, str], Any]
Encoder = Callable[[Any, str], bytes | None]

_NAMES = ("json", "string", "bytes", "avro", "protobuf")
_SCHEMA_FORMATS = ("avro", "protobuf")


def check_format(where: str, argument: str, format: Any, registry: Any) -> None:
    """Raise InvalidUse unless messages can be read or written in this format. Nothing is sent to the registry.

    `where` is the function that the user called, such as "sources.kafka"; what begins with "sinks." writes. `argument`
    is "value" or "key". It is called when the program is built, on the driver, and imports the libraries that the
    format needs.

    >>> check_format("sources.kafka", "value", "json", None)
    >>> check_format("sources.kafka", "value", "xml", None)
    Traceback (most recent call last):
    ...
    millpond.errors.InvalidUse: sources.kafka(value=): expected 'json', 'string', 'bytes', 'avro', 'protobuf', \
mp.formats.avro(…), mp.formats.protobuf(…) or a function, got 'xml'. Choose one of them.
    """
    place = f"{where}({argument}=)"
    if isinstance(format, AvroFormat | ProtobufFormat) or (isinstance(format, str) and format in _SCHEMA_FORMATS):
        _check_schema_format(place, format, registry, is_sink=where.startswith("sinks."))
    elif isinstance(format, str | None | bytes) or not callable(format):
        if not isinstance(format, str) or format not in _NAMES:
            raise InvalidUse(
                f"{place}: expected {', '.join(map(repr, _NAMES))}, mp.formats.avro(…), mp.formats.protobuf(…) or a "
                f"function, got {short_repr(format)}. Choose one of them."
            )
    elif _is_message_class(format):
        raise InvalidUse(
            f"{place}: expected a format, got the Protobuf class {format.__name__}. Write "
            f"mp.formats.protobuf({format.__name__})."
        )
    else:
        check_function(format, place, "row" if where.startswith("sinks.") else "data")


def _check_schema_format(place: str, format: Any, registry: Any, is_sink: bool) -> None:
    is_avro = format == "avro" or isinstance(format, AvroFormat)
    if is_sink and format == "protobuf":
        raise InvalidUse(
            f"{place}: expected a Protobuf class, whose message is written, got 'protobuf'. Write "
            "mp.formats.protobuf(MessageClass)."
        )
    if is_avro:
        load_library("fastavro", f"{place}: Avro")
    else:
        load_library("google.protobuf", f"{place}: Protobuf")
    if registry is not None:
        check_registry(place, registry)
    elif isinstance(format, str):
        inline = "mp.formats.avro(schema)" if is_avro else "mp.formats.protobuf(MessageClass)"
        raise InvalidUse(
            f"{place}: expected registry= beside {format!r}, which holds the schemas, got None. Set registry= to its "
            f"URL, or give the schema with {inline}."
        )


def _is_message_class(format: Any) -> bool:
    return isinstance(format, type) and hasattr(format, "DESCRIPTOR")


def make_decoder(format: Format, *, registry: RegistrySettings | None = None, is_key: bool = False) -> Decoder:
    """Return a function of the bytes of a message and its topic that returns the value. Tombstones never reach it.

    Made once per worker process. It keeps the schemas that it has seen; it can be pickled, without them. It raises
    `Unavailable` if the registry does not answer, `InvalidUse` if the registry refuses, and another exception, whose
    text says what was expected and what came, if the bytes do not fit, or have a schema id that the registry does not
    know: a bad row. What a user's function raises passes through.

    >>> make_decoder("string")(b"water", "orders")
    'water'
    """
    store = None if registry is None else Registry(registry)
    if format == "avro" or isinstance(format, AvroFormat):
        return AvroDecoder(format if isinstance(format, AvroFormat) else None, store)
    if format == "protobuf" or isinstance(format, ProtobufFormat):
        return ProtobufDecoder(format if isinstance(format, ProtobufFormat) else None, store)
    if isinstance(format, str):
        return _DECODERS[format]
    return _FunctionDecoder(format)


def make_encoder(format: Format, *, registry: RegistrySettings | None = None, is_key: bool = False) -> Encoder:
    """Return a function of a value and its topic that returns the bytes of the message; None for None, a tombstone.

    Made once per worker process; it can be pickled. It raises `Unavailable` if the registry does not answer, and
    `InvalidUse`, with the field and the value, if the value does not fit. A user's function is called with None, too.

    >>> make_encoder("json")({"n": 1}, "orders")
    b'{"n":1}'
    """
    store = None if registry is None else Registry(registry)
    if format == "avro" or isinstance(format, AvroFormat):
        return AvroEncoder(format if isinstance(format, AvroFormat) else None, store, is_key)
    if isinstance(format, ProtobufFormat):
        return ProtobufEncoder(format, store, is_key)
    if isinstance(format, str):
        return _PlainEncoder(format, is_key)
    return _FunctionEncoder(format, is_key)


def _decode_json(data: bytes, topic: str) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"expected JSON, got {short_repr(data)}: {error}") from None


def _decode_string(data: bytes, topic: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"expected UTF-8 text, got byte 0x{data[error.start]:02x} at position {error.start} of {short_repr(data)}"
        ) from None


def _decode_bytes(data: bytes, topic: str) -> bytes:
    return data


_DECODERS: dict[str, Decoder] = {"json": _decode_json, "string": _decode_string, "bytes": _decode_bytes}


class _FunctionDecoder:
    """Calls a user's function with the bytes alone."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, data: bytes, topic: str) -> Any:
        return self._function(data)


class _PlainEncoder:
    """Encodes values that need no schema."""

    def __init__(self, format: str, is_key: bool) -> None:
        self._format, self._is_key = format, is_key

    def __call__(self, value: Any, topic: str) -> bytes | None:
        if value is None:
            return None
        if self._format == "json":
            return encode_json(value)
        if self._format == "bytes":
            if isinstance(value, bytes):
                return value
            raise self._refusal(value, topic, "bytes")
        if not isinstance(value, str):
            raise self._refusal(value, topic, "str")
        try:
            return value.encode("utf-8")
        except UnicodeEncodeError:
            raise self._refusal(value, topic, "str that UTF-8 can encode") from None

    def _refusal(self, value: Any, topic: str, expected: str) -> InvalidUse:
        part = "key" if self._is_key else "value"
        return InvalidUse(
            f"message {part} for topic {topic!r}, {part}={self._format!r}: expected {expected}, got "
            f"{short_repr(value)} ({type(value).__name__}). Convert it before the sink, or choose another format."
        )


class _FunctionEncoder:
    """Calls a user's function with the value alone, and checks what it returns."""

    def __init__(self, function: Callable[[Any], Any], is_key: bool) -> None:
        self._function, self._is_key = function, is_key

    def __call__(self, value: Any, topic: str) -> bytes | None:
        data = self._function(value)
        if data is None or isinstance(data, bytes):
            return data
        part = "key" if self._is_key else "value"
        name = getattr(self._function, "__name__", "the function")
        raise InvalidUse(
            f"message {part} for topic {topic!r}: expected {name} to return bytes, or None for a tombstone, got "
            f"{short_repr(data)} ({type(data).__name__}). Encode it, as in text.encode()."
        )
