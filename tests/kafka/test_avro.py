"""Avro messages: round trips, the registry's wire format, evolution of schemas, and what is refused."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schema_registry import SchemaRegistry

import millpond as mp
from millpond.errors import InvalidUse
from millpond.kafka.avro_resolution import resolve
from millpond.kafka.avro_schemas import parse_avro
from millpond.kafka.message_formats import make_decoder, make_encoder

Field = tuple[Any, st.SearchStrategy[Any]]  # a schema, and the values that it holds


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": kind} for key, kind in fields.items()]}


ORDER = record("Order", customer="string", amount="long")


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as server:
        yield server


def write(schema: Any, value: Any) -> bytes:
    """Avro as fastavro writes it by itself."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def framed(schema_id: int, data: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + data


# --- round trips ---


def logical(kind: str, meaning: str, **others: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": meaning, **others}


def floored(value: Any) -> Any:
    return value.replace(microsecond=value.microsecond // 1000 * 1000)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
AWARE = st.datetimes(timezones=st.just(UTC))
CENTS = st.integers(-(10**9), 10**9).map(lambda n: Decimal(n).scaleb(-2))

LEAVES: list[Field] = [
    ("null", st.none()),
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.integers(-(2**63), 2**63 - 1)),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("bytes", st.binary(max_size=8)),
    ("string", TEXT),
    (logical("long", "timestamp-millis"), AWARE.map(floored)),
    (logical("long", "timestamp-micros"), AWARE),
    (logical("long", "local-timestamp-millis"), st.datetimes().map(floored)),
    (logical("long", "local-timestamp-micros"), st.datetimes()),
    (logical("int", "date"), st.dates()),
    (logical("int", "time-millis"), st.times().map(floored)),
    (logical("long", "time-micros"), st.times()),
    (logical("bytes", "decimal", precision=12, scale=2), CENTS),
    (logical("string", "uuid"), st.uuids()),
]


@st.composite
def schemas(draw: st.DrawFn, depth: int = 3) -> Field:
    """A schema of any type and values of it. Names are unique within a schema."""
    counter = draw(st.shared(st.builds(lambda: iter(range(10_000))), key="names"))

    def build(depth: int) -> Field:
        kinds = ["leaf", "enum", "fixed", "decimal"] + ["array", "map", "record", "union"] * (depth > 0)
        match draw(st.sampled_from(kinds)):
            case "leaf":
                return draw(st.sampled_from(LEAVES))
            case "enum":
                symbols = ["A", "B", "C"]
                return {"type": "enum", "name": f"E{next(counter)}", "symbols": symbols}, st.sampled_from(symbols)
            case "fixed":
                return {"type": "fixed", "name": f"F{next(counter)}", "size": 3}, st.binary(min_size=3, max_size=3)
            case "decimal":
                schema = logical("fixed", "decimal", name=f"D{next(counter)}", size=8, precision=12, scale=2)
                return schema, CENTS
            case "array":
                items, values = build(depth - 1)
                return {"type": "array", "items": items}, st.lists(values, max_size=3)
            case "map":
                inner, values = build(depth - 1)
                return {"type": "map", "values": inner}, st.dictionaries(TEXT, values, max_size=3)
            case "union":
                return build_union(depth)
        fields = {f"f{i}": build(depth - 1) for i in range(draw(st.integers(0, 3)))}
        schema = record(f"R{next(counter)}", **{name: kind for name, (kind, _) in fields.items()})
        return schema, st.fixed_dictionaries({name: values for name, (_, values) in fields.items()})

    def build_union(depth: int) -> Field:
        """Branches of different types. A float would come back as the double beside it, so there is one of them."""
        branches: dict[str, Field] = {}
        for _ in range(draw(st.integers(1, 3))):
            kind, values = build(depth - 1)
            name = kind if isinstance(kind, str) else "union" if isinstance(kind, list) else kind["type"]
            group = {"float": "double", "int": "long", "enum": "string", "map": "record", "fixed": "bytes"}
            if name != "union":
                branches.setdefault(group.get(name, name), (kind, values))
        if not branches:
            branches["null"] = ("null", st.none())
        return [kind for kind, _ in branches.values()], st.one_of([values for _, values in branches.values()])

    return build(depth)


@given(st.data())
def test_every_value_of_every_schema_comes_back(data: st.DataObject) -> None:
    schema, values = data.draw(schemas())
    value = data.draw(values)
    format = pickle.loads(pickle.dumps(mp.formats.avro(schema)))
    encoded = make_encoder(format)(value, "orders")
    if value is None:
        assert encoded is None
        return
    assert encoded is not None
    again = make_decoder(format)(encoded, "orders")
    assert again == value and type(again) is type(value)


@pytest.mark.parametrize("kind", LEAVES, ids=lambda field: json.dumps(field[0]))
@given(st.data())
def test_a_field_of_each_type_is_written_as_fastavro_reads_it(kind: Field, data: st.DataObject) -> None:
    schema, values = record("Row", f=["null", kind[0]] if kind[0] != "null" else "null"), kind[1]
    row = {"f": data.draw(values)}
    encoded = make_encoder(mp.formats.avro(schema))(row, "orders")
    assert encoded is not None
    assert fastavro.schemaless_reader(io.BytesIO(encoded), fastavro.parse_schema(schema), None) == row


@dataclass
class Line:
    sku: str
    count: int


class Basket(msgspec.Struct):
    lines: tuple[Line, ...]
    note: str | None = None


def test_dataclasses_structs_and_tuples_are_written_as_records_and_arrays() -> None:
    line = record("Line", sku="string", count="int")
    format = mp.formats.avro(record("Basket", lines={"type": "array", "items": line}, note=["null", "string"]))
    encoded = make_encoder(format)(Basket((Line("a", 1), Line("b", 2))), "orders")
    rows = make_decoder(format)(encoded or b"", "orders")
    assert rows == {"lines": [{"sku": "a", "count": 1}, {"sku": "b", "count": 2}], "note": None}


def test_a_record_may_contain_itself() -> None:
    schema = record("Node", value="int", next=["null", "Node"])
    row = {"value": 1, "next": {"value": 2, "next": None}}
    format = mp.formats.avro(schema)
    assert make_decoder(format)(make_encoder(format)(row, "t") or b"", "t") == row


def test_a_missing_field_gets_its_default() -> None:
    schema = record("Order", customer="string") | {
        "fields": [
            {"name": "customer", "type": "string"},
            {"name": "note", "type": ["null", "string"], "default": None},
        ]
    }
    format = mp.formats.avro(schema)
    encoded = make_encoder(format)({"customer": "ann"}, "t")
    assert make_decoder(format)(encoded or b"", "t") == {"customer": "ann", "note": None}


@pytest.mark.parametrize(
    ("union", "value"),
    [
        ([logical("int", "date"), logical("long", "timestamp-micros")], datetime(2026, 1, 2, 3, tzinfo=UTC)),
        ([logical("long", "timestamp-micros"), logical("int", "date")], date(2026, 1, 2)),
        (["double", "long"], 3),
        (["long", "double"], 3.0),
        (["float", "double"], 0.1),
        ([logical("long", "timestamp-millis"), "int"], 5),
        ([logical("int", "date"), "long"], 5),
        ([logical("long", "time-micros"), "int"], 5),
        (["null", logical("bytes", "decimal", precision=9, scale=2), "long"], 5),
        ([logical("fixed", "decimal", name="D", size=8, precision=9, scale=2), "int"], 5),
        ([logical("bytes", "decimal", precision=9, scale=2), "long"], Decimal("5.00")),
        ([logical("int", "date"), "double"], 5.0),
        (["int", "long"], 2**40),
        (["int", "boolean"], True),
        ([{"type": "map", "values": "long"}, record("R", n="long")], {"n": 1}),
        (["null", {"type": "array", "items": ["null", "string"]}], [None, "a"]),
    ],
)
def test_a_union_takes_the_branch_that_holds_the_value(union: list[Any], value: Any) -> None:
    format = mp.formats.avro(record("Row", f=union))
    again = make_decoder(format)(make_encoder(format)({"f": value}, "t") or b"", "t")["f"]
    assert again == value and type(again) is type(value)


def test_a_uuid_can_be_written_as_fixed_bytes() -> None:
    format = mp.formats.avro(record("Row", id=logical("fixed", "uuid", name="Id", size=16)))
    encoded = make_encoder(format)({"id": UUID(int=7)}, "t")
    assert make_decoder(format)(encoded or b"", "t") == {"id": UUID(int=7).bytes}


# --- defaults ---

DEFAULTS = [
    ("double", 1, 1.0),
    ("double", "Infinity", float("inf")),
    ("bytes", "\u00ff\u0001", b"\xff\x01"),
    ({"type": "fixed", "name": "F", "size": 2}, "\u00ff\u0000", b"\xff\x00"),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
    (["null", "int"], None, None),
    (["int", "null"], 7, 7),
    (["null", "int"], 7, 7),
    (["bytes", "null"], "\u00ff", b"\xff"),
    ([logical("long", "timestamp-millis"), "null"], 0, datetime(1970, 1, 1, tzinfo=UTC)),
    ({"type": "array", "items": "bytes"}, ["\u00ff"], [b"\xff"]),
    ({"type": "map", "values": logical("int", "date")}, {"a": 1}, {"a": date(1970, 1, 2)}),
    (record("Q", q="int", w="bytes"), {"q": 1, "w": "\u00ff"}, {"q": 1, "w": b"\xff"}),
    (logical("long", "timestamp-millis"), 1500, datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)),
    (logical("long", "local-timestamp-micros"), 1, datetime(1970, 1, 1, 0, 0, 0, 1)),
    (logical("int", "date"), 1, date(1970, 1, 2)),
    (logical("int", "time-millis"), 1000, time(0, 0, 1)),
    (logical("bytes", "decimal", precision=4, scale=2), "\u0001", Decimal("0.01")),
    (logical("fixed", "decimal", name="D", size=2, precision=4, scale=2), "\u0000\u0001", Decimal("0.01")),
    (logical("string", "uuid"), str(UUID(int=1)), UUID(int=1)),
]


