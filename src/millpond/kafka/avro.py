"""Avro: rows as plain dicts, with the writer's schema from a registry or with one that the program gives."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millpond.errors import InvalidUse, short_repr
from millpond.kafka.avro_resolution import Change, Unresolvable, describe_type, make_default_reader, resolve
from millpond.kafka.avro_rows import make_preparer
from millpond.kafka.avro_schemas import definitions_of, parse_avro
from millpond.kafka.libraries import load_library
from millpond.kafka.mismatch import Mismatch
from millpond.kafka.schema_registry import Registry, read_schema_id, subject_of, write_schema_id


@dataclass(frozen=True)
class AvroFormat:
    """An Avro schema as JSON text. `mp.formats.avro` makes it and checks the schema."""

    schema: str

    def __repr__(self) -> str:
        return f"formats.avro({_name_of(json.loads(self.schema))})"


def make_avro_format(schema: Any) -> AvroFormat:
    """Return the format of a schema: a dict or list, JSON text, or the path of an .avsc file, which is read now."""
    parsed = _read_schema(schema)
    try:
        _check_defaults(definitions_of(parse_avro(parsed, {})))
    except InvalidUse:
        raise
    except Exception as error:
        raise InvalidUse(
            f"formats.avro: expected an Avro schema, got {short_repr(schema, 200)}: {type(error).__name__}: {error}. "
            "Correct the schema."
        ) from None
    return AvroFormat(json.dumps(parsed, separators=(",", ":")))


def _check_defaults(definitions: dict[str, Any]) -> None:
    """Raise InvalidUse if a field has a default that its type does not hold: fastavro looks at the outermost type."""
    for name, definition in definitions.items():
        for field in definition.get("fields", ()):
            if "default" in field:
                try:
                    make_default_reader(field["type"], definitions, field["default"])
                except (Mismatch, RecursionError):
                    raise InvalidUse(
                        f"formats.avro: field {field['name']!r} of record {name}: expected a default that is "
                        f"{describe_type(field['type'], definitions)}, got {short_repr(field['default'])}. Correct "
                        "the schema."
                    ) from None


def _read_schema(schema: Any) -> Any:
    """Return a schema as JSON data."""
    if isinstance(schema, dict | list):
        try:
            return json.loads(json.dumps(schema))
        except (TypeError, ValueError) as error:
            raise InvalidUse(
                f"formats.avro: expected an Avro schema of JSON values, got {short_repr(schema, 200)}: {error}. "
                "Correct the schema."
            ) from None
    if not isinstance(schema, str | Path):
        raise InvalidUse(
            "formats.avro: expected an Avro schema (a dict, JSON text, or the path of an .avsc file), got "
            f"{short_repr(schema)}. Pass the schema."
        )
    text = str(schema)
    if isinstance(schema, Path) or text.endswith(".avsc"):
        try:
            text = Path(schema).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise InvalidUse(
                f"formats.avro: expected an .avsc file that can be read, got {str(schema)!r}: {error}. Correct "
                "the path."
            ) from None
    if text.isidentifier():  # the name of a primitive type, such as string
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidUse(
            f"formats.avro: expected an Avro schema as JSON, got {short_repr(text, 200)}: {error}. A path must end in "
            ".avsc."
        ) from None


def _name_of(schema: Any) -> str:
    """Return a short name for a schema, for messages."""
    if isinstance(schema, dict):
        name, space = schema.get("name"), schema.get("namespace")
        if name is None:
            return _name_of(schema.get("type"))
        return f"{space}.{name}" if space and "." not in name else str(name)
    return "union" if isinstance(schema, list) else str(schema)


class _Schemas:
    """The schemas of a registry in parsed form, each fetched and parsed once."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._parsed: dict[int, tuple[str, Any]] = {}

    def get(self, schema_id: int) -> tuple[str, Any]:
        """Return the name of a schema and its parsed form."""
        found = self._parsed.get(schema_id)
        if found is None:
            found = self._parsed[schema_id] = self.parse(schema_id, self._registry.get_schema(schema_id))
        return found

    def parse(self, schema_id: int, schema: Any) -> tuple[str, Any]:
        if schema.schema_type not in (None, "AVRO"):
            raise ValueError(f"expected an Avro schema, got schema id {schema_id}, which is {schema.schema_type}")
        definitions: dict[str, Any] = {}
        self._define(schema, definitions, set())
        parsed = json.loads(schema.schema_str)
        return f"{_name_of(parsed)}, schema id {schema_id}", parse_avro(parsed, definitions)

    def _define(self, schema: Any, definitions: dict[str, Any], seen: set[tuple[str, int]]) -> None:
        """Add the types of all schemas that a schema refers to, each once, those that others need first."""
        parse = load_library("fastavro", "Avro").parse_schema
        for reference in schema.references or []:
            place = (reference.subject, reference.version)
            if place not in seen:
                seen.add(place)
                referred = self._registry.get_version(*place)
                self._define(referred, definitions, seen)
                parse(json.loads(referred.schema_str), named_schemas=definitions)


