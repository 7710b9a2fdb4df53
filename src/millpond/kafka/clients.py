"""Clients of Kafka: their settings, their errors as ours, and clients that a process uses again.

confluent_kafka is imported when the first client is made, so that programs without Kafka need not have it.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures import wait as wait_for_futures
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from millpond.clock import elapsed
from millpond.errors import InvalidUse, MillpondError, Unavailable, short_repr
from millpond.kafka.listeners import find_wrong_protocol

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError
    from confluent_kafka.admin import AdminClient

T = TypeVar("T")
K = TypeVar("K")

log = logging.getLogger("millpond")

REQUEST_SECONDS = 15.0  # that a request may take before it counts as unavailable
DOWN_SECONDS = 3.0  # the same, if no broker can be reached
ANSWER_SECONDS = 1.0  # that a plan waits for an answer at a time: an app that is asked to stop does not wait longer
RETRY_SECONDS = 0.5
PROBE_PAUSE = 5.0  # seconds after which servers that do not answer are asked again which protocol they speak
MOST_STALE = 4  # answers about leaders that are gone, before a client is replaced
SECRET_WORDS = ("password", "secret", "token", "key", "jaas", "oauthbearer.config", "username", "userinfo", "user.info")
TLS_REMEDY = "Check the ssl.* and security.protocol options, and the port in servers="
# What a client that only asks questions needs of the user's options; it warns of others.
SHARED_OPTIONS = (
    "api.",
    "broker.",
    "client.",
    "connections.",
    "debug",
    "enable.s",
    "https.",
    "log_level",
    "metadata.",
    "oauth",
    "reconnect.",
    "retry.",
    "sasl.",
    "security.",
    "socket.",
    "ssl",
)
# Options that would break the promises of a source or sink.
RESERVED_OPTIONS = {
    "auto.offset.reset": "start= says where a stream begins",
    "bootstrap.servers": "give servers=",
    "enable.auto.commit": "Millpond keeps the position in its ledger",
    "enable.auto.offset.store": "Millpond keeps the position in its ledger",
    "enable.idempotence": "it is always on",
    "enable.partition.eof": "it is always on",
    "group.id": "give group=",
    "metadata.broker.list": "give servers=",
}


def import_kafka() -> Any:
    """Return the module `confluent_kafka`; `InvalidUse` if it is not installed."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise _missing_package("Kafka sources and sinks", str(error)) from error
    return confluent_kafka


def _missing_package(who: str, found: str) -> InvalidUse:
    return InvalidUse(
        f"{who}: expected the package confluent-kafka, got: {found}. Install it with: pip install 'millpond[kafka]'"
    )