def with_default(kind: Any, default: Any) -> dict[str, Any]:
    """ORDER with one more field."""
    return ORDER | {"fields": [*ORDER["fields"], {"name": "more", "type": kind, "default": default}]}


@pytest.mark.parametrize(("kind", "default", "expected"), DEFAULTS, ids=repr)
def test_a_default_is_written_and_read_as_the_value_that_it_means(
    kind: Any, default: Any, expected: Any, registry: SchemaRegistry
) -> None:
    format, row = mp.formats.avro(with_default(kind, default)), {"customer": "ann", "amount": 3}
    written = make_decoder(format)(make_encoder(format)(row, "t") or b"", "t")
    old = framed(registry.add("t-value", ORDER), write(ORDER, row))
    filled = make_decoder(format, registry=registry.url)(old, "t")
    for got in (written, filled):
        assert got == row | {"more": expected}
        assert repr(got["more"]) == repr(expected)


def test_a_default_may_leave_out_what_has_a_default_itself(registry: SchemaRegistry) -> None:
    inner = record("Q", q="int") | {
        "fields": [{"name": "q", "type": "int"}, {"name": "w", "type": "int", "default": 9}]
    }
    format = mp.formats.avro(with_default(inner, {"q": 1}))
    old = framed(registry.add("t-value", ORDER), write(ORDER, {"customer": "ann", "amount": 3}))
    assert make_decoder(format, registry=registry.url)(old, "t")["more"] == {"q": 1, "w": 9}
    encoded = make_encoder(format)({"customer": "ann", "amount": 3}, "t")
    assert make_decoder(format)(encoded or b"", "t")["more"] == {"q": 1, "w": 9}


