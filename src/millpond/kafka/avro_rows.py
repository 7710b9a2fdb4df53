"""Rows for Avro: checked against a schema, and with the branch of every union chosen.

fastavro writes 3.7 as the long 3, "no" as the boolean True, and a datetime as a date if the union names the date first.
What is checked here is written as it is or refused.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any
from uuid import UUID

from millpond.kafka.mismatch import Mismatch, as_dict, is_double, is_float, is_whole

Prepare = Callable[[Any], Any]

_NAMED = frozenset({"record", "error", "enum", "fixed"})


def make_preparer(schema: Any) -> Prepare:
    """Return a function that returns a value as fastavro has to be given it, or raises Mismatch.

    `schema` is a record with the one field "value", as `avro` wraps every schema.
    """
    named: dict[str, Prepare] = {}
    for name, definition in schema["__named_schemas"].items():
        if definition is not None and name != schema["name"]:
            _define(name, definition, named)
    return _compile(schema["fields"][0]["type"], named)


def _define(name: str, definition: Any, named: dict[str, Prepare]) -> None:
    if name not in named:
        named[name] = lambda value: named[name](value)  # a type may contain itself
        named[name] = _compile_definition(definition, named)


def _compile(schema: Any, named: dict[str, Prepare]) -> Prepare:
    """Return the preparer of any schema."""
    if isinstance(schema, list):
        return _union(schema, named)
    if isinstance(schema, str):
        return _SCALARS[schema] if schema in _SCALARS else lambda value: named[schema](value)
    kind = schema["type"]
    if not isinstance(kind, str):
        return _compile(kind, named)
    if kind in _NAMED:
        _define(schema["name"], schema, named)
        return named[schema["name"]]
    logical = _logical(kind, schema)
    if logical is not None:
        return logical
    if kind == "array":
        return _array(_compile(schema["items"], named))
    if kind == "map":
        return _map(_compile(schema["values"], named))
    return _compile(kind, named)


def _compile_definition(schema: Any, named: dict[str, Prepare]) -> Prepare:
    if schema["type"] == "enum":
        return _enum(schema["symbols"])
    if schema["type"] == "fixed":
        return _fixed(schema["size"], schema)
    return _record(schema, named)


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


_SCALARS: dict[str, Prepare] = {
    "null": _scalar("null (None)", lambda value: value is None),
    "boolean": _scalar("boolean (True or False)", lambda value: isinstance(value, bool)),
    "int": _scalar("int (a whole number of 32 bits)", lambda value: is_whole(value, 32)),
    "long": _scalar("long (a whole number of 64 bits)", lambda value: is_whole(value, 64)),
    "float": _scalar("float (a number of 32 bits)", is_float),
    "double": _scalar("double (a number that 64 bits hold)", is_double),
    "bytes": _scalar("bytes", lambda value: isinstance(value, bytes)),
    "string": _scalar("string (str)", lambda value: isinstance(value, str)),
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
    is_bytes = _scalar(f"{size} bytes", lambda value: isinstance(value, bytes) and len(value) == size)
    if logical == "uuid" and size == 16:
        return lambda value: value.bytes if isinstance(value, UUID) else is_bytes(value)
    return is_bytes


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


def _record(schema: Any, named: dict[str, Prepare]) -> Prepare:
    fields = {field["name"]: _compile(field["type"], named) for field in schema["fields"]}
    optional = {field["name"] for field in schema["fields"] if "default" in field}
    required = fields.keys() - optional
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
            field = next(each for each in fields if each in missing)
            raise Mismatch(f"record {name} with the field {field!r}, which has no default", row)
        return entries

    return prepare


def _union(branches: list[Any], named: dict[str, Prepare]) -> Prepare:
    """Return the preparer of a union: the first branch that takes the value, as fastavro's pair of name and value.

    Numbers that are whole go to int and long if they can; double comes before float, and records before maps.
    """
    unique = {_branch_name(branch): branch for branch in reversed(branches)}
    order = sorted(reversed(unique), key=lambda name: {"map": 1, "double": 2, "float": 3}.get(name, 0))
    choices = [(name, _compile(unique[name], named)) for name in order]
    expected = f"one of {', '.join(map(repr, dict.fromkeys(map(_branch_name, branches))))}"

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


def _branch_name(branch: Any) -> str:
    """Return what fastavro calls a branch."""
    if isinstance(branch, str):
        return branch
    kind = branch["type"]
    return str(branch["name"]) if kind in _NAMED else str(kind)
