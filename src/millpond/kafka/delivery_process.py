"""Processes on each host that deliver to Kafka for all Python workers of an app.

Spark gives the task of a partition to any of its workers, and the producer that a worker opens for a partition fences
the one that another has opened before. A new producer takes longer than a small batch. So the workers of one claim pass
the messages of a partition to one process, which keeps its producer. There are a few processes, because queueing a
message needs the interpreter's lock. A process ends when no worker is connected to it any more, or none has sent
anything for some minutes: a worker of Spark may outlive many runs of an app, each with a claim of its own.

The processes are a convenience: a worker that cannot reach one delivers by itself, and the register shows what was
delivered before. Messages and settings go through a socket in a folder that only the user can open.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, BinaryIO

import msgspec

from millpond.clock import elapsed
from millpond.errors import Corrupt, Fenced, Incompatible, InvalidUse, MillpondError, Unavailable
from millpond.kafka.clients import KafkaSettings
from millpond.kafka.exactly_once import DeliveryPlace, deliver_once
from millpond.kafka.outgoing import MessageColumn, OutgoingMessages
from millpond.kafka.register import Register
from millpond.sinks.base import Delivery

START_SECONDS = 30.0  # that the process may take to start
DELIVERY_SECONDS = 120.0  # that a worker waits for an answer before it delivers by itself
UNEXPECTED = "unexpected"  # an error that the worker is to meet by itself
LINGER_SECONDS = 5.0  # that the process waits for another worker
IDLE_SECONDS = 600.0  # that the process waits for the next delivery of workers that are connected
AVOID_SECONDS = 600.0  # that a worker delivers by itself after a process has not answered
LONGEST_SOCKET_PATH = 90  # bytes; systems allow 104 or 108
MOST_STARTS = 3  # by one worker, before it delivers by itself
MOST_PROCESSES = 4  # on a host, for one claim
PLAIN = (str, int, float, bool)  # options that can be sent
ERRORS: Mapping[str, type[MillpondError]] = {
    kind.__name__: kind for kind in (Corrupt, Fenced, Incompatible, InvalidUse, Unavailable)
}


class SentMessages(msgspec.Struct, array_like=True):
    """Messages on their way to the process. A part that is the same for all of them is sent once, in a list of one."""

    count: int
    parts: tuple[list[Any], list[Any], list[Any], list[Any], list[Any], list[Any]]

    @classmethod
    def of(cls, messages: OutgoingMessages) -> SentMessages:
        """Return messages as they are sent."""
        columns = (
            messages.topics,
            messages.values,
            messages.keys,
            messages.partitions,
            messages.timestamps,
            messages.headers,
        )
        count = messages.count
        first = [[next(column)] if isinstance(column, repeat) else list(column) for column in columns]
        return cls(count, tuple(first))  # type: ignore[arg-type]

    def unpack(self) -> OutgoingMessages:
        """Return the messages."""
        columns: list[MessageColumn] = [
            repeat(part[0]) if len(part) == 1 and self.count != 1 else part for part in self.parts
        ]
        topics, values, keys, partitions, timestamps, headers = columns
        marks = [[tuple(header) for header in each] for each in self.parts[5]]  # librdkafka takes no lists here
        headers = repeat(marks[0]) if isinstance(headers, repeat) else marks
        return OutgoingMessages(self.count, topics, values, keys, partitions, timestamps, headers)


class DeliveryRequest(msgspec.Struct, array_like=True):
    """What a worker asks the process to deliver."""

    servers: str
    options: dict[str, Any]
    register: str
    place: DeliveryPlace
    delivery: Delivery
    messages: SentMessages


class DeliveryAnswer(msgspec.Struct, array_like=True):
    """How it went: no error, or the kind and text of one."""

    error: str = ""
    text: str = ""
    retry_after: float | None = None


# --- in a worker ---


Owner = tuple[str, str, tuple[int, str] | None]  # identity of the settings, app, claim


@dataclass
class ClaimProcesses:
    """The delivery processes of one claim, as a worker knows them, by path."""

    connections: dict[str, socket.socket] = field(default_factory=dict)
    started: dict[str, list[subprocess.Popen[bytes]]] = field(default_factory=dict)  # by this worker
    avoided: dict[str, float] = field(default_factory=dict)  # until when

    def can_use(self, path: str) -> bool:
        """Return whether a process may be asked: not one that has hung, nor one that ends again and again."""
        ended = [process.poll() for process in self.started.get(path, ())]
        return sum(code != 0 for code in ended) < MOST_STARTS and self.avoided.get(path, 0.0) <= elapsed()

    def close(self) -> None:
        """Close all connections."""
        while self.connections:
            self.connections.popitem()[1].close()


class ProcessClient:
    """A worker's connections to delivery processes."""

    def __init__(self) -> None:
        self._claims: dict[Owner, ClaimProcesses] = {}
        self._ending: list[subprocess.Popen[bytes]] = []  # of claims before, to be reaped

    def deliver(
        self,
        settings: KafkaSettings,
        register: str,
        place: DeliveryPlace,
        delivery: Delivery,
        messages: OutgoingMessages,
    ) -> bool:
        """Deliver through the process; return False if it cannot be used. Raises what the delivery raises there."""
        if not is_used(settings, delivery):
            return False
        try:
            path = socket_path(settings, delivery)
        except OSError:
            return False
        processes = self._of_claim((settings.identity, delivery.app, delivery.claim))
        if not processes.can_use(path):
            return False
        data = encode_request(settings, register, place, delivery, messages)
        if data is None:
            return False
        try:
            connection = processes.connections.pop(path, None) or self._connect(processes, path)
            try:
                send_message(connection, data)
                answer = msgspec.msgpack.decode(receive_message(connection), type=DeliveryAnswer)
            except BaseException:
                connection.close()
                raise
        except TimeoutError:
            processes.avoided[path] = elapsed() + AVOID_SECONDS
            return False
        except (OSError, EOFError, msgspec.MsgspecError):
            return False
        processes.connections[path] = connection
        if answer.error in ERRORS:
            raise error_of(answer)
        return not answer.error

    def close(self) -> None:
        """Close all connections."""
        for owner in list(self._claims):
            self._leave(owner)

    def _of_claim(self, owner: Owner) -> ClaimProcesses:
        """Return the processes of a claim. Those of other claims of the app are left: the app was started again."""
        if owner not in self._claims:
            for other in [each for each in self._claims if each[:2] == owner[:2]]:
                self._leave(other)
        return self._claims.setdefault(owner, ClaimProcesses())

    def _leave(self, owner: Owner) -> None:
        processes = self._claims.pop(owner)
        processes.close()
        for started in processes.started.values():
            self._ending += started
        self._ending = [process for process in self._ending if process.poll() is None]

    def _connect(self, processes: ClaimProcesses, path: str) -> socket.socket:
        """Connect to a process, and start it if there is none."""
        with contextlib.suppress(OSError):
            return open_connection(path)
        until = elapsed() + START_SECONDS
        with open(f"{path}.lock", "wb") as lock:
            while not is_locked(lock):  # another worker starts the process, or was stopped meanwhile
                if elapsed() > until:
                    raise TimeoutError(f"{path}.lock is held")
                threading.Event().wait(0.05)
            with contextlib.suppress(OSError):
                return open_connection(path)
            process = start_process(path)
            processes.started.setdefault(path, []).append(process)
            while True:
                try:
                    return open_connection(path)
                except OSError:
                    if process.poll() is not None or elapsed() > until:
                        raise
                    threading.Event().wait(0.05)