@dataclass(frozen=True)
class KafkaSettings:
    """The servers to connect to, and the user's options for librdkafka. A `repr` shows no values of options.

    >>> KafkaSettings("localhost:9092", {"sasl.password": "tea"})
    KafkaSettings('localhost:9092', options=['sasl.password'])
    """

    servers: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        shown = f", options={sorted(self.options)}" if self.options else ""
        return f"KafkaSettings({self.servers!r}{shown})"

    @classmethod
    def of(cls, where: str, servers: Any, options: Any) -> KafkaSettings:
        """Check what the user gave to a source or sink, and that Kafka can be used; `where` names it in errors."""
        if find_spec("confluent_kafka") is None:  # an import would take longer, and a program may be built and not run
            raise _missing_package(where, "it is not installed")
        if isinstance(servers, (list, tuple)) and all(isinstance(server, str) for server in servers):
            servers = ",".join(servers)
        if not isinstance(servers, str) or not all(map(_is_server, servers.split(","))):
            raise InvalidUse(
                f"{where}: expected servers= as 'host:port', or several with commas between, got {servers!r}"
            )
        found = {} if options is None else options
        if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
            raise InvalidUse(
                f"{where}: expected options= as a dict of librdkafka settings, such as "
                f"{{'security.protocol': 'SSL'}}, got {type(options).__name__}"
            )
        for name in found:
            if name in RESERVED_OPTIONS:
                raise InvalidUse(f"{where}: options= cannot set {name!r}: {RESERVED_OPTIONS[name]}")
        return cls(servers, dict(found))

    @property
    def identity(self) -> str:
        """A text that two equal settings share. It contains secrets: it is a key in memory only."""
        return repr((self.servers, sorted((name, repr(value)) for name, value in self.options.items())))

    @property
    def uses_tls(self) -> bool:
        """Whether clients connect with TLS."""
        return str(self.options.get("security.protocol", "plaintext")).lower().endswith("ssl")

    def scrub(self, text: str) -> str:
        """Return a text of librdkafka without the values of the user's secret options."""
        secrets = [
            value
            for name, value in self.options.items()
            if isinstance(value, str) and len(value) > 2 and any(word in name for word in SECRET_WORDS)
        ]
        for secret in sorted(secrets, key=len, reverse=True):  # a password may contain the name of the user
            text = text.replace(secret, "***")
        return text

    def for_requests(self) -> dict[str, Any]:
        """Return the configuration of a client that only asks questions."""
        shared = {name: value for name, value in self.options.items() if name.startswith(SHARED_OPTIONS)}
        return self._with_basics(shared)

    def with_defaults(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return a configuration with these settings, which the user's options override."""
        return self._with_basics({**own, **self.options})

    def _with_basics(self, own: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "socket.keepalive.enable": True,
            "logger": ClientLog(self),
            **own,
            "bootstrap.servers": self.servers,
        }


def _is_server(text: str) -> bool:
    """Return whether librdkafka can take a text for a server. It would cut the port of "localhost:90922" to 16 bits.

    >>> _is_server("localhost:9092"), _is_server("[::1]:9092"), _is_server("SASL_SSL://kafka"), _is_server(" kafka ")
    (True, True, True, True)
    >>> _is_server("http://localhost:9092"), _is_server("localhost:90922"), _is_server("localhost:"), _is_server(" ")
    (False, False, False, False)
    """
    found = re.fullmatch(
        r"(?:(?i:plaintext|ssl|sasl_plaintext|sasl_ssl)://)?(?:[^\s:/\[\]]+|\[[^\s\[\]]+\])(?::(\d+))?", text.strip()
    )
    return found is not None and (found[1] is None or 0 < int(found[1]) < 1 << 16)


class ClientLog:
    """Where librdkafka logs: the logger `millpond.kafka`, for debugging.

    It would print every failed connection and every producer that is fenced. What a person has to know of them is in
    the errors that `ErrorWatch` collects.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings, self._log = settings, logging.getLogger("millpond.kafka")

    def log(self, level: int, text: str, *values: Any) -> None:
        """Log a line of librdkafka."""
        if self._log.isEnabledFor(logging.DEBUG):
            self._log.debug("%s", self._settings.scrub(text % values if values else text))


class ErrorWatch:
    """Collects what a client reports in the background, such as a wrong password, which no request returns.

    With `is_connected`, another client has reached the cluster with the same settings: a handshake that fails then is
    that of a broker which stops or starts. Without `has_group`, it does not matter whether the user may use the
    client's consumer group.
    """

    def __init__(self, settings: KafkaSettings, *, is_connected: bool = False, has_group: bool = True) -> None:
        self.settings = settings
        self._permanent: KafkaError | None = None
        self._down: KafkaError | None = None
        self._unresolved: set[str] = set()  # servers whose names were not found
        self._probed = -PROBE_PAUSE  # when the servers were asked which protocol they speak
        self.is_connected, self._has_group = is_connected, has_group  # whether a request has succeeded

    def __call__(self, error: KafkaError) -> None:
        if self._is_permanent(error):
            self._permanent = self._permanent or error
        elif error.code() in _down_codes() and (self._down is None or error.code() not in _vague_codes()):
            self._down = error

    @property
    def is_down(self) -> bool:
        """Whether no broker could be reached since the last success."""
        return self._down is not None

    def succeed(self) -> None:
        """Take note that a request has succeeded."""
        self.is_connected, self._down = True, None
        self._unresolved.clear()

    def check(self, doing: str) -> None:
        """Raise what a person has to correct, if the client has reported such a thing.

        It is raised once: the person may have corrected it when the client is used again.
        """
        found, self._permanent = self._permanent, None
        if found is not None:
            raise InvalidUse(f"{self._describe(found, doing)}. {_remedy(found)}")

    def timeout(self, doing: str) -> MillpondError:
        """Return the error for a request that was not answered in time.

        A client that was never connected may speak TLS with a port that does not, or the other way round: then it is
        `InvalidUse`, otherwise `Unavailable`.
        """
        if not self.is_connected and elapsed() - self._probed >= PROBE_PAUSE:
            wrong = find_wrong_protocol(self.settings.servers, self.settings.uses_tls)
            self._probed = elapsed()
            if wrong is not None:
                return InvalidUse(f"Kafka at {self.settings.servers}: {doing}: {wrong}. {TLS_REMEDY}")
        why = "no answer in time" if self._down is None else str(self._down.str())
        text = self.settings.scrub(f"Kafka at {self.settings.servers}: {doing}: {why}")
        return Unavailable(f"{text}. Is the broker running, and is servers= right?", retry_after=RETRY_SECONDS)

    def error_of(self, error: KafkaError, doing: str, remedy: str | None = None) -> MillpondError:
        """Return our error for one of librdkafka: `InvalidUse` if a person has to act, otherwise `Unavailable`.

        With a `remedy`, which is what the person has to do, it is always `InvalidUse`.
        """
        text = self._describe(error, doing)
        if remedy is None and not self._is_permanent(error):
            return Unavailable(text, retry_after=RETRY_SECONDS)
        return InvalidUse(f"{text}. {remedy or _remedy(error)}")

    def _is_permanent(self, error: KafkaError) -> bool:
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._RESOLVE:  # one of several servers may still be there
            servers = self.settings.servers.split(",")
            self._unresolved |= {server for server in servers if server.strip() in error.str()}
            return not self.is_connected and self._unresolved.issuperset(servers)
        if _is_about_tls(error):  # a broker that stops or starts may break off a handshake
            return not self.is_connected
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return self._has_group
        return error.code() in _permanent_codes()

    def _describe(self, error: KafkaError, doing: str) -> str:
        return self.settings.scrub(f"Kafka at {self.settings.servers}: {doing}: {error.str()} ({error.name()})")


def _is_about_tls(error: KafkaError) -> bool:
    """Return whether a handshake failed. A broker refuses a certificate after it, with an alert."""
    from confluent_kafka import KafkaError

    return error.code() == KafkaError._SSL or "SSL alert number" in error.str()


def _down_codes() -> set[int]:
    from confluent_kafka import KafkaError

    return {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE}


def _vague_codes() -> set[int]:
    """Codes that say that brokers are down, and not why."""
    from confluent_kafka import KafkaError

    return {KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT}


def _permanent_codes() -> set[int]:
    from confluent_kafka import KafkaError as E

    return {
        E._AUTHENTICATION,
        E.SASL_AUTHENTICATION_FAILED,
        E.UNSUPPORTED_SASL_MECHANISM,
        E.ILLEGAL_SASL_STATE,
        E.SECURITY_DISABLED,
        E.TOPIC_AUTHORIZATION_FAILED,
        E.CLUSTER_AUTHORIZATION_FAILED,
        E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        E._INVALID_ARG,
        E._CONFLICT,
        E.TOPIC_EXCEPTION,
        E.INVALID_REPLICATION_FACTOR,
        E.INVALID_PARTITIONS,
        E.INVALID_CONFIG,
        E.POLICY_VIOLATION,
        E.UNSUPPORTED_VERSION,
        E.MSG_SIZE_TOO_LARGE,
        E.RECORD_LIST_TOO_LARGE,
        E.INVALID_TRANSACTION_TIMEOUT,
    }


def _remedy(error: KafkaError) -> str:
    from confluent_kafka import KafkaError as E

    code = error.code()
    if code in (E._AUTHENTICATION, E.SASL_AUTHENTICATION_FAILED, E.UNSUPPORTED_SASL_MECHANISM, E.ILLEGAL_SASL_STATE):
        return "Check the sasl.* and security.protocol options"
    if _is_about_tls(error):
        return TLS_REMEDY
    if code == E._RESOLVE:
        return "Check the host in servers="
    if "authoriz" in error.str().lower() or "AUTHORIZATION" in error.name():
        return "Give the user the permissions that the reference page of Kafka lists"
    if code in (E.INVALID_CONFIG, E.INVALID_PARTITIONS, E.INVALID_REPLICATION_FACTOR, E.POLICY_VIOLATION):
        return "Check create= of the sink, which says how topics are created, or create the topic yourself"
    return "Check the options"


@contextmanager
def as_our_errors(watch: ErrorWatch, doing: str) -> Iterator[None]:
    """Raise errors of librdkafka as ours."""
    kafka = import_kafka()
    try:
        yield
    except kafka.KafkaException as error:
        watch.check(doing)
        is_secret = watch.settings.scrub(str(error)) != str(error)  # a traceback shows the cause, too
        raise watch.error_of(error.args[0], doing) from (None if is_secret else error)


class Requests:
    """Asks a cluster about topics and offsets, on the driver. It is thread-safe, and is made again after a pickle."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._watch = ErrorWatch(settings)
        self._client: AdminClient | None = None
        self._stale = 0  # answers in a row that a partition has no leader, or another one
        self._open: dict[Hashable, tuple[float, Mapping[Any, Future[Any]]]] = {}  # since when, and the answers to come

    def __reduce__(self) -> Any:
        return Requests, (self._settings,)

    @property
    def client(self) -> AdminClient:
        """The client, which is connected at the first request."""
        if self._client is None:
            import_kafka()
            from confluent_kafka.admin import AdminClient

            with as_our_errors(self._watch, "connecting"):
                self._client = AdminClient({**self._settings.for_requests(), "error_cb": self._watch})
        return self._client

    def wait(self, future: Future[T], doing: str) -> T:
        """Return the result of a request, or raise what went wrong as `InvalidUse` or `Unavailable`."""
        try:
            return self._wait(future, doing)
        except Unavailable as error:
            if _has_code(error, _stale_codes()):  # the client would ask the same broker again for minutes
                self._stale += 1
                if self._stale % MOST_STALE == 0:
                    self._client = None  # another one begins without what this one believes
                    self._open.clear()
                else:
                    self._find_leaders()
            raise

    def _find_leaders(self) -> None:
        """Ask any broker for the leaders of all partitions, so that the next requests go to them."""
        with suppress(import_kafka().KafkaException):
            self.client.list_topics(timeout=ANSWER_SECONDS)

    def _wait(self, future: Future[T], doing: str) -> T:
        began = elapsed()
        with as_our_errors(self._watch, doing):
            while True:
                try:
                    found = future.result(timeout=0.1)
                except FutureTimeout:
                    self.client.poll(0)
                    self._watch.check(doing)
                    waited = elapsed() - began
                    if waited > REQUEST_SECONDS or (self._watch.is_down and waited > DOWN_SECONDS):
                        raise self._watch.timeout(doing) from None
                else:
                    self._watch.succeed()
                    self._stale = 0
                    return found

    def wait_or_none(self, future: Future[T], doing: str) -> T | None:
        """Return the result of a request, as `wait` does; None if it was about a topic that does not exist."""
        try:
            return self.wait(future, doing)
        except MillpondError as error:
            if is_about_missing_topic(error):
                return None
            raise

    def ask(self, what: Hashable, send: Callable[[], Mapping[K, Future[T]]], doing: str) -> dict[K, T | None]:
        """Return the answers to some requests; None for those about a topic that does not exist.

        Raises `Unavailable` if they do not come within a second. The next call with the same `what` waits for the same
        answers, so that a slow cluster can give them.
        """
        since, futures = self._open.get(what) or (elapsed(), send())
        self._open[what] = (since, futures)
        began = elapsed()
        while not all(future.done() for future in futures.values()):
            self.client.poll(0)
            self._watch.check(doing)
            if elapsed() - began > ANSWER_SECONDS:
                if self._watch.is_down or elapsed() - since > REQUEST_SECONDS:
                    del self._open[what]  # it may wait for a broker that is no longer the leader
                    self._find_leaders()
                raise self._watch.timeout(doing)
            wait_for_futures(futures.values(), timeout=0.05)
        del self._open[what]
        return {name: self.wait_or_none(future, doing) for name, future in futures.items()}

    def forget(self) -> None:
        """Ask again what was asked before."""
        self._open.clear()

    def persist(self, ask: Callable[[], T]) -> T:
        """Return what a function asks for, and ask again for some seconds while partitions have no leader."""
        began = elapsed()
        while True:
            try:
                return ask()
            except Unavailable:
                if self._watch.is_down or elapsed() - began > REQUEST_SECONDS:
                    raise
                threading.Event().wait(0.1)

    def list_topics(self, doing: str, seconds: float = REQUEST_SECONDS) -> Any:
        """Return the metadata of the cluster."""
        began = elapsed()
        while True:
            try:
                with as_our_errors(self._watch, doing):
                    found = self.client.list_topics(timeout=min(1.0, seconds))
            except Unavailable:
                self.client.poll(0)
                self._watch.check(doing)
                waited = elapsed() - began
                if waited >= seconds or (self._watch.is_down and waited > DOWN_SECONDS):
                    raise self._watch.timeout(doing) from None
            else:
                self._watch.succeed()
                return found


def is_about_missing_topic(error: BaseException) -> bool:
    """Return whether one of our errors says that a topic or partition does not exist."""
    return _has_code(error, missing_topic_codes())


def _has_code(error: BaseException, codes: set[int]) -> bool:
    """Return whether one of our errors was caused by one of librdkafka with one of these codes."""
    cause = error.__cause__
    return isinstance(cause, import_kafka().KafkaException) and cause.args[0].code() in codes


def _stale_codes() -> set[int]:
    """Codes that say that the client knows a former leader of a partition."""
    from confluent_kafka import KafkaError as E

    return {
        E._NOENT,  # of none of the partitions that were asked for
        E.FENCED_LEADER_EPOCH,
        E.UNKNOWN_LEADER_EPOCH,
        E.NOT_LEADER_FOR_PARTITION,
        E.LEADER_NOT_AVAILABLE,
        E.REPLICA_NOT_AVAILABLE,
    }


def missing_topic_codes() -> set[int]:
    """Codes of librdkafka for a topic or partition that does not exist."""
    from confluent_kafka import KafkaError as E

    return {E.UNKNOWN_TOPIC_OR_PART, E.UNKNOWN_TOPIC_ID, E._UNKNOWN_TOPIC, E._UNKNOWN_PARTITION}


class ClientPool:
    """Clients that a worker process uses again in its next task. A client is used by one task at a time, or one thread.

    A client that has failed is not put back: the next task makes another.
    """

    def __init__(self, most: int = 4) -> None:
        self._lock = threading.Lock()
        self._idle: dict[str, list[Any]] = {}
        self._most = most

    def take(self, identity: str, make: Callable[[], T]) -> T:
        """Return an idle client, or a new one."""
        with self._lock:
            idle = self._idle.get(identity)
            if idle:
                found: T = idle.pop()
                return found
        return make()

    def put_back(self, identity: str, client: Any) -> None:
        """Keep a client for the next task."""
        with self._lock:
            idle = self._idle.setdefault(identity, [])
            idle.append(client)
            oldest = idle.pop(0) if len(idle) > self._most else None
        if oldest is not None:
            oldest.close()

    def close(self) -> None:
        """Close all idle clients."""
        for idle in self._idle.values():
            while idle:
                idle.pop().close()


def make_consumer(settings: KafkaSettings, watch: ErrorWatch, own: Mapping[str, Any]) -> Consumer:
    """Return a consumer with these settings, which the user's options override."""
    kafka = import_kafka()
    config = settings.with_defaults(own)
    with as_our_errors(watch, "connecting"):
        found: Consumer = kafka.Consumer({**config, "error_cb": watch})
    return found


def show_names(names: Iterable[str], most: int = 5) -> str:
    """Return some names as text, at most `most` of them.

    >>> show_names(["a", "b", "c"], most=2)
    "'a', 'b' and 1 more"
    """
    found = list(names)
    text = ", ".join(short_repr(name) for name in found[:most])
    return text if len(found) <= most else f"{text} and {len(found) - most} more"
