"""Avro and Protobuf through the source and the sink of an app, with a registry: schemas change between two runs."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from kafka_apps import Background, Copying, run_here
from kafka_broker import Broker
from processes import eventually
from schema_registry import SchemaRegistry

import millpond as mp
from millpond.errors import InvalidUse, StepFailed
from millpond.kafka import schema_registry

AT = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UNKNOWN = b"\0\0\0\0\x63\0"  # schema id 99


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as server:
        yield server


def framed(schema_id: int, data: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + data


# --- the schemas of the input and the output, old and new ---


@dataclass
class Kind:
    """A format, its schemas, and messages of the input as another program writes them."""

    by_id: str  # the format that takes the schema from the registry
    old_order: Any
    new_order: Any
    old_total: Any
    new_total: Any
    nothing: Any  # what the time of a total is that was written with the old schema

    def format(self, schema: Any) -> Any:
        return mp.formats.avro(schema) if self.by_id == "avro" else mp.formats.protobuf(schema)

    def message(self, schema: Any, row: dict[str, Any], registry: SchemaRegistry, topic: str) -> bytes:
        subject = f"{topic}-value"
        if self.by_id == "avro":
            stream = io.BytesIO()
            fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
            return framed(registry.add(subject, schema), stream.getvalue())
        file = descriptor_pb2.FileDescriptorProto()
        schema.DESCRIPTOR.file.CopyToProto(file)
        return framed(registry.add(subject, file, "PROTOBUF"), b"\0" + schema(**row).SerializeToString())


def avro_record(name: str, *fields: tuple[Any, ...]) -> dict[str, Any]:
    """A record of fields, each a name, a type and perhaps a default."""
    keys = ("name", "type", "default")
    return {"type": "record", "name": name, "fields": [dict(zip(keys, field, strict=False)) for field in fields]}


def proto_class(name: str, *fields: tuple[str, str]) -> Any:
    """A class as protoc would generate it from a file with one message."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", package="shop", syntax="proto3")
    file.dependency.append(timestamp_pb2.DESCRIPTOR.name)
    message = file.message_type.add(name=name)
    for number, (field, kind) in enumerate(fields, 1):
        added = message.field.add(name=field, number=number, label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL)
        if kind.startswith("."):
            added.type, added.type_name = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE, kind
        else:
            added.type = getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"shop.{name}"))


MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
TIME = ".google.protobuf.Timestamp"
KINDS = {
    "avro": Kind(
        "avro",
        avro_record("Order", ("customer", "string"), ("cents", "int")),
        avro_record("Order", ("at", MILLIS, 0), ("customer", "string"), ("cents", "long"), ("tags", "bytes", "\u00ff")),
        avro_record("Total", ("customer", "string"), ("cents", "long")),
        avro_record("Total", ("customer", "string"), ("cents", "long"), ("at", ["null", MILLIS], None)),
        nothing=EPOCH,
    ),
    "protobuf": Kind(
        "protobuf",
        proto_class("Order", ("customer", "string"), ("cents", "int32")),
        proto_class("Order", ("customer", "string"), ("cents", "int64"), ("at", TIME), ("tags", "bytes")),
        proto_class("Total", ("customer", "string"), ("cents", "int64")),
        proto_class("Total", ("customer", "string"), ("cents", "int64"), ("at", TIME)),
        nothing=None,
    ),
}


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


# --- apps ---


def add_old(key: str, row: dict[str, Any], total: int) -> tuple[dict[str, Any], int]:
    total += row["cents"]
    return {"customer": key, "cents": total}, total


def add_new(key: str, row: dict[str, Any], total: int) -> tuple[dict[str, Any], int]:
    output, total = add_old(key, row, total)
    return output | {"at": row["at"]}, total


def run_totals(folder: Path, servers: str, topic: str, registry: str, order: Any, total: Any, add: Any) -> None:
    """Read orders, add them up per customer, and write the totals until all is read."""
    app = mp.App("totals", str(folder / "state"), local_dir=str(folder / "replicas"), partitions=2)
    source = mp.sources.kafka(f"{topic}-in", servers=servers, value=order, registry=registry)
    sink = mp.sinks.kafka(f"{topic}-out", servers=servers, key="customer", value=total, registry=registry)
    app.stream("orders", source).key_by("customer").stateful_map("total", add, initial=0).to("out", sink)
    run_here(app)


