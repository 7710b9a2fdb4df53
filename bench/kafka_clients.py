"""Clients of a broker beside the programs that are measured, in processes of their own.

    python bench/kafka_clients.py watch SERVERS TOPIC COUNT    when readers of committed messages can see how many
    python bench/kafka_clients.py load SERVERS TOPIC RATE WARM SECONDS    rows at a steady rate
    python bench/kafka_clients.py read SERVERS TOPIC COUNT     how old the rows of a load are when they can be seen

Each prints one line of JSON when it ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import msgspec
from confluent_kafka import Consumer, IsolationLevel, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

LOOK_SECONDS = 0.05
SETTLED_SECONDS = 1.0
QUIET_SECONDS = 120.0  # without a message, before a reader gives up
BATCH_HEADER = "millpond-batch"
LOAD_KEYS = 10_000


class Client:
    """One of the commands, as a running process."""

    def __init__(self, *command: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *(str(part) for part in command)], stdout=subprocess.PIPE, text=True
        )

    @cached_property
    def result(self) -> Any:
        """What the process has printed; waits for its end."""
        printed, _ = self._process.communicate()
        if self._process.returncode:
            raise SystemExit(f"{self._process.args!r} ended with {self._process.returncode}")
        return json.loads(printed)


def watch(servers: str, topic: str, count: str) -> list[tuple[float, int]]:
    """Return each change of the number of visible messages, markers of transactions among them, with its time.

    Ends when no transaction has been open for a second after `count` messages.
    """
    admin = AdminClient({"bootstrap.servers": servers})
    asked = {TopicPartition(topic, number): OffsetSpec.latest() for number in partitions(admin, topic)}

    def total(isolation: IsolationLevel) -> int:
        answers = admin.list_offsets(asked, isolation_level=isolation)
        return sum(answer.result().offset for answer in answers.values())

    found, changed = [(time.monotonic(), 0)], time.monotonic()
    while found[-1][1] < int(count) or time.monotonic() - changed < SETTLED_SECONDS:
        time.sleep(LOOK_SECONDS)
        visible = total(IsolationLevel.READ_COMMITTED)
        if visible != found[-1][1]:
            found.append((time.monotonic(), visible))
            changed = time.monotonic()
        elif visible >= int(count) and total(IsolationLevel.READ_UNCOMMITTED) != visible:
            changed = time.monotonic()
        if time.monotonic() - changed > QUIET_SECONDS:
            raise SystemExit(f"topic {topic!r}: {visible:,} of {count} messages, and no more for {QUIET_SECONDS:.0f} s")
    return found


def load(servers: str, topic: str, rate: str, warm: str, seconds: str) -> int:
    """Produce rows at a steady rate, each with the time at which it is produced; 0 while the programs warm up."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 1, "partitioner": "murmur2_random"})
    began, pause = time.monotonic(), 1 / float(rate)
    warming, count = int(float(warm) * float(rate)), int((float(warm) + float(seconds)) * float(rate))
    for offset in range(count):
        due = began + offset * pause
        while (early := due - time.monotonic()) > 0:
            producer.poll(0)
            time.sleep(min(early, 0.002))
        key = f"user-{offset * 7919 % LOAD_KEYS}"
        at = 0.0 if offset < warming else time.time()
        row = {"key": key, "offset": offset, "value": float(offset % 100), "at": at, "note": "x" * 20}
        producer.produce(topic, json.dumps(row).encode(), key)
    producer.flush()
    return count


def read(servers: str, topic: str, count: str) -> dict[str, Any]:
    """Return the ages of the rows of a load as they become visible, and when the last row of each batch did."""
    ages: list[float] = []
    batches: dict[str, float] = {}
    decode = msgspec.json.Decoder().decode
    left = int(count)
    for messages in visible_messages(servers, topic):
        now = time.time()
        for message in messages:
            at = decode(message.value())["at"]
            if at:
                ages.append(now - at)
            for name, value in message.headers() or ():
                if name == BATCH_HEADER:
                    batches[value.decode()] = now
        left -= len(messages)
        if left <= 0:
            break
    return {"ages": ages, "batches": sorted((int(number), at) for number, at in batches.items())}


def visible_messages(servers: str, topic: str) -> Any:
    """Yield the committed messages of a topic from its start, as they come, some at a time."""
    admin = AdminClient({"bootstrap.servers": servers})
    settings = {"isolation.level": "read_committed", "fetch.wait.max.ms": 10, "fetch.queue.backoff.ms": 2}
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False, **settings})
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions(admin, topic)])
    try:
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < QUIET_SECONDS:
            messages: list[Message] = consumer.consume(50_000, timeout=0.005)
            if messages:
                quiet_since = time.monotonic()
                yield messages
        raise SystemExit(f"topic {topic!r}: no message for {QUIET_SECONDS:.0f} s")
    finally:
        consumer.close()


def partitions(admin: AdminClient, topic: str) -> list[int]:
    return sorted(admin.list_topics(topic, timeout=60).topics[topic].partitions)


COMMANDS: dict[str, Callable[..., Any]] = {"watch": watch, "load": load, "read": read}

if __name__ == "__main__":
    print(json.dumps(COMMANDS[sys.argv[1]](*sys.argv[2:])))