def test_rows_do_not_share_a_default(registry: SchemaRegistry) -> None:
    old = framed(registry.add("t-value", ORDER), write(ORDER, {"customer": "ann", "amount": 3}))
    format = mp.formats.avro(with_default({"type": "array", "items": "string"}, []))
    decode = make_decoder(format, registry=registry.url)
    decode(old, "t")["more"].append("mine")
    assert decode(old, "t")["more"] == []


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("int", 2**31),
        ("bytes", "\u0100"),
        ({"type": "fixed", "name": "F", "size": 2}, "abc"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B"),
        ({"type": "array", "items": "int"}, ["a"]),
        (record("Q", q="int"), {}),
        (logical("string", "uuid"), "nope"),
    ],
)
def test_a_default_that_its_type_does_not_hold_is_refused(kind: Any, default: Any) -> None:
    with pytest.raises(InvalidUse, match=r"^formats\.avro: field 'more' of record Order: expected a default that is"):
        mp.formats.avro(with_default(kind, default))


def test_a_default_of_the_registry_that_is_none_is_refused_when_it_is_needed(registry: SchemaRegistry) -> None:
    registry.add("t-value", with_default(["null", "bytes"], "\u0100"))
    encode = make_encoder("avro", registry=registry.url)
    assert encode({"customer": "ann", "amount": 3, "more": None}, "t")
    with pytest.raises(InvalidUse, match=r"field 'more': expected a default .*, got 'Ā' \(str\)"):
        encode({"customer": "ann", "amount": 3}, "t")


