"""Protobuf: message classes from descriptors, of the program or of a registry, and the registry's wire format."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from millpond.errors import InvalidUse, short_repr
from millpond.kafka.libraries import load_library
from millpond.kafka.mismatch import Mismatch
from millpond.kafka.protobuf_rows import Fill, make_filler, make_reader
from millpond.kafka.schema_registry import Registry, read_schema_id, subject_of, write_schema_id

# Files that every registry and every program has. Their Python modules come with the libraries of millpond[kafka].
_BUNDLED = {
    "google/protobuf/": "google.protobuf.",
    "google/type/": "google.type.",
    "confluent/": "confluent_kafka.schema_registry.confluent.",
}


@dataclass(frozen=True)
class ProtobufFormat:
    """The name of a message type, and its file after all that it imports, serialized. `mp.formats.protobuf` makes it.

    It holds descriptors instead of the class, so that workers need not import the module that protoc has generated.
    """

    message: str
    files: tuple[bytes, ...] = field(repr=False)

    def __repr__(self) -> str:
        return f"formats.protobuf({self.message})"


def make_protobuf_format(message: Any) -> ProtobufFormat:
    """Return the format of a generated class."""
    descriptor: Any = getattr(message, "DESCRIPTOR", None)
    is_message = hasattr(descriptor, "fields_by_name")
    if not isinstance(message, type) or not is_message:
        got = f"an instance of {type(message).__name__}" if is_message else short_repr(message)
        raise InvalidUse(
            f"formats.protobuf: expected a message class that protoc has generated, got {got}. Pass the class, as in "
            "mp.formats.protobuf(orders_pb2.Order)."
        )
    files: dict[str, bytes] = {}
    _collect_files(descriptor.file, files)
    return ProtobufFormat(descriptor.full_name, tuple(files.values()))


def _collect_files(file: Any, files: dict[str, bytes]) -> None:
    """Add a file after those that it imports."""
    for dependency in file.dependencies:
        if dependency.name not in files:
            _collect_files(dependency, files)
    files[file.name] = file.serialized_pb


class _Types:
    """Message types in a descriptor pool of their own, so that they do not meet others of the same name."""

    def __init__(self) -> None:
        self._pool = load_library("google.protobuf.descriptor_pool", "Protobuf").DescriptorPool()
        self._added: set[str] = set()

    def add(self, file: Any) -> Any:
        """Add a FileDescriptorProto after the bundled files that it imports, and return its descriptor."""
        for name in file.dependency:
            if name not in self._added:
                self._add_bundled(name)
        self._added.add(file.name)
        return self._pool.AddSerializedFile(file.SerializeToString())

    def _add_bundled(self, name: str) -> None:
        folder = next((folder for folder in _BUNDLED if name.startswith(folder)), None)
        if folder is None:
            raise InvalidUse(
                f"Protobuf: expected a reference of the schema to the file {name!r}, which it imports, got none. "
                "Register the schema with its references."
            )
        module = _BUNDLED[folder] + name.removeprefix(folder).removesuffix(".proto").replace("/", ".") + "_pb2"
        self.add(_parse_file(load_library(module, f"Protobuf file {name}").DESCRIPTOR.serialized_pb))

    def find(self, name: str) -> Any:
        return self._pool.FindMessageTypeByName(name)


def _parse_file(data: bytes) -> Any:
    """Return a FileDescriptorProto."""
    return load_library("google.protobuf.descriptor_pb2", "Protobuf").FileDescriptorProto.FromString(data)


def _load_descriptor(format: ProtobufFormat) -> Any:
    """Return the descriptor of a format's message type, in a pool of its own."""
    types = _Types()
    for data in format.files:
        types.add(_parse_file(data))
    return types.find(format.message)


def _make_class(descriptor: Any) -> Any:
    return load_library("google.protobuf.message_factory", "Protobuf").GetMessageClass(descriptor)


# --- the wire format ---


def write_indexes(indexes: list[int]) -> bytes:
    """Return where a message type is in its file: positions from the outside in. The first type is a single 0.

    >>> write_indexes([0]), write_indexes([1, 0])
    (b'\\x00', b'\\x04\\x02\\x00')
    """
    if indexes == [0]:
        return b"\0"
    return b"".join(_write_varint(number << 1) for number in [len(indexes), *indexes])


