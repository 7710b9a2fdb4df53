"""Protobuf messages: rows as dicts, the registry's wire format, and what is refused. Descriptors are made in code."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from hypothesis import given
from hypothesis import strategies as st
from schema_registry import SchemaRegistry

import millpond as mp
from millpond.errors import InvalidUse
from millpond.kafka.message_formats import check_format, make_decoder, make_encoder

FieldProto: Any = descriptor_pb2.FieldDescriptorProto
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "double": st.floats(allow_nan=False),
    "float": st.floats(width=32, allow_nan=False),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "fixed64": st.integers(0, 2**64 - 1),
    "fixed32": st.integers(0, 2**32 - 1),
    "bool": st.booleans(),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    "bytes": st.binary(max_size=8),
    "uint32": st.integers(0, 2**32 - 1),
    "sfixed32": st.integers(-(2**31), 2**31 - 1),
    "sfixed64": st.integers(-(2**63), 2**63 - 1),
    "sint32": st.integers(-(2**31), 2**31 - 1),
    "sint64": st.integers(-(2**63), 2**63 - 1),
}


class FileMaker:
    """A .proto file, field by field."""

    def __init__(self, name: str, package: str, *imports: str) -> None:
        self.file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3", dependency=imports)

    def message(self, name: str, parent: Any = None) -> Any:
        return self.file.message_type.add(name=name) if parent is None else parent.nested_type.add(name=name)


def add(message: Any, name: str, kind: str, *, repeated: bool = False, oneof: str | None = None) -> Any:
    """Add a field of a scalar type, or of the message or enum type ".package.Name" (an enum with "=" before it)."""
    label = FieldProto.LABEL_REPEATED if repeated else FieldProto.LABEL_OPTIONAL
    field = message.field.add(name=name, number=len(message.field) + 1, label=label)
    if kind.startswith("="):
        field.type, field.type_name = FieldProto.TYPE_ENUM, kind[1:]
    elif kind.startswith("."):
        field.type, field.type_name = FieldProto.TYPE_MESSAGE, kind
    else:
        field.type = getattr(FieldProto, f"TYPE_{kind.upper()}")
    if oneof is not None:
        names = [each.name for each in message.oneof_decl]
        if oneof not in names:
            message.oneof_decl.add(name=oneof)
        field.oneof_index = [each.name for each in message.oneof_decl].index(oneof)
    return field


def add_map(message: Any, path: str, name: str, key: str, value: str) -> None:
    entry = message.nested_type.add(name=f"{name.title()}Entry")
    entry.options.map_entry = True
    add(entry, "key", key)
    add(entry, "value", value)
    add(message, name, f"{path}.{name.title()}Entry", repeated=True)


def class_of(name: str, *files: Any) -> type:
    """The class of a message, as protoc would generate it, from files in the order of their imports."""
    pool = descriptor_pool.DescriptorPool()
    for known in (any_pb2, duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    for file in files:
        pool.AddSerializedFile(file.SerializeToString())
    made: type = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    return made


# --- the messages of these tests ---

MONEY = FileMaker("shop/money.proto", "shop")
add(MONEY.message("Money"), "cents", "int64")

IMPORTS = [f"google/protobuf/{name}.proto" for name in ("duration", "struct", "timestamp", "wrappers", "any")]
ORDERS = FileMaker("shop/orders.proto", "shop", "shop/money.proto", *IMPORTS)
STATUS = ORDERS.file.enum_type.add(name="Status")
for number, symbol in enumerate(["UNKNOWN", "OPEN", "PAID"]):
    STATUS.value.add(name=symbol, number=number)
REFUND = ORDERS.message("Refund")
add(REFUND, "reason", "string")
ORDER = ORDERS.message("Order")
for scalar in SCALARS:
    add(ORDER, f"a_{scalar}", scalar)
    add(ORDER, f"many_{scalar}", scalar, repeated=True)
add(ORDER, "status", "=.shop.Status")
add(ORDER, "statuses", "=.shop.Status", repeated=True)
add(ORDER, "price", ".shop.Money")
add(ORDER, "prices", ".shop.Money", repeated=True)
add(ORDER, "next", ".shop.Order")
add_map(ORDER, ".shop.Order", "counts", "string", "int64")
add_map(ORDER, ".shop.Order", "amounts", "int32", ".shop.Money")
add(ORDER, "card", "string", oneof="payment")
add(ORDER, "cash", ".shop.Money", oneof="payment")
add(ORDER, "at", ".google.protobuf.Timestamp")
add(ORDER, "took", ".google.protobuf.Duration")
add(ORDER, "extra", ".google.protobuf.Struct")
add(ORDER, "listed", ".google.protobuf.ListValue")
add(ORDER, "anything", ".google.protobuf.Value")
add(ORDER, "wrapped", ".google.protobuf.StringValue")
add(ORDER, "wraps", ".google.protobuf.Int64Value", repeated=True)
add(ORDER, "packed", ".google.protobuf.Any")
maybe = add(ORDER, "maybe", "int32", oneof="_maybe")
maybe.proto3_optional = True
LINE = ORDERS.message("Line", parent=ORDER)
add(LINE, "sku", "string")

FILES = (MONEY.file, ORDERS.file)
Order: Any = class_of("shop.Order", *FILES)
Line: Any = class_of("shop.Order.Line", *FILES)
Refund: Any = class_of("shop.Refund", *FILES)
Money: Any = class_of("shop.Money", *FILES)

EMPTY_ROW: dict[str, Any] = {
    **{f"a_{name}": 0 for name in SCALARS},
    "a_bool": False,
    "a_string": "",
    "a_bytes": b"",
    **{f"many_{name}": [] for name in SCALARS},
    "status": "UNKNOWN",
    "statuses": [],
    "price": None,
    "prices": [],
    "next": None,
    "counts": {},
    "amounts": {},
    "card": None,
    "cash": None,
    "at": None,
    "took": None,
    "extra": None,
    "listed": None,
    "anything": None,
    "wrapped": None,
    "wraps": [],
    "packed": None,
    "maybe": 0,
}


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as server:
        yield server


def add_orders(registry: SchemaRegistry) -> int:
    registry.add("money", MONEY.file, "PROTOBUF")
    references = [{"name": "shop/money.proto", "subject": "money", "version": 1}]
    return registry.add("orders-value", ORDERS.file, "PROTOBUF", references)


def framed(schema_id: int, indexes: bytes, data: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + indexes + data


# --- round trips ---

JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | SCALARS["string"],
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SCALARS["string"], inner, max_size=3),
    max_leaves=5,
)
MONEYS = st.fixed_dictionaries({"cents": SCALARS["int64"]})
SECONDS = 315_576_000_000  # the range of google.protobuf.Duration


def orders(depth: int = 1) -> st.SearchStrategy[dict[str, Any]]:
    """Rows with every field of Order."""
    fields: dict[str, st.SearchStrategy[Any]] = {f"a_{name}": values for name, values in SCALARS.items()}
    fields |= {f"many_{name}": st.lists(values, max_size=2) for name, values in SCALARS.items()}
    status = st.sampled_from(["UNKNOWN", "OPEN", "PAID", 77])
    fields |= {
        "status": status,
        "statuses": st.lists(status, max_size=2),
        "price": st.none() | MONEYS,
        "prices": st.lists(MONEYS, max_size=2),
        "next": st.none() | orders(depth - 1) if depth else st.none(),
        "counts": st.dictionaries(SCALARS["string"], SCALARS["int64"], max_size=2),
        "amounts": st.dictionaries(SCALARS["int32"], MONEYS, max_size=2),
        "at": st.none() | st.datetimes(timezones=st.just(UTC)),
        "took": st.none() | st.timedeltas(timedelta(seconds=-SECONDS), timedelta(seconds=SECONDS)),
        "extra": st.none() | st.dictionaries(SCALARS["string"], JSON, max_size=2),
        "listed": st.none() | st.lists(JSON, max_size=2),
        "anything": JSON,
        "wrapped": st.none() | SCALARS["string"],
        "wraps": st.lists(SCALARS["int64"], max_size=2),
        "packed": st.none() | st.fixed_dictionaries({"type_url": SCALARS["string"], "value": SCALARS["bytes"]}),
        "maybe": SCALARS["int32"],
    }
    payment = st.sampled_from([{}, {"card": "1"}, {"cash": {"cents": 5}}, {"card": ""}])
    unpaid: dict[str, Any] = {"card": None, "cash": None}
    return st.tuples(st.fixed_dictionaries(fields), payment).map(lambda pair: pair[0] | unpaid | pair[1])


@given(orders())
def test_every_row_comes_back(row: dict[str, Any]) -> None:
    format = pickle.loads(pickle.dumps(mp.formats.protobuf(Order)))
    encoded = make_encoder(format)(row, "orders")
    assert encoded is not None
    assert make_decoder(format)(encoded, "orders") == row


def test_unset_fields_are_defaults_and_unset_messages_none() -> None:
    format = mp.formats.protobuf(Order)
    assert make_decoder(format)(b"", "orders") == EMPTY_ROW
    assert make_encoder(format)({}, "orders") == b""
    assert make_encoder(format)(EMPTY_ROW | {"maybe": None}, "orders") == b""


def test_types_are_those_of_the_schema() -> None:
    message = Order(a_int64=2**62, a_bytes=b"\xff", status=2)
    message.at.FromDatetime(datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC))
    message.at.nanos += 999
    message.took.FromTimedelta(timedelta(seconds=-1, microseconds=-5))
    row = make_decoder(mp.formats.protobuf(Order))(message.SerializeToString(), "orders")
    assert (row["a_int64"], row["a_bytes"], row["status"]) == (2**62, b"\xff", "PAID")
    assert row["at"] == datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC) and row["at"].tzinfo is UTC
    assert row["took"] == timedelta(seconds=-1, microseconds=-5)


@given(st.datetimes(timezones=st.just(UTC)), st.timedeltas(timedelta(days=-9999), timedelta(days=9999)))
def test_times_are_written_as_the_library_writes_them(at: datetime, took: timedelta) -> None:
    encoded = make_encoder(mp.formats.protobuf(Order))({"at": at, "took": took}, "orders")
    message = Order.FromString(encoded)
    assert message.at.ToDatetime(tzinfo=UTC) == at and 0 <= message.at.nanos < 10**9
    assert message.took.ToTimedelta() == took
    expected = Order()
    expected.at.FromDatetime(at)
    expected.took.FromTimedelta(took)
    assert message == expected


@dataclass
class Cents:
    cents: int


def test_dataclasses_and_tuples_are_written_as_messages_and_repeated_fields() -> None:
    encoded = make_encoder(mp.formats.protobuf(Order))({"price": Cents(3), "many_int32": (1, 2)}, "orders")
    assert Order.FromString(encoded) == Order(price={"cents": 3}, many_int32=[1, 2])


def test_equal_maps_have_equal_bytes() -> None:
    encode = make_encoder(mp.formats.protobuf(Order), is_key=True)
    counts = {f"k{i}": i for i in range(50)}
    assert encode({"counts": counts}, "t") == encode({"counts": dict(reversed(counts.items()))}, "t")


def test_none_is_a_tombstone() -> None:
    assert make_encoder(mp.formats.protobuf(Order))(None, "orders") is None


# --- values that do not fit ---


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"a_int32": 2**31}, "field 'a_int32': expected a whole number of 32 bits, got 2147483648 (int)"),
        ({"a_int32": True}, "expected a whole number of 32 bits, got True (bool)"),
        ({"a_int64": 1.0}, "expected a whole number of 64 bits"),
        ({"a_uint32": -1}, "expected a whole number of 32 bits, not negative"),
        ({"a_uint64": -1}, "expected a whole number of 64 bits, not negative"),
        ({"a_double": "1"}, "expected a number that 64 bits hold"),
        ({"a_float": 1e300}, "expected a number of 32 bits"),
        ({"a_bool": 1}, "expected True or False"),
        ({"a_string": b"x"}, "expected str, got b'x'"),
        ({"a_string": "\ud800"}, "Protobuf (shop.Order): "),
        ({"a_bytes": "x"}, "expected bytes"),
        (
            {"status": "LOST"},
            "expected a name of enum shop.Status ('UNKNOWN', 'OPEN', 'PAID') or its number, got 'LOST'",
        ),
        ({"many_int32": [1, "x"]}, "field 'many_int32[1]': expected a whole number"),
        ({"many_int32": 5}, "expected repeated (a list)"),
        ({"prices": [{"cents": 1}, None]}, "field 'prices[1]': expected message shop.Money"),
        (
            {"price": {"cent": 1}},
            "field 'price': expected a field of message shop.Money, which has 'cents', got 'cent'",
        ),
        ({"price": {"cents": "1"}}, "field 'price.cents': expected"),
        ({"counts": {1: 1}}, "field 'counts': expected str, got 1"),
        ({"counts": {"a": None}}, "field \"counts['a']\": expected a whole number"),
        ({"counts": []}, "expected map (a dict)"),
        ({"card": "1", "cash": {}}, "expected one field of the oneof 'payment' at most, got ['card', 'cash']"),
        ({"at": datetime(2026, 1, 1)}, "expected timestamp (a datetime with a time zone)"),
        ({"at": 5}, "expected timestamp"),
        ({"took": 5}, "expected duration (a timedelta)"),
        ({"extra": {1: 2}}, "expected google.protobuf.Struct"),
        ({"extra": {"a": [b"x"]}}, "field \"extra['a'][0]\": expected a JSON value"),
        ({"listed": 5}, "expected google.protobuf.ListValue"),
        ({"wrapped": 5}, "field 'wrapped': expected str"),
        (5, "expected message shop.Order (a dict, dataclass or Struct), got 5"),
    ],
)
def test_a_value_that_a_message_does_not_hold_is_refused_with_its_field(row: Any, message: str) -> None:
    with pytest.raises(InvalidUse) as caught:
        make_encoder(mp.formats.protobuf(Order))(row, "orders")
    assert str(caught.value).startswith("message value for topic 'orders', Protobuf (shop.Order): ")
    assert message in str(caught.value)


@pytest.mark.parametrize("value", [5, Money(), "shop.Order", int, timestamp_pb2])
def test_what_is_no_message_class_is_refused(value: Any) -> None:
    with pytest.raises(InvalidUse, match=r"formats.protobuf: expected a message class that protoc has generated, got "):
        mp.formats.protobuf(value)


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05ab"])
def test_bytes_that_are_no_protobuf_do_not_decode(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^expected Protobuf \(shop.Order\), got b.* that does not decode: "):
        make_decoder(mp.formats.protobuf(Order))(data, "orders")


def test_a_timestamp_that_no_datetime_holds_is_a_bad_row() -> None:
    message = Order()
    message.at.seconds = 10**12
    with pytest.raises(
        ValueError, match="expected a timestamp between the years 1 and 9999, got 1000000000000 seconds"
    ):
        make_decoder(mp.formats.protobuf(Order))(message.SerializeToString(), "orders")


# --- with a registry ---


def test_a_message_is_read_with_the_files_of_the_registry(registry: SchemaRegistry) -> None:
    schema_id = add_orders(registry)
    decode = pickle.loads(pickle.dumps(make_decoder("protobuf", registry=registry.url)))
    order = Order(a_string="ann", price={"cents": 5})
    order.at.seconds = 60
    for _ in range(3):
        row = decode(framed(schema_id, b"\x02\x02", order.SerializeToString()), "orders")
        assert row == EMPTY_ROW | {
            "a_string": "ann",
            "price": {"cents": 5},
            "at": datetime(1970, 1, 1, 0, 1, tzinfo=UTC),
        }
    assert decode(framed(schema_id, b"\x00", Refund(reason="late").SerializeToString()), "o") == {"reason": "late"}
    nested = framed(schema_id, b"\x04\x02\x04", Line(sku="a").SerializeToString())
    assert decode(nested, "orders") == {"sku": "a"}
    assert registry.requests == [
        f"GET /schemas/ids/{schema_id}?format=serialized",
        "GET /subjects/money/versions/1?deleted=true&format=serialized",
    ]


def test_rows_are_written_with_their_files_registered(registry: SchemaRegistry) -> None:
    encode = pickle.loads(pickle.dumps(make_encoder(mp.formats.protobuf(Order), registry=registry.url)))
    first = encode({"a_string": "ann"}, "orders")
    assert first == framed(2, b"\x02\x02", Order(a_string="ann").SerializeToString())
    assert registry.subjects == {"shop/money.proto": [1], "orders-value": [2]}
    asked = len(registry.requests)
    encode({"a_string": "bob"}, "orders")
    assert len(registry.requests) == asked
    assert make_decoder("protobuf", registry=registry.url)(first, "orders") == EMPTY_ROW | {"a_string": "ann"}
    assert make_decoder(mp.formats.protobuf(Order), registry=registry.url)(first, "t") == EMPTY_ROW | {
        "a_string": "ann"
    }


@pytest.mark.parametrize(("message", "indexes"), [(Refund, b"\x00"), (Order, b"\x02\x02"), (Line, b"\x04\x02\x04")])
def test_indexes_say_which_message_of_the_file_it_is(message: Any, indexes: bytes, registry: SchemaRegistry) -> None:
    encoded = make_encoder(mp.formats.protobuf(message), registry=registry.url, is_key=True)({}, "orders")
    assert encoded == framed(2, indexes, b"")
    assert "orders-key" in registry.subjects


def test_another_message_of_the_file_is_a_bad_row_for_a_class(registry: SchemaRegistry) -> None:
    schema_id = add_orders(registry)
    decode = make_decoder(mp.formats.protobuf(Order), registry=registry.url)
    with pytest.raises(ValueError, match=rf"^expected message shop.Order, got shop.Refund \(schema id {schema_id}\)$"):
        decode(framed(schema_id, b"\x00", b""), "orders")


@pytest.mark.parametrize(
    ("indexes", "message"),
    [
        (b"\x02\x12", r"expected message indexes of schema id \d, got \[9\], where it has no message type"),
        (b"\x02\x01", r"got \[-1\], where it has no message type"),
        (b"\x04\x02", "expected Protobuf with message indexes after the schema id, got b"),
        (b"", "expected Protobuf with message indexes after the schema id, got b"),
        (b"\x01", "expected Protobuf with message indexes after the schema id, got a count of -1"),
        (b"\xff" * 12, "expected Protobuf with message indexes after the schema id, got b"),
    ],
)
def test_indexes_that_lead_nowhere_are_a_bad_row(indexes: bytes, message: str, registry: SchemaRegistry) -> None:
    schema_id = add_orders(registry)
    with pytest.raises(ValueError, match=message):
        make_decoder("protobuf", registry=registry.url)(framed(schema_id, indexes, b""), "orders")


def test_a_message_without_a_schema_id_is_a_bad_row(registry: SchemaRegistry) -> None:
    with pytest.raises(ValueError, match=r"^expected Protobuf with a schema id \(magic byte 0\), got 0x0a$"):
        make_decoder("protobuf", registry=registry.url)(b"\x0a\x01a", "orders")


def test_an_avro_schema_is_a_bad_row(registry: SchemaRegistry) -> None:
    schema_id = registry.add("orders-value", "string")
    with pytest.raises(ValueError, match=f"expected a Protobuf schema, got schema id {schema_id}, which is AVRO"):
        make_decoder("protobuf", registry=registry.url)(framed(schema_id, b"\0", b""), "orders")


def test_a_registry_that_serves_only_text_needs_a_class(registry: SchemaRegistry) -> None:
    schema_id = add_orders(registry)
    registry.only_text = True
    data = framed(schema_id, b"\x02\x02", Order(a_string="ann").SerializeToString())
    row = make_decoder(mp.formats.protobuf(Order), registry=registry.url)(data, "orders")
    assert row == EMPTY_ROW | {"a_string": "ann"}
    with pytest.raises(InvalidUse, match=r"format=serialized\), got 'syntax = .* needs mp.formats.protobuf\(Message"):
        make_decoder("protobuf", registry=registry.url)(framed(schema_id, b"\0", b""), "orders")


def test_an_import_without_a_reference_is_named(registry: SchemaRegistry) -> None:
    schema_id = registry.add("orders-value", ORDERS.file, "PROTOBUF")
    with pytest.raises(InvalidUse, match=r"expected a reference of the schema to the file 'shop/money.proto', which"):
        make_decoder("protobuf", registry=registry.url)(framed(schema_id, b"\0", b""), "orders")


def test_the_bare_name_is_enough_for_a_source_with_a_registry(registry: SchemaRegistry) -> None:
    check_format("sources.kafka", "value", "protobuf", registry.url)
    check_format("sinks.kafka", "value", mp.formats.protobuf(Order), registry.url)
    check_format("sinks.kafka", "key", mp.formats.protobuf(Order), None)
    assert registry.requests == []
    assert repr(mp.formats.protobuf(Order)) == "formats.protobuf(shop.Order)"
