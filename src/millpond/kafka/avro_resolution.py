"""Schema resolution: what was written with one Avro schema, in the types of another, the reader's.

fastavro takes the logical types from the writer's schema, and the defaults as they are in the JSON. Here the two
schemas become one that has the bytes of the writer's and the types of the reader's. What is left to do to a value that
was read with it, such as to fill in a default, is a function.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from itertools import count
from typing import Any

from millpond.errors import short_repr
from millpond.kafka.avro_rows import make_default
from millpond.kafka.avro_schemas import (
    NAMED,
    RECORDS,
    branch_name,
    definitions_of,
    find_type,
    parse_avro,
    value_type,
    wrap_type,
)
from millpond.kafka.libraries import load_library
from millpond.kafka.mismatch import Mismatch

Change = Callable[[Any], Any]
Resolved = tuple[Any, Change | None]  # a schema to read with, and what to do to the value; None for nothing

# What the bytes of a type can be read as, beside the type itself.
_PROMOTIONS = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}
# The logical types that fastavro reads. Those of one meaning differ in unit or scale, and are the same Python type.
_MEANINGS = {
    ("long", "timestamp-millis"): "timestamp",
    ("long", "timestamp-micros"): "timestamp",
    ("long", "local-timestamp-millis"): "local timestamp",
    ("long", "local-timestamp-micros"): "local timestamp",
    ("int", "time-millis"): "time",
    ("long", "time-micros"): "time",
    ("int", "date"): "date",
    ("bytes", "decimal"): "decimal",
    ("fixed", "decimal"): "decimal",
    ("string", "uuid"): "uuid",
}


class Unresolvable(ValueError):
    """A schema, or a value of it, that the reader's schema does not take."""

    def __init__(self, expected: str, got: str, path: str = "") -> None:
        super().__init__(expected, got, path)
        self.expected, self.got, self.path = expected, got, path

    def __str__(self) -> str:
        field = f"field {self.path.removeprefix('.')!r}: " if self.path else ""
        return f"{field}expected {self.expected}, got {self.got}"


def resolve(written: Any, wanted: Any) -> Resolved:
    """Return a schema in the form of `parse_avro` that reads what was written, and what to do to the value inside.

    Both arguments are of `parse_avro`. Raises Unresolvable if no value can be read; the function does if one cannot.
    """
    schema, change = _Resolver(definitions_of(written), definitions_of(wanted)).resolve(
        value_type(written), value_type(wanted)
    )
    return parse_avro(schema, {}), change


def make_default_reader(schema: Any, definitions: dict[str, Any], default: Any) -> Callable[[], Any]:
    """Return a function that returns a default as it would be read from a message. Raises Mismatch if it is none.

    Each call returns a value of its own, so that rows do not share a list.
    """
    fastavro, wrapped = load_library("fastavro", "Avro"), wrap_type(schema, definitions)
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, wrapped, {"value": make_default(schema, definitions, default)})

    data = stream.getvalue()

    def read() -> Any:
        return fastavro.schemaless_reader(io.BytesIO(data), wrapped, None)["value"]

    try:
        value = read()
    except Exception:  # a number that is no date, for example
        raise Mismatch(describe_type(schema, definitions), default) from None
    return read if isinstance(value, list | dict) else lambda: value


def describe_type(schema: Any, definitions: dict[str, Any]) -> str:
    """Return a type in words."""
    schema = find_type(schema, definitions)
    if isinstance(schema, list):
        return f"one of {', '.join(map(branch_name, schema))}"
    kind = schema["type"]
    if kind == "fixed":
        return f"fixed {schema['name']} of {schema['size']} bytes"
    if kind in NAMED:
        return f"{kind} {schema['name']}"
    return f"{kind} ({schema['logicalType']})" if "logicalType" in schema else str(kind)