def _write_varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


def read_indexes(data: bytes, start: int) -> tuple[tuple[int, ...], int]:
    """Return the positions of a message type that begin at `start`, and where they end.

    >>> read_indexes(bytes([4, 2, 0]), 0)
    ((1, 0), 3)
    """
    count, end = _read_varint(data, start)
    if count == 0:
        return (0,), end
    if not 0 < count <= len(data):
        raise ValueError(f"expected Protobuf with message indexes after the schema id, got a count of {count}")
    indexes = []
    for _ in range(count):
        index, end = _read_varint(data, end)
        indexes.append(index)
    return tuple(indexes), end


def _read_varint(data: bytes, start: int) -> tuple[int, int]:
    """Return a zigzag number and where it ends."""
    number = 0
    for position in range(start, min(start + 10, len(data))):
        number |= (data[position] & 0x7F) << 7 * (position - start)
        if data[position] < 0x80:
            return (number >> 1) ^ -(number & 1), position + 1
    raise ValueError(f"expected Protobuf with message indexes after the schema id, got {short_repr(data)}")


def _indexes_of(descriptor: Any) -> list[int]:
    """Return where a message type is in its file."""
    parent = descriptor.containing_type
    if parent is None:
        return [list(descriptor.file.message_types_by_name).index(descriptor.name)]
    return [*_indexes_of(parent), [each.name for each in parent.nested_types].index(descriptor.name)]


def _find_type(file: Any, indexes: tuple[int, ...], schema_id: int) -> Any:
    """Return the descriptor of the message type at these positions."""
    found, types = None, list(file.message_types_by_name.values())
    for index in indexes:
        if not 0 <= index < len(types):
            raise ValueError(
                f"expected message indexes of schema id {schema_id}, got {list(indexes)}, where it has no message type"
            )
        found = types[index]
        types = list(found.nested_types)
    return found


class _NotSerialized(InvalidUse):
    """A registry that ignores `format=serialized`."""


