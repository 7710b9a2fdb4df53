"""Kafka brokers in processes of their own: started, killed, paused, restarted.

They run on free loopback ports, with their data in a temporary folder, and die with the process that started them.
`scripts/kafka` downloads the jars.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kafka_operations import SILENT, TIMEOUT, Operations
from processes import eventually, is_asleep

ROOT = Path(__file__).parents[2]
CLUSTER_ID = "millpond-tests-cluster"  # 22 characters of base64
PATIENCE = 120.0  # seconds until a started broker answers

# What makes tests fast; a topic of a test can still choose otherwise.
QUICK = {
    "auto.create.topics.enable": "false",  # a misspelled topic is an error
    "background.threads": 2,
    "group.coordinator.rebalance.protocols": "classic,consumer",
    "group.initial.rebalance.delay.ms": 0,
    "log.cleaner.backoff.ms": 200,
    "log.cleaner.dedupe.buffer.size": 4 << 20,
    "log.initial.task.delay.ms": 200,  # before the first check of retention
    "log.retention.check.interval.ms": 200,
    "log.retention.ms": -1,  # tests send messages with old timestamps; topics that test retention set retention.ms
    "log.segment.delete.delay.ms": 1000,
    "num.io.threads": 4,
    "num.network.threads": 2,
    "offsets.topic.num.partitions": 1,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    "transaction.state.log.num.partitions": 1,
}

# A broker that stops answering is noticed after a second or two. The defaults are made for networks, and are longer.
QUICK_FAILOVER = {
    "broker.heartbeat.interval.ms": 200,
    "broker.session.timeout.ms": 1500,
    "controller.quorum.election.backoff.max.ms": 200,
    "controller.quorum.election.timeout.ms": 500,
    "controller.quorum.fetch.timeout.ms": 1000,
    "replica.fetch.wait.max.ms": 100,
    "replica.lag.time.max.ms": 3000,
}


class Unavailable(Exception):
    """This machine has no Java or no jars, and they cannot be installed; the message says why."""


@functools.cache
def java() -> Path:
    return Path(_printed_by(ROOT / "scripts" / "java")) / "bin" / "java"


@functools.cache
def broker_jars() -> Path:
    return Path(_printed_by(ROOT / "scripts" / "kafka"))


@functools.cache
def spark_connector_jars() -> list[Path]:
    """The jars of Spark's own Kafka connector, for `spark.jars`."""
    return sorted(Path(_printed_by(ROOT / "scripts" / "kafka", "spark-connector")).glob("*.jar"))


