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
    with pytest.raises(
        ValueError, match=rf"^expected Avro \(Order, schema id {written}\), got .* SchemaResolutionError"
    ):
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
