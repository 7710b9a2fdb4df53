"""A small Kafka-to-Kafka app, run by drivers without Spark: in this process, or in others that are killed or paused."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

import confluent_kafka
from kafka_operations import Operations
from processes import eventually, is_asleep

import millpond as mp
from millpond.clock import SystemClock
from millpond.driver.commit import Driver
from millpond.driver.settings import Controls, DriverSettings
from millpond.runtimes.local import LocalRuntime
from millpond.storage import open_storage

PROCESSES = multiprocessing.get_context("forkserver")  # forked before any client of Kafka exists, with all imports done
PROCESSES.set_forkserver_preload(["kafka_bench"])


def add(key: str, row: dict[str, Any], total: int) -> tuple[dict[str, Any], int]:
    return {"id": row["id"], "key": key, "total": total + row["value"]}, total + row["value"]


@dataclass(frozen=True)
class Point:
    """Where a process stops: the `number`th time at a step of the commit protocol or at a call of a producer.

    `call` is a method of a transactional producer; `suffix` is the end of its transactional id. With `then` "pause" the
    process stops itself with SIGSTOP; with "kill" it kills itself.
    """

    call: str = ""
    step: str = ""
    when: str = "before"
    number: int = 1
    suffix: str = ""
    then: str = "kill"

    def __str__(self) -> str:
        return f"{self.when}-{self.call or self.step}-{self.number}"


@dataclass
class Countdown:
    point: Point
    seen: int = 0

    def reached(self) -> None:
        self.seen += 1
        if self.seen == self.point.number:
            os.kill(os.getpid(), signal.SIGSTOP if self.point.then == "pause" else signal.SIGKILL)


def with_stops(countdown: Countdown) -> Any:
    """The class of producers, whose calls stop the process at a point."""
    point = countdown.point

    class Stopping(confluent_kafka.Producer):  # type: ignore[misc]
        def __init__(self, config: dict[str, Any], *args: Any, **how: Any) -> None:
            self.name = config.get("transactional.id", "")
            super().__init__(config, *args, **how)

        def _stop_at(self, call: str, when: str) -> None:
            if (call, when) == (point.call, point.when) and self.name and self.name.endswith(point.suffix):
                countdown.reached()

    original = confluent_kafka.Producer
    methods = {name: getattr(original, name) for name in ("init_transactions", "begin_transaction", "produce", "flush")}
    methods["commit_transaction"] = original.commit_transaction

    def wrap(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **how: Any) -> Any:
            self._stop_at(name, "before")
            found = real(self, *args, **how)
            self._stop_at(name, "after")
            return found

        return method

    for name, real in methods.items():
        setattr(Stopping, name, wrap(name, real))
    return Stopping


@dataclass(frozen=True)
class KafkaApp:
    """An app that adds up values: from the topic `source` to the topic `target`."""

    servers: str
    source: str
    target: str
    state: str
    partitions: int = 2
    exactly_once: bool = True
    accept: tuple[str, ...] = ()
    take_back: tuple[str, ...] = ()
    max_rows: int = 40
    keep: int = 1000
    publish: str = ""  # a topic for the changes of the step
    options: Mapping[str, Any] = field(default_factory=dict)
    sink: Mapping[str, Any] = field(default_factory=dict)
    name: str = "sums"

    def build(self) -> mp.App:
        app = mp.App(self.name, self.state, partitions=self.partitions, keep=self.keep, compact_every=4)
        rows = app.stream("rows", mp.sources.kafka(self.source, servers=self.servers))
        options = {"transactional.id": self.target, **self.options}
        how: dict[str, Any] = {"key": "key", "exactly_once": self.exactly_once, **self.sink}
        out = mp.sinks.kafka(self.target, servers=self.servers, options=options, **how)
        rows.key_by("key").stateful_map("total", add, initial=0).to("out", out)
        if self.publish:
            table = mp.sinks.kafka(
                self.publish,
                servers=self.servers,
                key="key",
                options=options,
                create={"partitions": 2, "cleanup.policy": "compact"},
            )
            app.changes("total").to("table", table)
        return app

    def start(self, hook: Any = None) -> Driver:
        app = self.build()
        storage, clock = open_storage(app.state_dir), SystemClock()
        home = tempfile.mkdtemp(prefix="replicas-", dir=os.path.dirname(self.state))
        settings = DriverSettings(
            partitions=self.partitions,
            home=home,
            threaded=False,
            keep=app.keep,
            compact_every=app.compact_every,
            accept=self.accept,
            take_back=self.take_back,
        )
        program = mp.lowlevel.program(app)
        return Driver.start(program, LocalRuntime(storage, clock), storage, clock, settings, Controls(hook=hook))

    def batch(self, driver: Driver) -> bool:
        return driver.batch(mp.lowlevel.Limit(self.max_rows, 1 << 60))

    def run(self, hook: Any = None) -> None:
        """Read all that is in the source."""
        driver = self.start(hook)
        try:
            while self.batch(driver):
                pass
            driver.release()
        finally:
            driver.close()

    def with_(self, **changed: Any) -> KafkaApp:
        return replace(self, **changed)


def run_in_process(app: KafkaApp, point: Point | None, results: Connection) -> None:
    hook = None
    if point is not None and point.call:
        confluent_kafka.Producer = with_stops(Countdown(point))
    elif point is not None:
        countdown = Countdown(point)

        def hook(step: str, when: str) -> None:
            if (step, when) == (point.step, point.when):
                countdown.reached()

    try:
        app.run(hook)
        results.send("done")
    except mp.errors.MillpondError as error:
        results.send(f"{type(error).__name__}: {error}")
    except BaseException as error:
        results.send(f"unexpected {type(error).__name__}: {error}")
        raise


def fence_in_process(sink: Any, registration: mp.lowlevel.Registration, partitions: int) -> None:
    """Let a driver in a process of its own take a sink over."""
    process = PROCESSES.Process(target=sink.fence, args=(registration, partitions))
    process.start()
    process.join(180)
    assert process.exitcode == 0


class AppProcess:
    """A driver in a process of its own."""

    def __init__(self, app: KafkaApp, point: Point | None = None) -> None:
        self._results, theirs = PROCESSES.Pipe(duplex=False)
        self._process = PROCESSES.Process(target=run_in_process, args=(app, point, theirs), daemon=True)
        self._process.start()
        theirs.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def result(self, patience: float = 180.0) -> str:
        """What it ended with: "done", the error, or "killed"."""
        self._process.join(patience)
        assert self._process.exitcode is not None, f"still running after {patience:.0f} s"
        with contextlib.suppress(EOFError):
            return str(self._results.recv())
        return "killed"

    def wait_until_asleep(self) -> None:
        def asleep() -> bool:
            if is_asleep(self.pid):
                return True
            assert self._process.is_alive(), f"it ended before it was paused: {self.result()}"
            return False

        eventually(asleep, "a process that pauses itself", 180.0)

    def wake(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def destroy(self) -> None:
        if self._process.is_alive():  # or its number may be that of another process
            self._process.kill()
        self._process.join()


class KafkaBench:
    """The input of an app, and what its topic and its state must hold."""

    def __init__(self, brokers: Operations, topic: str, folder: Any, **app: Any) -> None:
        self.brokers = brokers
        self.rows: list[dict[str, Any]] = []
        source = brokers.create_topic(f"{topic}-in", 2)
        target = brokers.create_topic(f"{topic}-out", 3)
        self.app = KafkaApp(brokers.address, source, target, str(folder / "state"), **app)

    def send(self, count: int) -> None:
        """Send rows to the source; those of a key go to one partition."""
        first = len(self.rows)
        fresh: list[dict[str, Any]] = [
            {"id": i, "key": f"k{i * 7 % 11}", "value": i % 10 + 1} for i in range(first, first + count)
        ]
        self.rows += fresh
        for partition in (0, 1):
            mine = [row for row in fresh if int(str(row["key"])[1:]) % 2 == partition]
            self.brokers.send(self.app.source, mine, partition=partition)

    @property
    def totals(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for row in self.rows:
            found[row["key"]] = found.get(row["key"], 0) + row["value"]
        return found

    def outputs(self) -> list[dict[str, Any]]:
        """The rows that a reader of committed messages sees, in the order of partitions and offsets."""
        return [message.json for message in self.brokers.read_committed(self.app.target)]

    def check(self, app: KafkaApp | None = None) -> None:
        """Every output is in the topic once, in the order of its key, and the state agrees."""
        app = app or self.app
        by_key: dict[str, list[Any]] = {}
        expected: dict[str, list[Any]] = {}
        for row in self.outputs():
            by_key.setdefault(row["key"], []).append((row["id"], row["total"]))
        for row in self.rows:
            before = expected.setdefault(row["key"], [])
            before.append((row["id"], row["value"] + (before[-1][1] if before else 0)))
        assert by_key == expected
        assert dict(app.build().state("total").items()) == self.totals