def _printed_by(*command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise Unavailable(f"{Path(command[0]).name}: {done.stderr.strip()[-1000:]}")
    return done.stdout.strip()


class Broker(Operations):
    """One Kafka broker that is also a controller; it is running after the call.

    `settings` are lines of server.properties. `listeners` are listeners besides PLAINTEXT, which tests use for
    administration: a name such as "SSL" gets a port in `ports`. Use it in a `with` statement, or call `destroy()`.
    """

    def __init__(self, *, settings: Mapping[str, object] | None = None, listeners: tuple[str, ...] = ()) -> None:
        ports = dict(zip(("PLAINTEXT", "CONTROLLER", *listeners), free_ports(2 + len(listeners)), strict=True))
        self._node = Node(1, ports, {1: ports["CONTROLLER"]}, {**SINGLE, **(settings or {})})
        try:
            self.start()
        except BaseException:
            self.destroy()
            raise

    @property
    def address(self) -> str:
        return self._node.address

    @property
    def ports(self) -> Mapping[str, int]:
        """The port of each listener."""
        return self._node.ports

    @property
    def pid(self) -> int:
        return self._node.pid

    @property
    def log(self) -> str:
        """Warnings and errors that the broker has printed."""
        return self._node.log

    def start(self) -> None:
        """Start on the same data and ports, and wait until clients are served."""
        self._node.start()
        self._node.wait_until_ready()

    def kill(self) -> None:
        """SIGKILL. What the broker has written and not synced is in the page cache and survives."""
        self._node.kill()

    def stop(self) -> None:
        """SIGTERM, and wait for the end."""
        self._node.stop()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        self._node.pause()

    def resume(self) -> None:
        self._node.resume()

    def restart(self) -> None:
        """Stop, unless it is stopped already, and start on the same data and port."""
        self.stop()
        self.start()

    def destroy(self) -> None:
        """Kill it and remove its data."""
        self._node.destroy()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()


class Cluster(Operations):
    """Three brokers, each also a controller. Topics have three replicas, and a write needs two of them.

    `brokers[0]` has the id 1. A leader that disappears is replaced after about four seconds.
    """

    replication = 3

    def __init__(self, *, settings: Mapping[str, object] | None = None) -> None:
        ports = free_ports(6)  # all at once: of two calls, the second may return ports of the first
        clients, controllers = ports[:3], ports[3:]
        voters = dict(enumerate(controllers, start=1))
        self.brokers = [
            Node(number, {"PLAINTEXT": port, "CONTROLLER": voters[number]}, voters, {**THREE, **(settings or {})})
            for number, port in enumerate(clients, start=1)
        ]
        try:
            self.start()
        except BaseException:
            self.destroy()
            raise

    @property
    def address(self) -> str:
        return ",".join(each.address for each in self.brokers)

    def start(self) -> None:
        """Start the brokers that are not running, and wait until all three know each other."""
        for each in self.brokers:
            each.start()
        for each in self.brokers:
            each.wait_until_ready(brokers=3)

    def create_topic(self, name: str, partitions: int = 1, *, timeout: float = TIMEOUT, **config: Any) -> str:
        return super().create_topic(name, partitions, timeout=timeout, **{"min_insync_replicas": 2, **config})

    def broker(self, number: int) -> Node:
        """The broker with an id, as `leader` returns it."""
        return self.brokers[number - 1]

    def wait_for_leader(self, topic: str, partition: int = 0, *, other_than: int = -1) -> int:
        """Wait until a partition has a leader, other than a given one; return its id."""

        def new_leader() -> int | None:
            with contextlib.suppress(KafkaException):
                found = self.leader(topic, partition, timeout=2)  # the broker that is asked may be paused
                return found if found not in (-1, other_than) else None
            return None

        return int(eventually(new_leader, f"a new leader of {topic}-{partition}", PATIENCE))

    def wait_for_replicas(self, topic: str, count: int = 3) -> None:
        """Wait until each partition of a topic has so many replicas in sync."""

        def in_sync() -> bool:
            with contextlib.suppress(KafkaException):
                found = self.admin.list_topics(topic, timeout=2).topics[topic].partitions.values()
                return all(len(each.isrs) >= count for each in found)
            return False

        eventually(in_sync, f"{count} replicas of {topic}", PATIENCE)

    def destroy(self) -> None:
        for each in self.brokers:
            each.destroy()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()


SINGLE = {
    **QUICK,
    **QUICK_FAILOVER,  # a killed broker that comes back waits until its former session has timed out
    "offsets.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.replication.factor": 1,
}
THREE = {
    **QUICK,
    **QUICK_FAILOVER,
    # On a busy machine, brokers that give each other less time take turns in being thought dead.
    "broker.session.timeout.ms": 4000,
    "controller.quorum.election.timeout.ms": 1500,
    "controller.quorum.fetch.timeout.ms": 3000,
    "replica.lag.time.max.ms": 6000,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.state.log.replication.factor": 3,
    "unclean.leader.election.enable": "false",
}


class Node:
    """The process of one broker, its data and its ports."""

    def __init__(
        self,
        number: int,
        ports: Mapping[str, int],
        voters: Mapping[int, int],
        settings: Mapping[str, object],
        jvm: tuple[str, ...] = (),
    ) -> None:
        self.number = number
        self.ports = ports
        self._jvm = jvm or shared_classes()
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="millpond-kafka-"))
        self._log = self._folder / "broker.log"
        self._config = self._folder / "server.properties"
        lines = {
            "process.roles": "broker,controller",
            "node.id": number,
            "controller.quorum.voters": ",".join(f"{one}@127.0.0.1:{port}" for one, port in voters.items()),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
            "listener.security.protocol.map": ",".join(
                f"{name}:{'PLAINTEXT' if name == 'CONTROLLER' else name}" for name in ports
            ),
            "log.dirs": self._folder / "data",
            **settings,
        }
        self._config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        self._format()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ports['PLAINTEXT']}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def start(self) -> None:
        """Start the process, unless it is running, and do not wait."""
        if self._process is not None:
            return
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [str(java()), *JVM_OPTIONS, *self._jvm, "-cp", f"{broker_jars()}/*", "kafka.Kafka", str(self._config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                start_new_session=True,  # Ctrl-C is for the tests
            )
        # Its input ends when this process dies, and then it kills the broker. A line ends it without that.
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r _ || kill -9 "$1"', "sh", str(self._process.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def wait_until_ready(self, brokers: int = 1) -> None:
        """Wait until it serves clients and sees so many brokers, itself included."""
        until = time.monotonic() + PATIENCE
        admin: AdminClient | None = None
        while True:
            assert self._process is not None, "the broker is not running"
            code = self._process.poll()
            assert code is None, f"the broker ended with {code} while it started:\n{self.log[-6000:]}"
            assert time.monotonic() < until, f"the broker did not answer in {PATIENCE:.0f} s:\n{self.log[-6000:]}"
            if admin is None and self._accepts_connections():
                admin = AdminClient({"bootstrap.servers": self.address}, logger=SILENT)
            if admin is not None:
                with contextlib.suppress(KafkaException):
                    known = admin.list_topics(timeout=5).brokers
                    if self.number in known and len(known) >= brokers:
                        return
            time.sleep(0.02)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        eventually(lambda: is_asleep(self.pid), "the broker to stop")

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Stop, unless it is stopped already, start on the same data and port, and wait until it serves clients."""
        self.stop()
        self.start()
        self.wait_until_ready()

    def destroy(self) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        self._process.send_signal(signal.SIGCONT)  # a paused process does not see SIGTERM
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:  # in a cluster without a majority, a broker waits long before it stops
            self._process.kill()
            self._process.wait()
        self._process = None
        if self._guard is not None:
            with contextlib.suppress(BrokenPipeError):
                self._guard.communicate(b"\n")
            self._guard = None

    def _accepts_connections(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.ports["PLAINTEXT"]), timeout=1):
            return True
        return False

    def _format(self) -> None:
        """Do what `kafka-storage format` does, without a JVM."""
        data = self._folder / "data"
        data.mkdir()
        directory_id = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
        (data / "meta.properties").write_text(
            f"version=1\ncluster.id={CLUSTER_ID}\nnode.id={self.number}\ndirectory.id={directory_id}\n"
        )
        (data / "bootstrap.checkpoint").write_bytes(_bootstrap_checkpoint())


JVM_OPTIONS = (
    "-Xmx256m",
    "-Xss512k",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # starts in half the time
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
)


@functools.cache
def class_archive() -> Path:
    """Where the JVM keeps the loaded classes of a broker, per version of Java; `make_class_archive` writes it."""
    version = _printed_by("/bin/sh", "-c", '"$1" -version 2>&1', "sh", java())
    return broker_jars() / f"classes-{hashlib.sha256(version.encode()).hexdigest()[:12]}.jsa"


def shared_classes() -> tuple[str, ...]:
    """Options of a JVM for the archive of classes, if there is one. A JVM ignores an archive that does not fit."""
    archive = class_archive()
    return (f"-XX:SharedArchiveFile={archive}",) if archive.exists() and archive.stat().st_size else ()


def make_class_archive() -> None:
    """Write the archive of classes unless it exists, in about ten seconds. Later brokers start faster with it.

    An empty file means that this Java cannot write one.
    """
    if class_archive().exists():
        return
    part = class_archive().with_suffix(f".part-{os.getpid()}")
    plain, controller = free_ports(2)
    node = Node(
        1,
        {"PLAINTEXT": plain, "CONTROLLER": controller},
        {1: controller},
        SINGLE,
        (f"-XX:ArchiveClassesAtExit={part}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"),
    )
    try:
        node.start()
        node.wait_until_ready()
        node.stop()
    finally:
        node.destroy()
    if not part.exists():
        part.touch()
    part.rename(class_archive())


@functools.cache
def _bootstrap_checkpoint() -> bytes:
    """The first records of a cluster's metadata: the versions of its features. They are the same for all brokers."""
    with tempfile.TemporaryDirectory(prefix="millpond-kafka-") as folder:
        config = Path(folder) / "server.properties"
        config.write_text(
            "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:9093\n"
            "controller.listener.names=CONTROLLER\n"
            f"listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093\nlog.dirs={folder}/data\n"
        )
        tool = ("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(config))
        _printed_by(java(), *JVM_OPTIONS, "-cp", f"{broker_jars()}/*", *tool)
        return (Path(folder) / "data" / "bootstrap.checkpoint").read_bytes()


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that are free now.

    They are below the ports that systems give to outgoing connections, so that a broker finds its port free again
    when it restarts.
    """
    found: list[int] = []
    chance = random.SystemRandom()
    while len(found) < count:
        port = chance.randrange(15000, 32000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found += [port] if port not in found else []
    return found