class AvroDecoder:
    """Decodes messages: with a registry those with a schema id, without one plain Avro of the given schema."""

    def __init__(self, format: AvroFormat | None, registry: Registry | None) -> None:
        self._format, self._registry = format, registry
        self._schemas = None if registry is None else _Schemas(registry)
        self._readers: dict[int | None, _Reader] = {}

    def __reduce__(self) -> Any:
        return AvroDecoder, (self._format, self._registry)

    def __call__(self, data: bytes, topic: str) -> Any:
        schema_id = None if self._schemas is None else read_schema_id(data, "Avro")
        reader = self._readers.get(schema_id)
        if reader is None:
            reader = self._readers[schema_id] = self._make_reader(schema_id)
        return reader(data, 0 if schema_id is None else 5)

    def _make_reader(self, schema_id: int | None) -> _Reader:
        own = None if self._format is None else parse_avro(json.loads(self._format.schema), {})
        if self._schemas is None or schema_id is None:
            return _Reader(repr(self._format), own)
        name, written = self._schemas.get(schema_id)
        if own is None:
            return _Reader(name, written)
        try:
            return _Reader(name, *resolve(written, own))
        except Unresolvable as error:
            return _Reader(
                name, None, refusal=f"expected Avro that {self._format!r} can read, got Avro ({name}): {error}"
            )


@dataclass(frozen=True)
class _Reader:
    """Reads messages of one schema. `refusal` says why none of them can be read."""

    name: str
    schema: Any
    change: Change | None = None
    refusal: str | None = None

    def __call__(self, data: bytes, start: int) -> Any:
        """Return the value that begins at `start` and ends where the message ends."""
        if self.refusal is not None:
            raise ValueError(self.refusal)
        stream = io.BytesIO(data)
        stream.seek(start)
        try:
            value = load_library("fastavro", "Avro").schemaless_reader(stream, self.schema, None)["value"]
            rest = len(data) - stream.tell()
            if not rest and self.change is not None:
                value = self.change(value)
        except Unresolvable as error:
            raise ValueError(f"Avro ({self.name}): {error}") from None
        except Exception as error:  # bytes that are no Avro make fastavro raise anything
            said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise ValueError(
                f"expected Avro ({self.name}), got {short_repr(data)} that does not decode: {said}"
            ) from None
        if rest:
            raise ValueError(f"expected Avro ({self.name}) and no more, got {rest} bytes after the value")
        return value


@dataclass(frozen=True)
class _Writer:
    """What it takes to write with one schema."""

    name: str
    prefix: bytes
    schema: Any
    prepare: Callable[[Any], Any]


class AvroEncoder:
    """Encodes rows: with the given schema, registered if there is a registry, or else with the subject's newest."""

    def __init__(self, format: AvroFormat | None, registry: Registry | None, is_key: bool) -> None:
        self._format, self._registry, self._is_key = format, registry, is_key
        self._schemas = None if registry is None else _Schemas(registry)
        self._writers: dict[str | int, _Writer] = {}

    def __reduce__(self) -> Any:
        return AvroEncoder, (self._format, self._registry, self._is_key)

    def __call__(self, value: Any, topic: str) -> bytes | None:
        if value is None:
            return None
        writer = self._find_writer(topic)
        stream = io.BytesIO(writer.prefix)
        stream.seek(len(writer.prefix))
        try:
            row = {"value": writer.prepare(value)}
            load_library("fastavro", "Avro").schemaless_writer(stream, writer.schema, row)
        except (
            Mismatch,
            TypeError,
            ValueError,
            OverflowError,
            RecursionError,
        ) as error:
            raise self._refusal(writer, topic, error, value) from None
        return stream.getvalue()

    def _refusal(self, writer: _Writer, topic: str, error: Exception, value: Any) -> InvalidUse:
        part = "key" if self._is_key else "value"
        said = str(error).removesuffix(" on field value")  # the field of the record around every schema
        return InvalidUse(
            f"message {part} for topic {topic!r}, Avro ({writer.name}): {said}. The {part}: {short_repr(value, 500)}. "
            "Change the row before the sink, or the schema."
        )

    def _find_writer(self, topic: str) -> _Writer:
        if self._format is not None:
            writer = self._writers.get(topic)
            if writer is None:
                writer = self._writers[topic] = self._own_writer(self._format, topic)
            return writer
        assert self._registry is not None and self._schemas is not None  # check_format refuses the rest
        latest = self._registry.get_latest(subject_of(topic, self._is_key))
        writer = self._writers.get(latest.schema_id)
        if writer is None:
            try:
                name, schema = self._schemas.parse(latest.schema_id, latest.schema)
            except ValueError as error:
                subject = subject_of(topic, self._is_key)
                raise InvalidUse(f"subject {subject!r}: {error}. Choose the format that the subject has.") from None
            writer = _Writer(name, write_schema_id(latest.schema_id), schema, make_preparer(schema))
            self._writers[latest.schema_id] = writer
        return writer

    def _own_writer(self, format: AvroFormat, topic: str) -> _Writer:
        parsed = json.loads(format.schema)
        prefix = b""
        if self._registry is not None:
            schema_id, _ = self._registry.register(subject_of(topic, self._is_key), format.schema, "AVRO")
            prefix = write_schema_id(schema_id)
        schema = parse_avro(parsed, {})
        return _Writer(_name_of(parsed), prefix, schema, make_preparer(schema))