class _Record:
    """A pair of records under one name. While it is being resolved, fields inside it may refer to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_complete = False
        self.change: Change | None = None

    def __call__(self, value: Any) -> Any:
        return value if self.change is None else self.change(value)

    @property
    def resolved(self) -> Resolved:
        return self.name, None if self.is_complete and self.change is None else self


class _Resolver:
    """Resolves the parts of two schemas. Every type of the result has a new name, as a type may meet several others."""

    def __init__(self, written: dict[str, Any], wanted: dict[str, Any]) -> None:
        self._written, self._wanted = written, wanted
        self._records: dict[tuple[str, str | None], _Record] = {}
        self._numbers = count()

    def resolve(self, written: Any, wanted: Any) -> Resolved:
        """Return the schema and the change of two parts that meet."""
        source, target = find_type(written, self._written), find_type(wanted, self._wanted)
        if isinstance(source, list):
            return self._from_union(source, target)
        if isinstance(target, list):
            return self._to_union(source, target)
        kind = source["type"]
        if not _is_readable(source, target):
            raise Unresolvable(describe_type(target, self._wanted), describe_type(source, self._written))
        if kind in RECORDS:
            return self._record(source, target)
        if kind == "enum":
            return self._enum(source, target)
        if kind == "array":
            items, change = self.resolve(source["items"], target["items"])
            return {"type": "array", "items": items}, None if change is None else _change_items(change)
        if kind == "map":
            values, change = self.resolve(source["values"], target["values"])
            return {"type": "map", "values": values}, None if change is None else _change_values(change)
        return self._scalar(source, target)

    def _scalar(self, source: Any, target: Any) -> Resolved:
        kind, goal = source["type"], target["type"]
        meaning = _meaning(target)
        if meaning is not None and meaning == _meaning(source):
            return self._named(source), None  # the value is the same, whatever the unit or the scale
        if meaning is not None or {kind, goal} == {"string", "bytes"}:
            return self._named(target), None  # int and long have the same bytes, string and bytes, too
        is_number = goal in ("float", "double") and kind in ("int", "long")
        return self._named(_plain(source)), float if is_number else None

    def _enum(self, source: Any, target: Any) -> Resolved:
        known, default = frozenset(target["symbols"]), target.get("default")
        schema = self._named({"type": "enum", "symbols": source["symbols"]})
        if known.issuperset(source["symbols"]):
            return schema, None

        def change(symbol: str) -> str:
            if symbol in known:
                return symbol
            if default is None:
                raise Unresolvable(f"one of {', '.join(map(repr, target['symbols'][:20]))}", repr(symbol))
            return str(default)

        return schema, change

    def _record(self, source: Any, target: Any) -> Resolved:
        pair = source["name"], target["name"]
        if pair in self._records:
            return self._records[pair].resolved
        record = self._records[pair] = _Record(self._new_name())
        targets = _match_fields(source, target)
        fields: list[Any] = []
        changes: dict[str, Change | None] = {}
        for field in source["fields"]:
            wanted = targets.get(field["name"])
            if wanted is None:  # a name that no field can have
                fields.append({"name": str(len(fields)), "type": self._skip(field["type"])})
                continue
            name = wanted["name"]
            try:
                schema, changes[name] = self.resolve(field["type"], wanted["type"])
            except Unresolvable as error:
                error.path = f".{name}{error.path}"
                raise
            fields.append({"name": name, "type": schema})
        record.change = self._fields_change(target, [field["name"] for field in fields], changes)
        record.is_complete = True
        return {"type": "record", "name": record.name, "fields": fields}, record.resolved[1]

    def _fields_change(self, target: Any, read: list[str], changes: dict[str, Change | None]) -> Change | None:
        """Return what makes a record of the reader's of the fields that were read."""
        names = [field["name"] for field in target["fields"]]
        if read == names and not any(changes.values()):
            return None
        defaults = {field["name"]: self._default(field) for field in target["fields"] if field["name"] not in changes}
        steps = [(name, changes.get(name), defaults.get(name)) for name in names]

        def change(value: dict[str, Any]) -> dict[str, Any]:
            row = {}
            for name, change_field, read_default in steps:
                if read_default is not None:
                    row[name] = read_default()
                elif change_field is None:
                    row[name] = value[name]
                else:
                    try:
                        row[name] = change_field(value[name])
                    except Unresolvable as error:
                        error.path = f".{name}{error.path}"
                        raise
            return row

        return change

    def _default(self, field: Any) -> Callable[[], Any]:
        path = f".{field['name']}"
        if "default" not in field:
            raise Unresolvable("a default, as the field was not written", "none", path)
        try:
            return make_default_reader(field["type"], self._wanted, field["default"])
        except (Mismatch, RecursionError):
            expected = f"a default that is {describe_type(field['type'], self._wanted)}"
            raise Unresolvable(expected, short_repr(field["default"]), path) from None

    def _from_union(self, branches: list[Any], wanted: Any) -> Resolved:
        resolved = []
        for branch in branches:
            try:
                resolved.append(self._try(branch, wanted))
            except Unresolvable as error:  # for values of this branch only
                resolved.append((self._skip(branch), _refuse(error)))
        if not any(change for _, change in resolved):
            return [schema for schema, _ in resolved], None
        # A record around each branch tells which branch the value had.
        wrapped = [
            {"type": "record", "name": self._new_name(), "fields": [{"name": str(i), "type": schema}]}
            for i, (schema, _) in enumerate(resolved)
        ]
        changes = {str(i): change for i, (_, change) in enumerate(resolved)}

        def change(value: dict[str, Any]) -> Any:
            ((branch, inner),) = value.items()
            change_branch = changes[branch]
            return inner if change_branch is None else change_branch(inner)

        return wrapped, change

    def _to_union(self, source: Any, branches: list[Any]) -> Resolved:
        """Resolve to the branch of the same type, or else to the first that takes the value."""
        kinds = [find_type(branch, self._wanted)["type"] for branch in branches]
        order = sorted(range(len(branches)), key=lambda i: kinds[i] != source["type"])
        refusals = []
        for i in order:
            try:
                return self._try(source, branches[i])
            except Unresolvable as error:
                refusals.append(error)
        # A branch that got as far as a field inside is the one that was meant.
        deepest = max(refusals, key=lambda error: len(error.path), default=None)
        if deepest is not None and deepest.path:
            raise deepest
        raise Unresolvable(describe_type(branches, self._wanted), describe_type(source, self._written))

    def _try(self, written: Any, wanted: Any) -> Resolved:
        """Resolve two parts; if it fails, forget the records that it has defined."""
        before = dict(self._records)
        try:
            return self.resolve(written, wanted)
        except Unresolvable:
            self._records = before
            raise

    def _skip(self, written: Any) -> Any:
        """Return a schema with the bytes of the writer's, for a value that is not needed."""
        schema = find_type(written, self._written)
        if isinstance(schema, list):
            return [self._skip(branch) for branch in schema]
        kind = schema["type"]
        if kind == "array":
            return {"type": "array", "items": self._skip(schema["items"])}
        if kind == "map":
            return {"type": "map", "values": self._skip(schema["values"])}
        if kind not in RECORDS:
            return self._named(_plain(schema))
        pair = schema["name"], None
        if pair in self._records:
            return self._records[pair].name
        record = self._records[pair] = _Record(self._new_name())
        fields = [{"name": str(i), "type": self._skip(field["type"])} for i, field in enumerate(schema["fields"])]
        return {"type": "record", "name": record.name, "fields": fields}

    def _named(self, schema: Any) -> Any:
        """Return a type under a new name, if it needs one."""
        if schema["type"] not in NAMED:
            return schema
        others = {key: value for key, value in schema.items() if key not in ("namespace", "aliases", "default")}
        return {**others, "name": self._new_name()}

    def _new_name(self) -> str:
        return f"resolved_{next(self._numbers)}"


