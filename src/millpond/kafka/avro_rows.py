"""Rows for Avro: checked against a schema, and with the branch of every union chosen.

fastavro writes 3.7 as the long 3, "no" as the boolean True, and a datetime as a date if the union names the date first.
What is checked here is written as it is or refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any
from uuid import UUID

from millpond.kafka.avro_schemas import NAMED, RECORDS, branch_name, definitions_of, find_type, value_type
from millpond.kafka.mismatch import Mismatch, as_dict, is_double, is_float, is_whole

Prepare = Callable[[Any], Any]

_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass
class _Types:
    """The named types of a schema, and the preparers of those that were compiled."""

    definitions: dict[str, Any]
    preparers: dict[str, Prepare] = field(default_factory=dict)


def make_preparer(schema: Any) -> Prepare:
    """Return a function that returns a value as fastavro has to be given it, or raises Mismatch.

    `schema` is of `parse_avro`.
    """
    types = _Types(definitions_of(schema))
    for name, definition in types.definitions.items():
        _define(name, definition, types)
    return _compile(value_type(schema), types)


def _define(name: str, definition: Any, types: _Types) -> None:
    named = types.preparers
    if name not in named:
        named[name] = lambda value: named[name](value)  # a type may contain itself
        named[name] = _compile_definition(definition, types)


def _compile(schema: Any, types: _Types) -> Prepare:
    """Return the preparer of any schema."""
    if isinstance(schema, list):
        return _union(schema, types)
    if isinstance(schema, str):
        return _SCALARS[schema] if schema in _SCALARS else lambda value: types.preparers[schema](value)
    kind = schema["type"]
    if not isinstance(kind, str):
        return _compile(kind, types)
    if kind in NAMED:
        _define(schema["name"], schema, types)
        return types.preparers[schema["name"]]
    logical = _logical(kind, schema)
    if logical is not None:
        return logical
    if kind == "array":
        return _array(_compile(schema["items"], types))
    if kind == "map":
        return _map(_compile(schema["values"], types))
    return _compile(kind, types)


def _compile_definition(schema: Any, types: _Types) -> Prepare:
    if schema["type"] == "enum":
        return _enum(schema["symbols"])
    if schema["type"] == "fixed":
        return _fixed(schema["size"], schema)
    return _record(schema, types)


def _scalar(expected: str, accepts: Callable[[Any], bool]) -> Prepare:
    def prepare(value: Any) -> Any:
        if accepts(value):
            return value
        raise Mismatch(expected, value)

    return prepare


def _is_uuid(value: Any) -> bool:
    if isinstance(value, UUID):
        return True
    try:
        return isinstance(value, str) and str(UUID(value)) == value
    except ValueError:
        return False


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and (value.isascii() or not _SURROGATE.search(value))


_SCALARS: dict[str, Prepare] = {
    "null": _scalar("null (None)", lambda value: value is None),
    "boolean": _scalar("boolean (True or False)", lambda value: isinstance(value, bool)),
    "int": _scalar("int (a whole number of 32 bits)", lambda value: is_whole(value, 32)),
    "long": _scalar("long (a whole number of 64 bits)", lambda value: is_whole(value, 64)),
    "float": _scalar("float (a number of 32 bits)", is_float),
    "double": _scalar("double (a number that 64 bits hold)", is_double),
    "bytes": _scalar("bytes", lambda value: isinstance(value, bytes)),
    "string": _scalar("string (str that UTF-8 can encode: surrogates not allowed)", _is_text),
}

_AWARE = _scalar(
    "timestamp (a datetime with a time zone)",
    lambda value: (isinstance(value, datetime) and value.utcoffset() is not None) or is_whole(value, 64),
)
_LOCAL = _scalar(
    "local timestamp (a datetime without a time zone)",
    lambda value: (isinstance(value, datetime) and value.tzinfo is None) or is_whole(value, 64),
)


def _time(bits: int) -> Prepare:
    return _scalar(
        "time (a time without a time zone)",
        lambda value: (isinstance(value, time) and value.tzinfo is None) or is_whole(value, bits),
    )


_LOGICAL: dict[tuple[str, str], Prepare] = {
    ("long", "timestamp-millis"): _AWARE,
    ("long", "timestamp-micros"): _AWARE,
    ("long", "local-timestamp-millis"): _LOCAL,
    ("long", "local-timestamp-micros"): _LOCAL,
    ("int", "date"): _scalar(
        "date", lambda value: (isinstance(value, date) and not isinstance(value, datetime)) or is_whole(value, 32)
    ),
    ("int", "time-millis"): _time(32),
    ("long", "time-micros"): _time(64),
    ("string", "uuid"): _scalar("UUID", _is_uuid),
}


def _logical(kind: str, schema: Any) -> Prepare | None:
    """Return the preparer of a logical type; None for types without one, and for those that fastavro does not know."""
    logical = schema.get("logicalType")
    if kind == "bytes" and logical == "decimal":
        return _decimal(schema)
    return _LOGICAL.get((kind, logical))


def _decimal(schema: Any) -> Prepare:
    precision, scale = schema["precision"], schema.get("scale", 0)
    context = Context(prec=precision, traps=[Inexact, InvalidOperation])
    unit = Decimal(1).scaleb(-scale)
    expected = f"decimal of at most {precision} digits, {scale} of them after the point"

    def prepare(value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            value = Decimal(value)
        if not isinstance(value, Decimal) or not value.is_finite():
            raise Mismatch(expected, value)
        try:
            return context.quantize(value, unit)
        except (Inexact, InvalidOperation):
            raise Mismatch(expected, value) from None

    return prepare


def _fixed(size: int, schema: Any) -> Prepare:
    logical = schema.get("logicalType")
    if logical == "decimal":
        return _decimal(schema)
    is_bytes = _is_size(size)
    if logical == "uuid" and size == 16:
        return lambda value: value.bytes if isinstance(value, UUID) else is_bytes(value)
    return is_bytes


def _is_size(size: int) -> Prepare:
    return _scalar(f"{size} bytes", lambda value: isinstance(value, bytes) and len(value) == size)


def _enum(symbols: list[str]) -> Prepare:
    known = frozenset(symbols)
    return _scalar(
        f"one of {', '.join(map(repr, symbols[:20]))}", lambda value: isinstance(value, str) and value in known
    )


def _array(prepare_item: Prepare) -> Prepare:
    def prepare(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise Mismatch("array (a list)", value)
        items: list[Any] = []
        try:
            for item in value:
                items.append(prepare_item(item))
        except Mismatch as error:
            error.path = f"[{len(items)}]{error.path}"
            raise
        return items

    return prepare


def _map(prepare_value: Prepare) -> Prepare:
    def prepare(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Mismatch("map (a dict)", value)
        entries = {}
        for key, inner in value.items():
            if not isinstance(key, str):
                raise Mismatch("map (a dict whose keys are str)", value)
            try:
                entries[key] = prepare_value(inner)
            except Mismatch as error:
                error.path = f"[{key!r}]{error.path}"
                raise
        return entries

    return prepare


def _record(schema: Any, types: _Types) -> Prepare:
    fields = {each["name"]: _compile(each["type"], types) for each in schema["fields"]}
    defaults = {each["name"]: _compile_default(each, types) for each in schema["fields"] if "default" in each}
    required = fields.keys() - defaults.keys()
    known = ", ".join(map(repr, list(fields)[:20]))
    name = schema["name"]

    def prepare(value: Any) -> dict[str, Any]:
        row = as_dict(value)
        if row is None:
            raise Mismatch(f"record {name} (a dict, dataclass or Struct)", value)
        entries = {}
        for key, inner in row.items():
            prepare_field = fields.get(key)
            if prepare_field is None:
                raise Mismatch(f"a field of record {name}, which has {known}", key)
            try:
                entries[key] = prepare_field(inner)
            except Mismatch as error:
                error.path = f".{key}{error.path}"
                raise
        missing = required - entries.keys()
        if missing:
            first = next(each for each in fields if each in missing)
            raise Mismatch(f"record {name} with the field {first!r}, which has no default", row)
        for key, default in defaults.items():
            if key not in entries:
                entries[key] = default()
        return entries

    return prepare


def _compile_default(record_field: Any, types: _Types) -> Callable[[], Any]:
    """Return a function that returns the default of a field. A default that is none is refused when it is needed."""
    default = record_field["default"]
    try:
        value = make_default(record_field["type"], types.definitions, default)
    except (Mismatch, RecursionError):

        def refuse() -> Any:
            raise Mismatch("a default that its type can hold, as the field is missing", default, path)

        path = f".{record_field['name']}"
        return refuse
    return lambda: value


def make_default(schema: Any, definitions: dict[str, Any], default: Any) -> Any:
    """Return the default of a field as fastavro has to be given it, or raise Mismatch.

    A schema has bytes as text, a character for each byte, and values of logical types as numbers, texts or bytes.
    """
    schema = find_type(schema, definitions)
    if isinstance(schema, list):
        for branch in schema:
            try:
                return branch_name(branch), make_default(branch, definitions, default)
            except Mismatch:
                pass
        raise Mismatch(f"one of {', '.join(map(repr, map(branch_name, schema)))}", default)
    kind = schema["type"]
    if kind in RECORDS:
        return _record_default(schema, definitions, default)
    if kind == "array" and isinstance(default, list):
        return [make_default(schema["items"], definitions, item) for item in default]
    if kind == "map" and isinstance(default, dict):
        return {key: make_default(schema["values"], definitions, item) for key, item in default.items()}
    return _scalar_default(schema, default)


_NO_NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}  # which JSON does not have


def _scalar_default(schema: Any, default: Any) -> Any:
    kind = schema["type"]
    if kind in ("bytes", "fixed") and isinstance(default, str):
        try:
            data = default.encode("latin-1")
        except UnicodeEncodeError:
            raise Mismatch("bytes, as characters up to U+00FF", default) from None
        return data if kind == "bytes" else _is_size(schema["size"])(data)
    if kind in ("float", "double"):
        return float(_SCALARS[kind](_NO_NUMBERS.get(default, default) if isinstance(default, str) else default))
    if kind == "enum":
        return _enum(schema["symbols"])(default)
    if kind == "string" and schema.get("logicalType") == "uuid":
        return _LOGICAL["string", "uuid"](default)
    if kind not in _SCALARS or kind == "bytes":
        raise Mismatch(kind, default)
    return _SCALARS[kind](default)


def _record_default(schema: Any, definitions: dict[str, Any], default: Any) -> dict[str, Any]:
    fields = {each["name"]: each for each in schema["fields"]}
    if not isinstance(default, dict) or not default.keys() <= fields.keys():
        raise Mismatch(f"record {schema['name']}", default)
    given = {name: each["default"] for name, each in fields.items() if "default" in each} | default
    if given.keys() != fields.keys():
        raise Mismatch(f"record {schema['name']} with every field that has no default", default)
    return {name: make_default(each["type"], definitions, given[name]) for name, each in fields.items()}


def _union(branches: list[Any], types: _Types) -> Prepare:
    """Return the preparer of a union: the first branch that takes the value, as fastavro's pair of name and value.

    Several branches may take a whole number: int and long, then decimal, double, float, and only then the times, whose
    numbers count days or seconds. Records come before maps.
    """
    unique = {branch_name(branch): branch for branch in reversed(branches)}
    order = sorted(reversed(unique), key=lambda name: _rank(find_type(unique[name], types.definitions)))
    choices = [(name, _compile(unique[name], types)) for name in order]
    expected = f"one of {', '.join(map(repr, dict.fromkeys(map(branch_name, branches))))}"

    def prepare(value: Any) -> Any:
        refusals = []
        for name, prepare_branch in choices:
            try:
                return name, prepare_branch(value)
            except Mismatch as error:
                refusals.append(error)
        # A branch that got as far as a field inside the value is the one that was meant.
        deepest = max(refusals, key=lambda error: len(error.path), default=None)
        if deepest is not None and deepest.path:
            raise deepest
        others = [error for (name, _), error in zip(choices, refusals, strict=True) if name != "null"]
        raise others[0] if len(others) == 1 and value is not None else Mismatch(expected, value)

    return prepare


def _rank(branch: Any) -> int:
    kind, logical = branch["type"], branch.get("logicalType")
    if logical == "decimal":
        return 2
    if (kind, logical) in _LOGICAL and kind != "string":
        return 5
    return {"map": 1, "double": 3, "float": 4}.get(kind, 0)