class _RegistryFiles:
    """The files of a registry's schemas, each fetched once."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._files: dict[int, Any] = {}

    def get(self, schema_id: int) -> Any:
        """Return the file descriptor of a schema."""
        found = self._files.get(schema_id)
        if found is None:
            schema = self._registry.get_schema(schema_id, "serialized")
            if schema.schema_type != "PROTOBUF":
                raise ValueError(
                    f"expected a Protobuf schema, got schema id {schema_id}, which is {schema.schema_type}"
                )
            types = _Types()
            self._add_references(schema, types, set())
            file = _decode_file(schema.schema_str, f"schema id {schema_id}")
            file.name = f"schema-{schema_id}.proto"
            found = self._files[schema_id] = types.add(file)
        return found

    def _add_references(self, schema: Any, types: _Types, seen: set[str]) -> None:
        for reference in schema.references or []:
            if reference.name not in seen and not reference.name.startswith(tuple(_BUNDLED)):
                seen.add(reference.name)
                referred = self._registry.get_version(reference.subject, reference.version, "serialized")
                self._add_references(referred, types, seen)
                file = _decode_file(referred.schema_str, f"subject {reference.subject!r}")
                file.name = reference.name
                types.add(file)


def _decode_file(text: str, what: str) -> Any:
    try:
        return _parse_file(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, load_library("google.protobuf.message", "Protobuf").DecodeError):
        raise _NotSerialized(
            f"schema registry, {what}: expected a serialized Protobuf file (format=serialized), got "
            f"{short_repr(text)}. A registry that does not serve this form needs mp.formats.protobuf(MessageClass)."
        ) from None


class ProtobufDecoder:
    """Decodes messages: with a registry those with a schema id, without one plain Protobuf of the given class."""

    def __init__(self, format: ProtobufFormat | None, registry: Registry | None) -> None:
        self._format, self._registry = format, registry
        self._files = None if registry is None else _RegistryFiles(registry)
        self._readers: dict[Any, Callable[[bytes], Any]] = {}

    def __reduce__(self) -> Any:
        return ProtobufDecoder, (self._format, self._registry)

    def __call__(self, data: bytes, topic: str) -> Any:
        if self._files is None:
            return self._find_reader(None)(data)
        schema_id = read_schema_id(data, "Protobuf")
        indexes, start = read_indexes(data, 5)
        return self._find_reader((schema_id, indexes))(data[start:])

    def _find_reader(self, place: tuple[int, tuple[int, ...]] | None) -> Callable[[bytes], Any]:
        reader = self._readers.get(place)
        if reader is None:
            reader = self._readers[place] = _make_bytes_reader(self._find_descriptor(place))
        return reader

    def _find_descriptor(self, place: tuple[int, tuple[int, ...]] | None) -> Any:
        if place is None or self._files is None:
            assert self._format is not None  # check_format refuses the rest
            return _load_descriptor(self._format)
        schema_id, indexes = place
        try:
            written = _find_type(self._files.get(schema_id), indexes, schema_id)
        except _NotSerialized:
            if self._format is None:
                raise
            return _load_descriptor(self._format)  # without a file there is nothing to compare
        if self._format is None:
            return written
        # Protobuf decodes the bytes of any message type as any other; the names are all that tells them apart.
        if written.full_name != self._format.message:
            raise ValueError(
                f"expected message {self._format.message}, got {written.full_name} (schema id {schema_id})"
            )
        return _load_descriptor(self._format)


def _make_bytes_reader(descriptor: Any) -> Callable[[bytes], Any]:
    parse, read = _make_class(descriptor).FromString, make_reader(descriptor)
    error_type = load_library("google.protobuf.message", "Protobuf").DecodeError

    def read_bytes(data: bytes) -> Any:
        try:
            message = parse(data)
        except error_type as error:
            raise ValueError(
                f"expected Protobuf ({descriptor.full_name}), got {short_repr(data)} that does not decode: {error}"
            ) from None
        return read(message)

    return read_bytes


class ProtobufEncoder:
    """Encodes rows as messages of the given class; with a registry it registers the files of the class."""

    def __init__(self, format: ProtobufFormat, registry: Registry | None, is_key: bool) -> None:
        self._format, self._registry, self._is_key = format, registry, is_key
        self._descriptor: Any = None
        self._class: Any = None
        self._fill: Fill | None = None
        self._prefixes: dict[str, bytes] = {}

    def __reduce__(self) -> Any:
        return ProtobufEncoder, (self._format, self._registry, self._is_key)

    def __call__(self, value: Any, topic: str) -> bytes | None:
        if value is None:
            return None
        if self._fill is None:
            self._descriptor = _load_descriptor(self._format)
            self._class = _make_class(self._descriptor)
            self._fill = make_filler(self._descriptor)
        prefix = self._prefixes.get(topic)
        if prefix is None:
            prefix = self._prefixes[topic] = self._make_prefix(topic)
        return prefix + self._encode(value, topic, self._fill)

    def _encode(self, value: Any, topic: str, fill: Fill) -> bytes:
        message = self._class()
        failures = (Mismatch, TypeError, ValueError, RecursionError)
        try:
            fill(message, value)
            # In one order of map entries: equal keys must have equal bytes, or they go to different partitions.
            return bytes(message.SerializeToString(deterministic=True))
        except (*failures, load_library("google.protobuf.message", "Protobuf").EncodeError) as error:
            part = "key" if self._is_key else "value"
            raise InvalidUse(
                f"message {part} for topic {topic!r}, Protobuf ({self._format.message}): {error}. The {part}: "
                f"{short_repr(value, 500)}. Change the row before the sink, or the message class."
            ) from None

    def _make_prefix(self, topic: str) -> bytes:
        if self._registry is None:
            return b""
        subject = subject_of(topic, self._is_key)
        schema_id, _ = self._register(self._registry, self._descriptor.file, subject, {})
        return write_schema_id(schema_id) + write_indexes(_indexes_of(self._descriptor))

    def _register(self, registry: Registry, file: Any, subject: str, done: dict[str, int]) -> tuple[int, int]:
        """Register a file after those that it imports, which have the subject of their name; return id and version."""
        references = []
        for dependency in file.dependencies:
            name = dependency.name
            if name.startswith(tuple(_BUNDLED)):
                continue
            if name not in done:
                _, done[name] = self._register(registry, dependency, name, done)
            references.append(registry.refer(name, name, done[name]))
        text = base64.b64encode(file.serialized_pb).decode("ascii")
        return registry.register(subject, text, "PROTOBUF", references)