def _is_readable(source: Any, target: Any) -> bool:
    """Return whether values of a type can be of another, as far as the outermost type and its name tell."""
    kind, goal = source["type"], target["type"]
    if kind in RECORDS and goal in RECORDS:
        return _has_name_of(source, target)
    if kind != goal:
        return goal in _PROMOTIONS.get(kind, ())
    if kind == "fixed":
        return _has_name_of(source, target) and bool(source["size"] == target["size"])
    return kind != "enum" or _has_name_of(source, target)


def _has_name_of(source: Any, target: Any) -> bool:
    """Return whether two named types have the same name, apart from namespaces, or one that is an alias."""
    name, aliases = source["name"], target.get("aliases") or ()
    short = name.rpartition(".")[2]
    return short == target["name"].rpartition(".")[2] or name in aliases or short in aliases


def _match_fields(source: Any, target: Any) -> dict[str, Any]:
    """Return the reader's fields by the names that the writer has for them."""
    written = [field["name"] for field in source["fields"]]
    found = {}
    for field in target["fields"]:
        names = [field["name"], *(field.get("aliases") or ())]
        name = next((name for name in names if name in written and name not in found), None)
        if name is not None:
            found[name] = field
    return found


def _meaning(schema: Any) -> str | None:
    return _MEANINGS.get((schema["type"], schema.get("logicalType")))


def _plain(schema: Any) -> Any:
    """Return a type without its logical type."""
    return {key: value for key, value in schema.items() if key != "logicalType"}


def _refuse(error: Unresolvable) -> Change:
    def refuse(value: Any) -> Any:
        raise Unresolvable(error.expected, error.got, error.path)

    return refuse


def _change_items(change: Change) -> Change:
    return lambda value: [change(item) for item in value]


def _change_values(change: Change) -> Change:
    return lambda value: {key: change(item) for key, item in value.items()}
