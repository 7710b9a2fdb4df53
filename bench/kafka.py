"""From Kafka to Kafka: a keyed running total against Quix Streams, its latency, and the Kafka source alone.

One broker on the same machine, topics of four partitions, rows of about 100 bytes of JSON. What counts is what a reader
of committed messages can see: the rows after the first batch, and the time from there to the end, or nearly so.
The outputs of every run are read back and checked. Quix Streams is installed into an environment of its own by
`make bench-kafka`.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from confluent_kafka import Producer
from harness import Bench
from kafka_clients import Client, visible_messages
from on_spark import batches

import millpond as mp

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests" / "support"))

from kafka_broker import SINGLE, Node, free_ports  # noqa: E402
from kafka_operations import Operations  # noqa: E402

KEYS, PARTITIONS = 10_000, 4
QUIX = ROOT / "build" / "quix-venv" / "bin" / "python"
# The brokers of tests are made to start, fail over and clean up fast, with little memory. These are Kafka's own values.
# With its delay, both processes of Quix Streams have joined before the first of them reads.
AS_SHIPPED = {
    "background.threads": 10,
    "broker.heartbeat.interval.ms": 2000,
    "broker.session.timeout.ms": 9000,
    "controller.quorum.election.backoff.max.ms": 1000,
    "controller.quorum.election.timeout.ms": 1000,
    "controller.quorum.fetch.timeout.ms": 2000,
    "group.initial.rebalance.delay.ms": 3000,
    "log.cleaner.backoff.ms": 15_000,
    "log.cleaner.dedupe.buffer.size": 128 << 20,
    "log.retention.check.interval.ms": 300_000,
    "log.segment.delete.delay.ms": 60_000,
    "num.io.threads": 8,
    "num.network.threads": 3,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 10_000,
}
AS_SHIPPED_JVM = ("-Xmx1g", "-XX:TieredStopAtLevel=4")
NEAR_END = 0.9  # of the rows: Quix Streams commits the last ones only when its interval is over
COMMIT_SECONDS = 2.0  # between the commits of Quix Streams; 5 s, its default, is too coarse to measure the end of a run
SOON_SECONDS = 0.1  # of Quix Streams where latency counts


def add_up(key: str, row: dict[str, Any], total: float) -> tuple[dict[str, Any], float]:
    total += row["value"]
    return {"key": key, "offset": row["offset"], "total": total, "at": row["at"]}, total


def running_total(rows: Any) -> Any:
    return rows.key_by("key").stateful_map("total", add_up, initial=0.0)


def json_rows(folder: Path, files: int, rows: int, keys: int) -> None:
    """Write lines of JSON, about 100 bytes each, whose keys are drawn at random."""
    chance = np.random.default_rng(1)
    for number in range(files):
        keyed = zip(chance.integers(0, keys, rows).tolist(), chance.integers(0, 100, rows).tolist(), strict=True)
        with (folder / f"p{number:04d}.jsonl").open("w") as file:
            for offset, (key, value) in enumerate(keyed, number * rows):
                row = {"key": f"user-{key}", "offset": offset, "value": float(value), "at": 0.0, "note": "x" * 20}
                file.write(json.dumps(row) + "\n")


class Kafka(Operations):
    """The broker of a run, with the topic of the rows."""

    def __init__(self, bench: Bench) -> None:
        clients, controllers = free_ports(2)
        ports = {"PLAINTEXT": clients, "CONTROLLER": controllers}
        self._node = Node(1, ports, {1: controllers}, {**SINGLE, **AS_SHIPPED}, AS_SHIPPED_JVM)
        bench.at_end.callback(self._node.destroy)
        bench.at_end.callback(self._print_warnings)
        self._node.start()
        self._node.wait_until_ready()
        self.servers = self.address
        self.size = 25_000 if bench.is_quick else 250_000  # rows of a batch
        self.count = 4 * self.size
        self.folder = bench.files(json_rows, files=4, rows=self.size, keys=KEYS)
        self.rows = self.new_topic("rows")
        self.totals = self._produce()

    @property
    def address(self) -> str:
        return self._node.address

    def _print_warnings(self) -> None:
        if self._node.log:
            print(f"The broker has logged:\n{self._node.log[-4000:]}", file=sys.stderr)

    def new_topic(self, name: str) -> str:
        return self.create_topic(f"{name}-{time.monotonic_ns()}", PARTITIONS)

    def source(self) -> Any:
        return mp.sources.kafka(self.rows, servers=self.servers)

    def sink(self, topic: str, *, exactly_once: bool = True) -> Any:
        return mp.sinks.kafka(topic, servers=self.servers, key="key", exactly_once=exactly_once)

    def _produce(self) -> dict[str, float]:
        """Produce the lines of the files, and return the total of each key."""
        totals: dict[str, float] = {}
        settings = {"linger.ms": 20, "queue.buffering.max.messages": 2_000_000, "partitioner": "murmur2_random"}
        producer = Producer({"bootstrap.servers": self.servers, **settings})
        for path in sorted(Path(self.folder).iterdir()):
            for line in path.read_bytes().splitlines():
                row = msgspec.json.decode(line)
                totals[row["key"]] = totals.get(row["key"], 0.0) + row["value"]
                producer.produce(self.rows, line, row["key"])
            producer.flush()
        return totals

    def rate(self, run: Callable[[str, Client], None]) -> float:
        """Return the rows per second that a run makes visible after its first batch. Its outputs are checked."""
        target = self.new_topic("totals")
        watch = Client("watch", self.servers, target, self.count)
        run(target, watch)
        seen = watch.result
        began, first = next((at, visible) for at, visible in seen if visible >= self.size)
        ended, last = next((at, visible) for at, visible in seen if visible >= NEAR_END * self.count)
        self._check(target)
        self.delete_topic(target)
        return float((last - first) / (ended - began))

    def _check(self, target: str) -> None:
        """Raise if an output is missing, or there twice, or wrong."""
        offsets = np.zeros(self.count, dtype=np.int64)
        totals: dict[str, float] = {}
        decode, left = msgspec.json.Decoder().decode, self.count
        for messages in visible_messages(self.servers, target):
            for message in messages:
                row = decode(message.value())
                offsets[row["offset"]] += 1
                totals[row["key"]] = row["total"]
            left -= len(messages)
            if left <= 0:
                break
        if left or (offsets != 1).any() or totals != self.totals:
            raise SystemExit(f"{target}: {(offsets == 0).sum()} outputs are missing, {(offsets > 1).sum()} are double")


_running: list[Kafka] = []


def _kafka(bench: Bench) -> Kafka:
    """Return the broker of this run, which is started when it is first needed."""
    if not _running:
        _running.append(Kafka(bench))
    return _running[0]


# --- exactly once, against Quix Streams and against at least once ---


def once_against_quix(bench: Bench) -> None:
    kafka = _kafka(bench)
    ours = partial(kafka.rate, partial(_run_millpond, bench, kafka))
    loose = partial(kafka.rate, partial(_run_millpond, bench, kafka, exactly_once=False))
    one, two = (partial(kafka.rate, partial(_run_quix, bench, kafka, processes=count)) for count in (1, 2))
    bench.warm_up(lambda: [ours()])
    once, least, *theirs = _median_rates(bench, 5, ours, loose, *((one, two) if _has_quix(bench) else ()))
    what = f"Kafka to Kafka, running total, exactly once, batches of {kafka.size:,} rows"
    for name, found in zip(("one process", "two processes"), theirs, strict=False):
        bench.note_rows(f"{what}: Millpond / Quix Streams, {name}", once, found)
    bench.note_rows(f"{what}: Millpond, at least once / exactly once", least, once)


def _median_rates(bench: Bench, rounds: int, *ways: Callable[[], float]) -> list[float]:
    found: list[list[float]] = [[] for _ in ways]
    for _ in range(bench.rounds(rounds)):
        for way, rates in zip(ways, found, strict=True):
            rates.append(way())
    print("  rows/s of each round:", *([round(rate) for rate in rates] for rates in found), flush=True)
    return [statistics.median(rates) for rates in found]


def _run_millpond(bench: Bench, kafka: Kafka, target: str, watch: Client, *, exactly_once: bool = True) -> None:
    with _an_app(bench) as app:
        totals = running_total(app.stream("rows", kafka.source()))
        totals.to("totals", kafka.sink(target, exactly_once=exactly_once))
        mp.lowlevel.run_with(app, mp.lowlevel.Settings(until="caught-up", max_rows=kafka.size), bench.spark)


@contextmanager
def _an_app(bench: Bench) -> Iterator[mp.App]:
    home = bench.new_folder("state")
    yield mp.App(home.name, state_dir=str(home), partitions=2, local_dir=str(home / "local"))
    shutil.rmtree(home)


def _has_quix(bench: Bench) -> bool:
    if bench.has_peers and not QUIX.exists():
        raise SystemExit("Quix Streams is not installed. Run: make bench-kafka, or leave it out with --no-peers")
    return bench.has_peers


def _run_quix(bench: Bench, kafka: Kafka, target: str, watch: Client, *, processes: int) -> None:
    commit_seconds = COMMIT_SECONDS / 10 if bench.is_quick else COMMIT_SECONDS
    with _quix(bench, kafka.servers, (kafka.rows, target), commit_seconds, processes):
        _ = watch.result  # it ends when all outputs are visible


@contextmanager
def _quix(
    bench: Bench, servers: str, topics: tuple[str, str], commit_seconds: float, processes: int = 1
) -> Iterator[None]:
    """Run the program of Quix Streams in some processes."""
    home = bench.new_folder("quix")
    script = Path(__file__).with_name("kafka_quix.py")
    running = [
        subprocess.Popen(
            [QUIX, "-W", "ignore", script, servers, *topics, home.name, home / str(number), str(commit_seconds)]
        )
        for number in range(processes)
    ]
    try:
        yield
    finally:
        for process in running:
            process.terminate()
        ended = [process.wait() for process in running]
        shutil.rmtree(home, ignore_errors=True)
    if any(ended):
        raise SystemExit(f"Quix Streams ended with {ended}")


# --- latency ---


def latency(bench: Bench) -> None:
    """A row is as old as the time from its production to its output being visible, in a reader of its own."""
    kafka = _kafka(bench)
    rate, warm, seconds = (200, 10, 5) if bench.is_quick else (1_000, 20, 60)
    load = (rate, warm, seconds)
    found, shares = _latency_of_millpond(bench, kafka, load)
    what = f"Kafka to Kafka, running total, {rate:,} rows/s, exactly once: age of outputs, p50 / p99"
    bench.note(f"{what}: Millpond, every=0", _quantiles(found["ages"]))
    bench.note("a batch of it: " + " / ".join(shares), " / ".join(f"{1000 * s:.0f}" for s in shares.values()) + " ms")
    if _has_quix(bench):
        source, target = kafka.new_topic("rows"), kafka.new_topic("totals")
        with _quix(bench, kafka.servers, (source, target), SOON_SECONDS):
            found = _under_load(kafka, source, target, load)
        bench.note(f"{what}: Quix Streams, a commit every {SOON_SECONDS} s", _quantiles(found["ages"]))


def _under_load(kafka: Kafka, source: str, target: str, load: tuple[int, int, int]) -> dict[str, Any]:
    rate, warm, seconds = load
    reader = Client("read", kafka.servers, target, rate * (warm + seconds))
    sender = Client("load", kafka.servers, source, *load)
    _ = sender.result
    found: dict[str, Any] = reader.result
    if len(found["ages"]) != rate * seconds:
        raise SystemExit(f"{target}: expected {rate * seconds} outputs, got {len(found['ages'])}")
    return found


def _latency_of_millpond(
    bench: Bench, kafka: Kafka, load: tuple[int, int, int]
) -> tuple[dict[str, Any], dict[str, float]]:
    source, target = kafka.new_topic("rows"), kafka.new_topic("totals")
    marks: list[tuple[str, str, float]] = []  # step, when, time
    main, found = threading.get_ident(), []

    def hook(step: str, when: str) -> None:
        if threading.get_ident() == main:
            marks.append((step, when, time.time()))

    with _an_app(bench) as app:
        totals = running_total(app.stream("rows", mp.sources.kafka(source, servers=kafka.servers)))
        totals.to("totals", kafka.sink(target))

        def stop_after_load() -> None:
            try:
                found.append(_under_load(kafka, source, target, load))
            finally:
                app.stop()

        helper = threading.Thread(target=stop_after_load)
        helper.start()
        mp.lowlevel.run_with(app, mp.lowlevel.Settings(every=0.0), bench.spark, hook)
        helper.join()
    if not found:
        raise SystemExit("Millpond has stopped before the load had ended")
    return found[0], _shares(marks, found[0]["batches"])


def _shares(marks: list[tuple[str, str, float]], visible: list[tuple[int, float]]) -> dict[str, float]:
    """Return the median seconds of each step in a batch, of the second half of the run.

    A delivery may happen in another thread, or in the next batch: it ends when the outputs are visible.
    """
    taken: dict[str, list[float]] = {step: [] for step in ("plan", "compute", "commit", "deliver", "whole")}
    began: dict[str, float] = {}
    planned = 0.0
    commits: list[float] = []
    for step, when, at in marks:
        if when == "before":
            began[step] = at
        elif when == "after" and step in ("compute", "commit"):
            taken[step].append(at - began[step])
        elif when == "after" and step == "plan":
            planned = at - began[step]
        if (step, when) == ("compute", "before"):
            taken["plan"].append(planned)
        if (step, when) == ("commit", "after"):
            taken["whole"] += [at - commits[-1]] if commits else []
            commits.append(at)
    delivered = zip(reversed(commits), reversed([at for _, at in visible]), strict=False)
    taken["deliver"] = [at - commit for commit, at in delivered][::-1]
    return {step: statistics.median(seconds[len(seconds) // 2 :]) for step, seconds in taken.items()}


def _quantiles(ages: list[float]) -> str:
    p50, p99 = np.quantile(ages, [0.5, 0.99])
    return f"{1000 * p50:.0f} / {1000 * p99:.0f} ms"


# --- the source alone ---


def source_against_files(bench: Bench) -> None:
    kafka = _kafka(bench)
    ways = [
        partial(batches, bench, source, running_total, kafka.size)
        for source in (kafka.source(), mp.sources.files(kafka.folder))
    ]
    bench.warm_up(ways[0])
    one, other = (kafka.size / seconds for seconds in bench.in_turns(5, *ways))
    bench.note_rows(f"running total, batches of {kafka.size:,} rows: Kafka as the source / JSON lines", one, other)