process_client = ProcessClient()


def is_used(settings: KafkaSettings, delivery: Delivery) -> bool:
    """Return whether a delivery goes through the process: in a Python worker of Spark that is used again.

    Elsewhere one process delivers all partitions anyway. Options that are functions cannot be sent.
    """
    is_worker = os.environ.get("SPARK_REUSE_WORKER") == "1"
    return is_worker and delivery.claim is not None and all(isinstance(v, PLAIN) for v in settings.options.values())


def socket_path(settings: KafkaSettings, delivery: Delivery) -> str:
    """Return where the process of a partition listens; OSError if there is no folder that only this user can open."""
    number = delivery.partition % min(os.cpu_count() or 1, MOST_PROCESSES)
    name = hashlib.sha256(repr((settings.identity, delivery.app, delivery.claim, number)).encode()).hexdigest()[:24]
    folders = [os.path.join(base, f"millpond-{os.getuid()}") for base in (tempfile.gettempdir(), "/tmp")]
    folder = next((each for each in folders if len(os.fsencode(each)) + len(name) < LONGEST_SOCKET_PATH), None)
    if folder is None:
        raise OSError(f"{folders[0]} is too long for a socket")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.stat(folder)
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is open to others")
    return os.path.join(folder, f"kafka-{name}")


def encode_request(
    settings: KafkaSettings, register: str, place: DeliveryPlace, delivery: Delivery, messages: OutgoingMessages
) -> bytes | None:
    """Return a delivery as it is sent; None if it has values that cannot be sent, such as subclasses of text."""
    sent = SentMessages.of(messages)
    request = DeliveryRequest(settings.servers, dict(settings.options), register, place, delivery, sent)
    try:
        return msgspec.msgpack.encode(request)
    except (TypeError, ValueError, OverflowError):
        return None


