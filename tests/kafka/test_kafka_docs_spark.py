"""What the docs say of Kafka is true: their pages run against a broker, with the programs killed and started again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import doc_pages
import pytest
from doc_pages import DOCS, KAFKA_ADDRESS, REGISTRY_ADDRESS, ROOT, blocks, pages
from kafka_broker import Broker
from processes import eventually
from schema_registry import SchemaRegistry
from secured_kafka import RESTRICTED, SecuredBroker

import millpond as mp

pytestmark = pytest.mark.slow

WITH_KAFKA = [page for page in pages() if any(block.kafka for block in blocks(page))]
EXAMPLE = ROOT / "examples" / "kafka_totals.py"


def python(*arguments: str | Path, cwd: Path) -> str:
    """Run a program in a process of its own, and return what it printed."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "MILLPOND_LOCAL_DIR": str(cwd / "replicas")},
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    return done.stdout


@pytest.fixture
def fresh_broker(broker: Broker) -> Broker:
    """A broker without the topics of pages and examples, which have fixed names."""
    texts = [EXAMPLE.read_text(), *(page.read_text() for page in WITH_KAFKA)]
    for name in broker.admin.list_topics(timeout=30).topics:
        if any(f'"{name}"' in text for text in texts) and name != "millpond-deliveries":
            broker.delete_topic(name)
    return broker


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", WITH_KAFKA, ids=lambda page: page.name)
def test_a_page_that_needs_kafka_prints_what_it_says(page: Path, fresh_broker: Broker, tmp_path: Path) -> None:
    with SchemaRegistry() as registry:
        addresses = {KAFKA_ADDRESS: fresh_broker.address, REGISTRY_ADDRESS: registry.url}
        python(doc_pages.__file__, page, *(f"{name}={other}" for name, other in addresses.items()), cwd=tmp_path)


def test_a_page_needs_kafka() -> None:
    assert [page.name for page in WITH_KAFKA] == ["kafka.md"]


# --- the permissions of the reference page ---


def permissions() -> list[tuple[str, str, str, tuple[str, ...]]]:
    """The rows of the page's table: for what, the kind of resource, its name, and the operations."""
    page = (DOCS / "reference" / "kafka.md").read_text()
    section = page.split("## Permissions")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ((?:source|sink)[^|]*) \| ([a-z ]+): ([^|]+) \| ([^|]+) \|$", section, re.MULTILINE)
    return [
        (wanted, kind, what, tuple(name.upper() for name in re.findall(r"`(\w+)`", operations)))
        for wanted, kind, what, operations in rows
    ]


def test_a_user_with_the_permissions_of_the_page_can_read_and_write(
    secured: SecuredBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    names = {"topic": "TOPIC", "group": "GROUP", "transactional id": "TRANSACTIONAL_ID"}
    assert len(permissions()) == 7
    broker = secured.broker
    broker.create_topic(f"{topic}-in")
    broker.send(f"{topic}-in", ['{"n": 1}'])
    for wanted, kind, what, operations in permissions():
        found = re.findall(r"`([^`=]+)`", what)
        name = {"source": f"{topic}-in", "sink": f"{topic}-out"}[wanted.split()[0].strip(",;")]
        if found:
            name = found[0].replace("<app>", "orders").replace("<sink>", "totals")
        elif kind == "group":
            name = "orders"
        secured.allow(RESTRICTED, f"{name}0" if name.endswith("/") else name, *operations, kind=names[kind])

    options = secured.sasl(RESTRICTED)
    source = mp.sources.kafka(f"{topic}-in", servers=secured.sasl_address, options=options)
    splits = source.plan({}, mp.lowlevel.Limit(rows=10, bytes=1 << 20), now=0.0)
    [chunk] = [chunk for split in splits for chunk in source.read(split)]
    source.acknowledge("orders", {splits[0].place: chunk.position})
    eventually(lambda: broker.group_offsets("orders", f"{topic}-in") == {0: 1}, "the offsets of the group", 180.0)
    source.acknowledge("a group that is not allowed", {splits[0].place: chunk.position})
    eventually(lambda: "were not committed" in caplog.text, "the warning", 180.0)
    assert source.plan({splits[0].place: chunk.position}, mp.lowlevel.Limit(rows=10, bytes=1 << 20), now=0.0) == []

    sink = mp.sinks.kafka(f"{topic}-out", servers=secured.sasl_address, create={"partitions": 1}, options=options)
    assert isinstance(sink, mp.lowlevel.FencingSink) and isinstance(sink, mp.lowlevel.RegisteredSink)
    claim = mp.lowlevel.Registration("orders", "5e1f", "totals", 1, "a1", 1, "a1")
    sink.register(claim)
    sink.fence(claim, partitions=1)
    assert sink.registrations("orders", "5e1f", "totals") == [claim]
    sink.deliver([{"n": 1}], mp.lowlevel.Delivery("orders", "5e1f", "totals", 2, 0, "a2", (1, "a1")))
    assert [message.json for message in broker.read_committed(f"{topic}-out")] == [{"n": 1}]


# --- the example ---


@pytest.mark.timeout(600)
def test_the_example_goes_on_with_its_totals(
    fresh_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = fresh_broker
    monkeypatch.setenv("KAFKA_SERVERS", broker.address)
    broker.create_topic("orders", 2)

    def send(*orders: tuple[str, int]) -> None:
        broker.send("orders", [json.dumps({"customer": customer, "cents": cents}) for customer, cents in orders])

    send(("ann", 300), ("bob", 500))
    broker.send("orders", ["{broken"])
    assert python(EXAMPLE, cwd=tmp_path).splitlines() == ["ann: 3.00 in 1 orders", "bob: 5.00 in 1 orders"]
    send(("ann", 400), ("bob", 0))
    assert python(EXAMPLE, cwd=tmp_path).splitlines() == ["ann: 7.00 in 2 orders"]

    totals = [message.json for message in broker.read_committed("totals")]
    assert sorted((total["customer"], total["cents"]) for total in totals) == [
        ("ann", 300),
        ("ann", 700),
        ("bob", 500),
        ("bob", 500),
    ]
    table = {message.key: message.value for message in broker.read_committed("total-table")}
    assert table.keys() == {b"ann", b"bob"} and table[b"bob"] is None
    assert json.loads(table[b"ann"] or b"")["value"] == {"customer": "ann", "cents": 700, "orders": 2}
    [letter] = broker.read_committed("orders-dead")
    assert "topic 'orders', partition" in letter.json["error"]