# --- resolution ---


TO_MILLIS = logical("long", "timestamp-millis")
TO_MICROS = logical("long", "timestamp-micros")
SECOND = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
LETTERS: dict[str, Any] = {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}


@pytest.mark.parametrize(
    ("written", "value", "wanted", "expected"),
    [
        ("int", 5, "long", 5),
        ("int", 5, "double", 5.0),
        ("long", 5, "float", 5.0),
        ("float", 0.5, "double", 0.5),
        ("string", "é", "bytes", "é".encode()),
        ("bytes", b"x", "string", "x"),
        ("long", 1000, TO_MILLIS, SECOND),
        ("int", 1000, TO_MILLIS, SECOND),
        (TO_MILLIS, SECOND, "long", 1000),
        (TO_MILLIS, SECOND, "double", 1000.0),
        (TO_MILLIS, SECOND, TO_MICROS, SECOND),
        (TO_MICROS, SECOND, TO_MILLIS, SECOND),
        (logical("int", "time-millis"), time(1), logical("long", "time-micros"), time(1)),
        ("int", 1, logical("int", "date"), date(1970, 1, 2)),
        ("string", str(UUID(int=1)), logical("string", "uuid"), UUID(int=1)),
        (logical("string", "uuid"), UUID(int=1), "string", str(UUID(int=1))),
        ("bytes", b"\1", logical("bytes", "decimal", precision=4, scale=2), Decimal("0.01")),
        (
            logical("bytes", "decimal", precision=4, scale=2),
            Decimal("1.50"),
            logical("bytes", "decimal", precision=9, scale=3),
            Decimal("1.5"),
        ),
        (["null", "long"], 1000, ["null", TO_MILLIS], SECOND),
        (["null", "long"], None, ["null", TO_MILLIS], None),
        (["null", TO_MILLIS], SECOND, ["null", "long"], 1000),
        (["int", "long"], 2**40, TO_MICROS, datetime.fromtimestamp(0, UTC) + timedelta(microseconds=2**40)),
        (["null", "int"], 1, "int", 1),
        (["int", "string"], 1, ["string", "double"], 1.0),
        (["int", "string"], "x", ["string", "double"], "x"),
        ([logical("int", "date"), "long"], 5, ["int", "long"], 5),
        ("long", 5, ["double", "long"], 5),
        ("string", "x", ["null", "string"], "x"),
        ({"type": "array", "items": "int"}, [1], {"type": "array", "items": "double"}, [1.0]),
        ({"type": "map", "values": "long"}, {"k": 1000}, {"type": "map", "values": ["null", TO_MILLIS]}, {"k": SECOND}),
        (LETTERS, "C", LETTERS | {"symbols": ["A", "B"], "default": "A"}, "A"),
        (LETTERS, "B", LETTERS | {"symbols": ["B", "A"]}, "B"),
        (record("R", a="int", b="string"), {"a": 1, "b": "x"}, record("R", b="string", a="int"), {"b": "x", "a": 1}),
        (record("R", a="int", b=TO_MILLIS), {"a": 1, "b": SECOND}, record("R", a="int"), {"a": 1}),
        (record("Old", a="int"), {"a": 1}, record("New", a="long") | {"aliases": ["Old"]}, {"a": 1}),
        (
            record("R", old="int"),
            {"old": 1},
            record("R") | {"fields": [{"name": "new", "type": "int", "aliases": ["old"]}]},
            {"new": 1},
        ),
        (
            record("N", at="long", next=["null", "N"]),
            {"at": 1000, "next": {"at": 1000, "next": None}},
            record("N", at=TO_MILLIS, next=["null", "N"]),
            {"at": SECOND, "next": {"at": SECOND, "next": None}},
        ),
        (
            record("N", at="long", next=["null", "N"]),
            {"at": 1000, "next": {"at": 1000, "next": None}},
            record("N", at=TO_MILLIS),
            {"at": SECOND},
        ),
        (
            ["int", record("N", n="int", next=["null", "N"]), {"type": "array", "items": "N"}],
            [{"n": 1, "next": {"n": 2, "next": None}}],
            [{"type": "array", "items": record("N", n="double", next=["null", "N"])}, "double"],
            [{"n": 1.0, "next": {"n": 2.0, "next": None}}],
        ),
        (
            record("P", a=record("Q", n="long"), b="Q"),
            {"a": {"n": 1000}, "b": {"n": 1000}},
            record("P", a=record("x.Q", n=TO_MILLIS), b=record("y.Q", n="double")),
            {"a": {"n": SECOND}, "b": {"n": 1000.0}},
        ),
        (
            ["null", record("A", n="int"), record("B", n="int")],
            ("B", {"n": 1}),
            ["null", record("B", n="double"), record("A", n="int")],
            {"n": 1.0},
        ),
    ],
    ids=repr,
)
def test_a_row_has_the_types_of_the_readers_schema(
    written: Any, value: Any, wanted: Any, expected: Any, registry: SchemaRegistry
) -> None:
    schema = record("Row", f=written, last="string")
    data = framed(registry.add("t-value", schema), write(schema, {"f": value, "last": "end"}))
    decode = make_decoder(mp.formats.avro(record("Row", f=wanted, last="string")), registry=registry.url)
    for _ in range(2):
        got = decode(data, "t")
        assert got == {"f": expected, "last": "end"}
        assert type(got["f"]) is type(expected)
        assert isinstance(expected, Decimal) or repr(got["f"]) == repr(expected)