def is_locked(file: BinaryIO) -> bool:
    """Lock a file, unless another process has locked it; return whether this one has."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def start_process(path: str) -> subprocess.Popen[bytes]:
    """Start the process. It imports what this one can import."""
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_REUSE_WORKER"}
    environment["PYTHONPATH"] = os.pathsep.join(part for part in sys.path if part)
    return subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import run_process; run_process()", path],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def open_connection(path: str) -> socket.socket:
    """Return a connection to a process that listens."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(DELIVERY_SECONDS)
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


def error_of(answer: DeliveryAnswer) -> MillpondError:
    """Return the error that the process has met."""
    kind = ERRORS[answer.error]
    return Unavailable(answer.text, retry_after=answer.retry_after) if kind is Unavailable else kind(answer.text)


# --- both ---


def send_message(connection: socket.socket, data: bytes) -> None:
    """Send one message with its length."""
    connection.sendall(struct.pack("!Q", len(data)))
    connection.sendall(data)


def receive_message(connection: socket.socket) -> bytes:
    """Return the next message; EOFError if the other side is gone."""
    [length] = struct.unpack("!Q", _receive(connection, 8))
    return _receive(connection, length)


def _receive(connection: socket.socket, length: int) -> bytes:
    data = bytearray(length)
    view, done = memoryview(data), 0
    while done < length:
        count = connection.recv_into(view[done:])
        if count == 0:
            raise EOFError("the connection was closed")
        done += count
    return bytes(data)


# --- in the process ---


class DeliveryServer:
    """Delivers what workers send, each connection in a thread, one delivery of a partition at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._partitions: dict[str, threading.Lock] = {}  # transactional id → held while it is in use
        self._registers: dict[tuple[str, str], Register] = {}
        self._connections = 0
        self._working = 0  # deliveries under way
        self._idle_since = elapsed()

    def run(self, path: str) -> None:
        """Listen until no worker is connected any more, or none has sent anything for some minutes."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path)
            listening.listen()
            listening.settimeout(0.5)
            while not self._is_done():
                with contextlib.suppress(TimeoutError):
                    connection, _ = listening.accept()
                    with self._lock:
                        self._connections += 1
                    threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
            for name in (path, f"{path}.lock"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)

    def _is_done(self) -> bool:
        with self._lock:
            limit = IDLE_SECONDS if self._connections else LINGER_SECONDS
            return self._working == 0 and elapsed() - self._idle_since > limit

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                while True:
                    answer = self._work(receive_message(connection))
                    send_message(connection, msgspec.msgpack.encode(answer))
        except (OSError, EOFError):
            pass
        finally:
            with self._lock:
                self._connections -= 1
                self._idle_since = elapsed()

    def _work(self, data: bytes) -> DeliveryAnswer:
        with self._lock:
            self._working += 1
        try:
            return self._answer(data)
        finally:
            with self._lock:
                self._working -= 1
                self._idle_since = elapsed()

    def _answer(self, data: bytes) -> DeliveryAnswer:
        try:
            request = msgspec.msgpack.decode(data, type=DeliveryRequest)
            settings = KafkaSettings(request.servers, request.options)
            with self._turn(request.place.transactional_id):
                register = self._register(settings, request.register)
                deliver_once(settings, register, request.place, request.delivery, request.messages.unpack())
            return DeliveryAnswer()
        except MillpondError as error:
            kind = next((name for name, each in ERRORS.items() if isinstance(error, each)), UNEXPECTED)
            return DeliveryAnswer(kind, str(error), getattr(error, "retry_after", None))
        except Exception as error:
            return DeliveryAnswer(UNEXPECTED, f"{type(error).__name__}: {error}")

    def _register(self, settings: KafkaSettings, topic: str) -> Register:
        with self._lock:
            return self._registers.setdefault((settings.identity, topic), Register(settings, topic))

    @contextlib.contextmanager
    def _turn(self, transactional_id: str) -> Iterator[None]:
        with self._lock:
            lock = self._partitions.setdefault(transactional_id, threading.Lock())
        with lock:
            yield


def run_process() -> None:
    """Deliver for the workers that connect to the path in the first argument."""
    DeliveryServer().run(sys.argv[1])