def test_schemas_change_between_two_runs_of_an_app(
    kind: Kind, broker: Broker, topic: str, registry: SchemaRegistry, tmp_path: Path
) -> None:
    source, target = broker.create_topic(f"{topic}-in"), broker.create_topic(f"{topic}-out")

    def send(schema: Any, **row: Any) -> None:
        broker.send(source, [kind.message(schema, row, registry, source)])

    def run(order: Any, total: Any, add: Any) -> None:
        run_totals(tmp_path, broker.address, topic, registry.url, order, kind.format(total), add)

    def read(value: Any, folder: str) -> list[Any]:
        where = mp.sources.kafka(target, servers=broker.address, value=value, registry=registry.url)
        return Copying(tmp_path / folder, where).run()

    send(kind.old_order, customer="ann", cents=3)
    run(kind.format(kind.old_order), kind.old_total, add_old)
    first = {"customer": "ann", "cents": 3}
    assert read(kind.by_id, "first") == [first]

    # A program that takes the schema from the registry needs no change for messages of the new one.
    send(kind.new_order, customer="ann", cents=2**40, at=AT, tags=b"\1")
    run(kind.by_id, kind.old_total, add_old)
    second = {"customer": "ann", "cents": 2**40 + 3}

    # Old and new messages, read and written with the new schemas.
    send(kind.old_order, customer="ann", cents=4)
    send(kind.new_order, customer="ann", cents=5, at=AT, tags=b"\1")
    run(kind.format(kind.new_order), kind.new_total, add_new)
    third = {"customer": "ann", "cents": 2**40 + 7, "at": kind.nothing}
    fourth = {"customer": "ann", "cents": 2**40 + 12, "at": AT}

    assert read(kind.by_id, "by id") == [first, second, third, fourth]
    resolved = [first | {"at": None}, second | {"at": None}, third, fourth]
    assert read(kind.format(kind.new_total), "new") == resolved
    known = [{name: row[name] for name in first} for row in (first, second, third, fourth)]
    assert read(kind.format(kind.old_total), "old") == known
    assert len(registry.subjects[f"{target}-value"]) == 2


def test_rows_have_the_types_of_the_programs_schema(
    kind: Kind, broker: Broker, topic: str, registry: SchemaRegistry, tmp_path: Path
) -> None:
    broker.create_topic(topic)
    old = kind.message(kind.old_order, {"customer": "ann", "cents": 3}, registry, topic)
    new = kind.message(kind.new_order, {"customer": "bob", "cents": 4, "at": AT, "tags": b"\1"}, registry, topic)
    broker.send(topic, [old, None, new])
    source = mp.sources.kafka(topic, servers=broker.address, value=kind.format(kind.new_order), registry=registry.url)
    tags = b"\xff" if kind.by_id == "avro" else b""
    assert Copying(tmp_path, source).run() == [
        {"customer": "ann", "cents": 3, "at": kind.nothing, "tags": tags},
        None,
        {"customer": "bob", "cents": 4, "at": AT, "tags": b"\1"},
    ]


# --- a registry that does not know, does not answer, or refuses ---


def test_a_message_with_an_unknown_schema_id_is_a_bad_row(
    kind: Kind, broker: Broker, topic: str, registry: SchemaRegistry, tmp_path: Path
) -> None:
    broker.create_topic(topic)
    row = {"customer": "ann", "cents": 3}
    good = kind.message(kind.old_order, row, registry, topic)
    broker.send(topic, [good, UNKNOWN, b"\0\xff\xff\xff\xff\0", good])

    def copying(folder: str, **how: Any) -> Copying:
        source = mp.sources.kafka(topic, servers=broker.address, value=kind.by_id, registry=registry.settings())
        return Copying(tmp_path / folder, source, **how)

    assert copying("skip", on_error="skip").run() == [row, row]
    app, letters = copying("letters", on_error="dead-letter"), mp.sinks.memory()
    app.app.dead_letters.to("letters", letters)
    assert app.run() == [row, row]
    unknown, too_large = sorted(letter["error"] for letter in letters.rows)
    assert unknown.startswith(
        f"topic '{topic}', partition 0, offset 1: UnknownSchema: schema registry {registry.url}: "
    )
    assert "expected schema id 99, got Schema 99 not found" in unknown
    assert too_large.startswith(f"topic '{topic}', partition 0, offset 2: ValueError: expected ")
    with pytest.raises(StepFailed, match=f"topic '{topic}', partition 0, offset 1: .*expected schema id 99"):
        copying("stop").run()


def test_a_registry_that_does_not_answer_is_waited_for(
    kind: Kind, broker: Broker, topic: str, registry: SchemaRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_registry, "_RETRY_AFTER", 0.05)
    broker.create_topic(topic)
    row = {"customer": "ann", "cents": 3}
    broker.send(topic, [kind.message(kind.old_order, row, registry, topic)])
    registry.failure = 503
    source = mp.sources.kafka(topic, servers=broker.address, value=kind.by_id, registry=registry.settings())
    app = Copying(tmp_path, source, on_error="skip")
    with Background(app.app) as running:
        eventually(lambda: running.error or len(registry.requests) > 2, "the third request")
        registry.failure = None
        eventually(lambda: running.error or app.rows, "the row")
        assert running.error is None
    assert app.rows == [row]


@pytest.mark.parametrize("status", [401, 404])
def test_a_registry_that_refuses_stops_the_app_at_the_message(
    status: int, kind: Kind, broker: Broker, topic: str, registry: SchemaRegistry, tmp_path: Path
) -> None:
    broker.create_topic(topic)
    broker.send(topic, [kind.message(kind.old_order, {"customer": "ann", "cents": 3}, registry, topic)])
    registry.failure = status
    source = mp.sources.kafka(topic, servers=broker.address, value=kind.by_id, registry=registry.settings())
    with pytest.raises(InvalidUse, match=rf"topic '{topic}', partition 0, offset 0: schema registry .* Check the "):
        Copying(tmp_path, source, on_error="skip").run()
