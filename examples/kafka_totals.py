"""Totals per customer from Kafka to Kafka, exactly once, and the table of all totals as a compacted topic.

Reads the topic orders, whose messages are JSON such as {"customer": "ann", "cents": 300}. Writes a message per order to
the topic totals, and the newest total of each customer to total-table. Orders that cannot be read go to orders-dead. In
a clone, `make kafka` starts a broker:

    pip install 'millpond[kafka]'
    python examples/kafka_totals.py

Without the topic orders it says so: create it and send some orders, for example with kafka-console-producer. Run it
again at any time, also after kill -9: it goes on where it was. KAFKA_SERVERS is the address of another broker.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import millpond as mp

SERVERS = os.environ.get("KAFKA_SERVERS", "localhost:9092")


@dataclass
class Order:
    customer: str
    cents: int


@dataclass
class Total:
    customer: str
    cents: int
    orders: int


def add_up(customer: str, order: Order, total: Total | None) -> tuple[Total, Total | None]:
    """State in, output and new state out. An order of 0 cents closes the account."""
    before = total or Total(customer, 0, 0)
    after = Total(customer, before.cents + order.cents, before.orders + 1)
    return after, None if order.cents == 0 else after


app = mp.App("kafka-totals", state_dir="state")
source = mp.sources.kafka("orders", servers=SERVERS)
orders = app.stream("orders", source, timestamp=mp.message_time, disorder="10s", type=Order, on_error="dead-letter")
totals = orders.key_by("customer").stateful_map("total", add_up, type=Total)
totals.to("totals", mp.sinks.kafka("totals", servers=SERVERS, key="customer", create={"partitions": 3}))

table = mp.sinks.kafka(
    "total-table",
    servers=SERVERS,
    key="key",
    create={"partitions": 3, "cleanup.policy": "compact"},
)
app.changes("total").to("table", table)  # a customer whose account was closed becomes a tombstone
app.dead_letters.to("dead", mp.sinks.kafka("orders-dead", servers=SERVERS, create={"partitions": 1}))

if __name__ == "__main__":
    app.run(until="caught-up")
    for customer, total in sorted(app.state("total").items()):
        print(f"{customer}: {total.cents / 100:.2f} in {total.orders} orders")