@pytest.mark.parametrize(
    ("written", "value", "wanted", "message"),
    [
        ("string", "1", "int", "field 'f': expected int, got string"),
        ("long", 1, "int", "field 'f': expected int, got long"),
        ("long", 1, ["null", "string"], "field 'f': expected one of null, string, got long"),
        (["null", "int"], None, "int", "field 'f': expected int, got null"),
        (LETTERS, "C", LETTERS | {"symbols": ["A"]}, "field 'f': expected one of 'A', got 'C'"),
        (record("A", n="int"), {"n": 1}, record("B", n="int"), "field 'f': expected record B, got record A"),
        (record("R", n="int"), {"n": 1}, record("R", n="int", m="int"), "field 'f.m': expected a default"),
        (
            {"type": "fixed", "name": "F", "size": 2},
            b"ab",
            {"type": "fixed", "name": "F", "size": 3},
            "field 'f': expected fixed F of 3 bytes, got fixed F of 2 bytes",
        ),
        ({"type": "array", "items": "string"}, ["a"], {"type": "array", "items": "int"}, "expected int, got string"),
    ],
    ids=repr,
)
def test_what_the_readers_schema_does_not_take_is_a_bad_row(
    written: Any, value: Any, wanted: Any, message: str, registry: SchemaRegistry
) -> None:
    schema = record("Row", f=written)
    data = framed(registry.add("t-value", schema), write(schema, {"f": value}))
    decode = make_decoder(mp.formats.avro(record("Row", f=wanted)), registry=registry.url)
    for _ in range(2):
        with pytest.raises(ValueError) as caught:
            decode(data, "t")
        assert message in str(caught.value)
        assert "Avro (Row, schema id 1)" in str(caught.value)


@given(st.data())
def test_every_schema_resolves_to_itself(data: st.DataObject) -> None:
    schema, values = data.draw(schemas())
    value = data.draw(values)
    format = mp.formats.avro(schema)
    encoded = make_encoder(format)(value, "orders")
    if encoded is not None:
        parsed = parse_avro(json.loads(format.schema), {})
        read, convert = resolve(parsed, parse_avro(json.loads(format.schema), {}))
        wrapped: Any = fastavro.schemaless_reader(io.BytesIO(encoded), read, None)
        again = wrapped["value"]
        again = again if convert is None else convert(again)
        assert again == value and type(again) is type(value)


