"""Avro schemas as fastavro parses them, and the definitions of the types that they name."""

from __future__ import annotations

from typing import Any

from millpond.kafka.libraries import load_library

NAMED = frozenset({"record", "error", "enum", "fixed"})
RECORDS = frozenset({"record", "error"})
PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})

# A record's bytes are those of its fields, one after the other, so a record of one field has the bytes of that field.
# Around every schema it gives fastavro a place for the definitions that the schema refers to, whatever its type is.
_WRAPPER = "millpond_wrapper"


def parse_avro(schema: Any, definitions: dict[str, Any]) -> Any:
    """Return a schema as fastavro reads and writes it: a record with the one field "value".

    `definitions` are named types that the schema may refer to; its own are added.
    """
    wrapped = {"type": "record", "name": _WRAPPER, "fields": [{"name": "value", "type": schema}]}
    return load_library("fastavro", "Avro").parse_schema(wrapped, named_schemas=definitions)


def value_type(parsed: Any) -> Any:
    """Return the type inside a schema of `parse_avro`."""
    return parsed["fields"][0]["type"]


def definitions_of(parsed: Any) -> dict[str, Any]:
    """Return the types that a schema of `parse_avro` names, without the record around it."""
    return {
        name: definition
        for name, definition in parsed["__named_schemas"].items()
        if name != _WRAPPER and definition is not None
    }


def wrap_type(schema: Any, definitions: dict[str, Any]) -> Any:
    """Return a part of a parsed schema in the form of `parse_avro`."""
    fields = [{"name": "value", "type": schema}]
    return {
        "type": "record",
        "name": _WRAPPER,
        "fields": fields,
        "__fastavro_parsed": True,
        "__named_schemas": definitions,
    }


def find_type(schema: Any, definitions: dict[str, Any]) -> Any:
    """Return a part of a parsed schema as a dict whose "type" is a word, or as a list, a union."""
    while not isinstance(schema, list):
        if isinstance(schema, str):
            if schema in PRIMITIVES:
                return {"type": schema}
            schema = definitions[schema]
        elif isinstance(schema["type"], str):
            return schema
        else:
            schema = schema["type"]
    return schema


def branch_name(branch: Any) -> str:
    """Return what fastavro calls a branch of a union."""
    if isinstance(branch, str):
        return branch
    kind = branch["type"]
    return str(branch["name"]) if kind in NAMED else str(kind)