# --- values that do not fit ---


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("long", 3.7, "field 'f': expected long (a whole number of 64 bits), got 3.7 (float)"),
        ("long", True, "expected long"),
        ("int", 2**31, "expected int (a whole number of 32 bits), got 2147483648"),
        ("boolean", "no", "expected boolean"),
        ("null", 5, "expected null"),
        ("double", "3", "expected double"),
        ("double", 2**53 + 1, "expected double"),
        ("double", 10**400, "expected double"),
        ("float", 1e300, "expected float"),
        ("string", 5, "expected string"),
        ("string", "\ud800", "surrogates not allowed"),
        ("bytes", "x", "expected bytes"),
        (logical("long", "timestamp-millis"), datetime(2026, 1, 1), "a datetime with a time zone"),
        (logical("long", "local-timestamp-millis"), datetime(2026, 1, 1, tzinfo=UTC), "without a time zone"),
        (logical("int", "date"), datetime(2026, 1, 1, tzinfo=UTC), "expected date"),
        (logical("long", "time-micros"), time(1, tzinfo=UTC), "expected time"),
        (logical("bytes", "decimal", precision=4, scale=2), Decimal("1.234"), "at most 4 digits, 2 of them after"),
        (logical("bytes", "decimal", precision=4, scale=2), Decimal("100"), "at most 4 digits"),
        (logical("bytes", "decimal", precision=4, scale=2), Decimal("nan"), "at most 4 digits"),
        (logical("bytes", "decimal", precision=4, scale=2), 1.5, "at most 4 digits"),
        (logical("string", "uuid"), "nope", "expected UUID"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "C", "expected one of 'A', 'B', got 'C'"),
        ({"type": "fixed", "name": "F", "size": 3}, b"ab", "expected 3 bytes"),
        ({"type": "array", "items": "int"}, [1, "x"], "field 'f[1]': expected int"),
        ({"type": "array", "items": "string"}, "text", "expected array (a list)"),
        ({"type": "map", "values": "int"}, {"a": None}, "field \"f['a']\": expected int"),
        ({"type": "map", "values": "int"}, {1: 1}, "whose keys are str"),
        ({"type": "map", "values": "int"}, [1], "expected map"),
        (["null", "int"], "x", "expected int"),
        (["null", "int", "string"], 1.5, "expected one of 'null', 'int', 'string', got 1.5"),
        (["null", record("R", n="int")], {"n": "x"}, "field 'f.n': expected int"),
        (record("R", n="int"), 5, "expected record R (a dict, dataclass or Struct), got 5"),
        (record("R", n="int"), {}, "expected record R with the field 'n', which has no default, got {}"),
        (record("R", n="int"), {"n": 1, "m": 2}, "expected a field of record R, which has 'n', got 'm'"),
    ],
)
def test_a_value_that_a_schema_does_not_hold_is_refused_with_its_field(kind: Any, value: Any, message: str) -> None:
    with pytest.raises(InvalidUse) as caught:
        make_encoder(mp.formats.avro(record("Row", f=kind)))({"f": value}, "orders")
    assert str(caught.value).startswith("message value for topic 'orders', Avro (Row): ")
    assert message in str(caught.value)
    assert "Change the row before the sink" in str(caught.value)


# --- schemas ---


def test_a_schema_is_a_dict_text_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(ORDER))
    formats = {mp.formats.avro(each) for each in (ORDER, json.dumps(ORDER, indent=2), path, str(path))}
    assert len(formats) == 1
    assert repr(formats.pop()) == "formats.avro(Order)"
    assert mp.formats.avro("string") == mp.formats.avro('"string"')
    assert repr(mp.formats.avro(ORDER | {"namespace": "shop"})) == "formats.avro(shop.Order)"


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (5, "expected an Avro schema (a dict, JSON text, or the path of an .avsc file), got 5. Pass the schema."),
        (
            {"type": "recrd"},
            "expected an Avro schema, got {'type': 'recrd'}: UnknownType: {'type': 'recrd'}. Correct the schema.",
        ),
        ({"type": object()}, "expected an Avro schema of JSON values"),
        ("{type", "expected an Avro schema as JSON, got '{type'"),
        ("nowhere.avsc", "expected an .avsc file that can be read, got 'nowhere.avsc'"),
        ("txt", "UnknownType: txt"),
    ],
)
def test_what_is_no_schema_is_refused(schema: Any, message: str) -> None:
    with pytest.raises(InvalidUse) as caught:
        mp.formats.avro(schema)
    assert message in str(caught.value)


# --- reading what does not fit ---


@pytest.mark.parametrize("data", [b"", b"\x06an", b"\xff" * 20, write(ORDER, {"customer": "ann", "amount": 3})[:-1]])
def test_bytes_that_are_not_of_the_schema_do_not_decode(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^expected Avro \(formats.avro\(Order\)\), got .* that does not decode: "):
        make_decoder(mp.formats.avro(ORDER))(data, "orders")


def test_bytes_after_the_value_are_refused() -> None:
    data = write(ORDER, {"customer": "ann", "amount": 3}) + b"xy"
    with pytest.raises(ValueError, match=r"and no more, got 2 bytes after the value"):
        make_decoder(mp.formats.avro(ORDER))(data, "orders")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"n": 1}', "expected Avro with a schema id (magic byte 0), got 0x7b"),
        (b"", "expected Avro with a schema id (magic byte 0), got no bytes"),
        (b"\0\0\1", "expected Avro with a schema id of 4 bytes after the magic byte, got b'\\x00\\x00\\x01'"),
    ],
)
def test_a_message_without_a_schema_id_is_a_bad_row(data: bytes, message: str, registry: SchemaRegistry) -> None:
    with pytest.raises(ValueError) as caught:
        make_decoder("avro", registry=registry.url)(data, "orders")
    assert str(caught.value) == message
    assert registry.requests == []


# --- with a registry ---


def test_a_message_is_read_with_the_schema_it_was_written_with(registry: SchemaRegistry) -> None:
    old = registry.add("orders-value", ORDER)
    wide = record("Order", customer="string", amount="double", at=logical("long", "timestamp-millis"))
    new = registry.add("orders-value", wide)
    decode = pickle.loads(pickle.dumps(make_decoder("avro", registry=registry.url)))
    at = datetime(2026, 1, 1, 12, tzinfo=UTC)
    for _ in range(3):
        first = decode(framed(old, write(ORDER, {"customer": "ann", "amount": 3})), "orders")
        assert first == {"customer": "ann", "amount": 3}
        second = decode(framed(new, write(wide, {"customer": "bob", "amount": 1.5, "at": at})), "orders")
        assert second == {"customer": "bob", "amount": 1.5, "at": at}
    assert registry.requests == [f"GET /schemas/ids/{old}", f"GET /schemas/ids/{new}"]


def test_a_decoder_that_was_used_can_be_pickled(registry: SchemaRegistry) -> None:
    data = framed(registry.add("orders-value", ORDER), write(ORDER, {"customer": "ann", "amount": 3}))
    decode = make_decoder("avro", registry=registry.url)
    assert pickle.loads(pickle.dumps(decode))(data, "t") == decode(data, "t")
    assert pickle.loads(pickle.dumps(decode))(data, "t") == {"customer": "ann", "amount": 3}


def test_a_readers_schema_resolves_what_was_written_with_another(registry: SchemaRegistry) -> None:
    written = registry.add("orders-value", ORDER)
    fields = [{"name": "amount", "type": "double"}, {"name": "note", "type": "string", "default": "none"}]
    reader = mp.formats.avro(ORDER | {"fields": fields})
    decode = make_decoder(reader, registry=registry.url)
    assert decode(framed(written, write(ORDER, {"customer": "ann", "amount": 3})), "orders") == {
        "amount": 3.0,
        "note": "none",
    }


def test_a_readers_schema_that_cannot_resolve_the_writers_makes_a_bad_row(registry: SchemaRegistry) -> None:
    written = registry.add("orders-value", ORDER)
    decode = make_decoder(mp.formats.avro(record("Order", note="string")), registry=registry.url)
    message = r"^expected Avro that formats\.avro\(Order\) can read, got Avro \(Order, schema id 1\): field 'note'"
    with pytest.raises(ValueError, match=message):
        decode(framed(written, write(ORDER, {"customer": "ann", "amount": 3})), "orders")


def test_a_schema_may_refer_to_others_that_share_one(registry: SchemaRegistry) -> None:
    money = record("shop.Money", cents="long")
    registry.add("money", money)
    to_money = [{"name": "shop.Money", "subject": "money", "version": 1}]
    registry.add("line", record("shop.Line", price="shop.Money"), references=to_money)
    registry.add("fee", record("shop.Fee", price="shop.Money"), references=to_money)
    references = [
        {"name": "shop.Line", "subject": "line", "version": 1},
        {"name": "shop.Fee", "subject": "fee", "version": 1},
    ]
    order = registry.add("orders-value", record("shop.Order", a="shop.Line", b="shop.Fee"), references=references)
    either = registry.add("either-value", ["shop.Line", "shop.Fee"], references=references)
    decode = make_decoder("avro", registry=registry.url)
    assert decode(framed(order, b"\x02\x04"), "t") == {"a": {"price": {"cents": 1}}, "b": {"price": {"cents": 2}}}
    assert decode(framed(either, b"\x02\x04"), "t") == {"price": {"cents": 2}}
    row = {"a": {"price": {"cents": 1}}, "b": {"price": {"cents": 2}}}
    assert make_encoder("avro", registry=registry.url)(row, "orders") == framed(order, b"\x02\x04")


def test_a_schema_of_another_kind_makes_a_bad_row(registry: SchemaRegistry) -> None:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    schema_id = registry.add("orders-value", FileDescriptorProto(name="a.proto"), "PROTOBUF")
    with pytest.raises(ValueError, match=f"expected an Avro schema, got schema id {schema_id}, which is PROTOBUF"):
        make_decoder("avro", registry=registry.url)(framed(schema_id, b""), "orders")
    with pytest.raises(InvalidUse, match=r"subject 'orders-value': expected an Avro schema, .* Choose the format"):
        make_encoder("avro", registry=registry.url)({}, "orders")


@pytest.mark.parametrize(("is_key", "subject"), [(False, "orders-value"), (True, "orders-key")])
def test_rows_are_written_with_the_newest_schema_of_the_subject(
    is_key: bool, subject: str, registry: SchemaRegistry
) -> None:
    registry.add(subject, record("Order", old="int"))
    newest = registry.add(subject, ORDER)
    encode = pickle.loads(pickle.dumps(make_encoder("avro", registry=registry.url, is_key=is_key)))
    row = {"customer": "ann", "amount": 3}
    assert encode(row, "orders") == framed(newest, write(ORDER, row))
    assert encode(row, "orders") == framed(newest, write(ORDER, row))
    assert registry.requests == [f"GET /subjects/{subject}/versions/latest"]
    assert encode(None, "orders") is None


def test_a_schema_that_is_given_is_registered_once_per_topic(registry: SchemaRegistry) -> None:
    encode = make_encoder(mp.formats.avro(ORDER), registry=registry.url)
    row = {"customer": "ann", "amount": 3}
    for topic in ("a", "b", "a", "b"):
        assert encode(row, topic) == framed(1, write(ORDER, row))
    assert registry.subjects == {"a-value": [1], "b-value": [1]}
    assert len([each for each in registry.requests if "/versions?" in each]) == 2
    assert make_decoder("avro", registry=registry.url)(encode(row, "a") or b"", "a") == row


def test_the_clients_own_serializers_read_and_write_the_same(registry: SchemaRegistry) -> None:
    from confluent_kafka.schema_registry import SchemaRegistryClient, topic_subject_name_strategy
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    context = SerializationContext("orders", MessageField.VALUE)
    strategy = {"subject.name.strategy": topic_subject_name_strategy}
    row = {"customer": "ann", "amount": 3}
    with SchemaRegistryClient({"url": registry.url}) as client:
        theirs = AvroSerializer(client, json.dumps(ORDER), conf=strategy)(row, context)
        ours = make_encoder(mp.formats.avro(ORDER), registry=registry.url)(row, "orders")
        assert ours == theirs
        assert AvroDeserializer(client, conf=strategy)(ours, context) == row
        assert make_decoder("avro", registry=registry.url)(theirs or b"", "orders") == row


def test_times_in_other_zones_are_written_as_the_same_instant() -> None:
    format = mp.formats.avro(record("Row", at=logical("long", "timestamp-micros")))
    at = datetime(2026, 1, 1, 14, tzinfo=timezone(timedelta(hours=2)))
    again = make_decoder(format)(make_encoder(format)({"at": at}, "t") or b"", "t")
    assert again == {"at": at} and again["at"].tzinfo is UTC
