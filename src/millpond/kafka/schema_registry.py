"""The schema registry: settings, a client that is made on first use, and its errors as Millpond's."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from millpond.clock import SystemClock, elapsed
from millpond.errors import InvalidUse, MillpondError, Unavailable, short_repr
from millpond.kafka.libraries import load_library

RegistrySettings = str | Mapping[str, Any]

_CLIENT = "confluent_kafka.schema_registry"
_RETRY_AFTER = 5.0  # seconds until the driver asks an unreachable registry again
_DEFAULTS = {"timeout": 10, "max.retries": 2}  # the client's own default is to wait for an answer without end
_RETRIABLE = frozenset({408, 429})
_SCHEMA_NOT_FOUND = 40403  # the registry's code; a server that is no registry answers 404 without it
_LARGEST_ID = 2**31 - 1
_LATE_SECONDS = 2.0  # a registry of several nodes may learn a schema after its first message was sent
_LATE_PAUSE = 0.1
_UNKNOWN_SECONDS = 60.0  # after which an id that was unknown is asked for again
_MOST_UNKNOWN = 10_000  # ids that are remembered
_MASK = "***"

# What a message may show. Every other setting is masked, so that a setting which is new in the client leaks nothing.
_SHOWN = frozenset(
    {
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "timeout",
        "cache.capacity",
        "cache.latest.ttl.sec",
        "max.retries",
        "retries.wait.ms",
        "retries.max.wait.ms",
        "bearer.auth.credentials.source",
    }
)
_URLS = frozenset({"url", "proxy", "bearer.auth.issuer.endpoint.url"})

T = TypeVar("T")


def mask_registry(registry: RegistrySettings | None) -> str:
    """Return the settings of a registry as text for messages, without credentials.

    >>> mask_registry("https://ann:secret@registry:8081")
    'https://***@registry:8081'
    >>> mask_registry({"url": "https://registry:8081", "basic.auth.user.info": "ann:secret", "timeout": 3})
    "{'url': 'https://registry:8081', 'basic.auth.user.info': '***', 'timeout': 3}"
    """
    if isinstance(registry, str):
        return _mask_urls(registry)
    if isinstance(registry, Mapping):
        return repr({name: _mask_setting(name, value) for name, value in registry.items()})
    return "None" if registry is None else f"<{type(registry).__name__}>"


def _mask_setting(name: Any, value: Any) -> Any:
    if name in _URLS and isinstance(value, str):
        return _mask_urls(value)
    return value if name in _SHOWN else _MASK


def _mask_urls(urls: str) -> str:
    return ",".join(_mask_url(url.strip()) for url in urls.split(","))


def _mask_url(url: str) -> str:
    """Return a URL without user, password, query and fragment."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    authority, slash, path = rest.partition("/")
    _, at, host = authority.rpartition("@")
    host, path = (part.partition("?")[0].partition("#")[0] for part in (host, path))
    return f"{scheme}{separator}{f'{_MASK}@' if at else ''}{host}{slash}{path}"


def check_registry(where: str, registry: Any) -> None:
    """Raise InvalidUse unless a schema registry client can be made with these settings. Nothing is sent.

    A file that is missing (`ssl.ca.location` and the like) passes: it may exist on the workers only.
    """
    if not isinstance(registry, str | Mapping):
        raise InvalidUse(
            f"{where}: expected registry= to be a URL such as 'http://localhost:8081', or a dict with 'url' and other "
            f"settings of confluent_kafka's SchemaRegistryClient, got {mask_registry(registry)}. Set registry=."
        )
    url = registry if isinstance(registry, str) else registry.get("url")
    if not isinstance(url, str) or not all(_is_http(each) for each in url.split(",")):
        raise InvalidUse(
            f"{where}: expected a registry URL that begins with http:// or https:// and names a host, got "
            f"{mask_registry(registry)}. Correct registry=."
        )
    try:
        _make_client(registry).close()
    except OSError:
        pass
    except MillpondError:
        raise
    except Exception as error:
        raise InvalidUse(
            f"{where}: expected settings of confluent_kafka's SchemaRegistryClient in registry=, got "
            f"{mask_registry(registry)}: {_hide_secrets(str(error), registry)}. Correct registry=."
        ) from None


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url.strip())
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


class UnknownSchema(ValueError):
    """A schema id that the registry does not know. The message that begins with it is a bad row."""


class _NotFound(InvalidUse):
    """A request for something that the registry does not have, with its own code for what that is."""

    def __init__(self, text: str, code: int | None) -> None:
        super().__init__(text)
        self.code = code


class Registry:
    """A schema registry as the formats use it. The client is made on the first call and is never pickled.

    Schemas by id and by version never change; the client caches them, so each is fetched once per process.

    Raises `Unavailable` if the registry does not answer, and `InvalidUse` if it refuses a request. An id that it does
    not know is `UnknownSchema`: a message may begin with any bytes.
    """

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._client: Any = None
        self._unknown: dict[int, tuple[float, str]] = {}  # since when, and what the registry said
        self._patient_from = 0.0

    def __repr__(self) -> str:
        return f"Registry({mask_registry(self._settings)})"

    def __reduce__(self) -> Any:
        return Registry, (self._settings,)

    def get_schema(self, schema_id: int, form: str | None = None) -> Any:
        """Return the client's Schema with this id. `form` is "serialized" for a Protobuf file as base64.

        An id that is unknown is asked for again for two seconds, but not each of many: garbage may have many ids.
        """
        began = elapsed()
        remembered = self._unknown.get(schema_id)
        if remembered is not None and began - remembered[0] < _UNKNOWN_SECONDS:
            raise UnknownSchema(remembered[1])
        until = began + _LATE_SECONDS if began >= self._patient_from else began
        while True:
            try:
                return self._call(f"schema id {schema_id}", lambda client: client.get_schema(schema_id, fmt=form))
            except _NotFound as error:
                if error.code != _SCHEMA_NOT_FOUND:
                    raise
                if elapsed() >= until:
                    self._remember(schema_id, str(error))
                    raise UnknownSchema(str(error)) from None
            SystemClock.sleep(_LATE_PAUSE)

    def _remember(self, schema_id: int, said: str) -> None:
        """Remember an id that the registry does not know, so that not every message with it asks again."""
        if len(self._unknown) >= _MOST_UNKNOWN:
            self._unknown.clear()
        self._unknown[schema_id] = elapsed(), said
        self._patient_from = elapsed() + _UNKNOWN_SECONDS

    def get_version(self, subject: str, version: int, form: str | None = None) -> Any:
        """Return the Schema of one version of a subject, also if the version was deleted: a reference may need it."""
        what = f"version {version} of subject {subject!r}"
        return self._call(what, lambda client: client.get_version(subject, version, True, form).schema)

    def get_latest(self, subject: str) -> Any:
        """Return the RegisteredSchema of the newest version of a subject.

        The client caches it; the setting `cache.latest.ttl.sec` says for how long, without it as long as it runs.
        """
        return self._call(f"subject {subject!r}", lambda client: client.get_latest_version(subject))

    def register(self, subject: str, text: str, kind: str, references: list[Any] | None = None) -> tuple[int, int]:
        """Register a schema under a subject unless it is there, and return its id and its version."""

        def send(client: Any) -> tuple[int, int]:
            schema = load_library(_CLIENT, "a schema registry").Schema(text, kind, references or [])
            schema_id = client.register_schema(subject, schema)
            return schema_id, client.lookup_schema(subject, schema).version

        return self._call(f"a schema of subject {subject!r}", send)

    def refer(self, name: str, subject: str, version: int) -> Any:
        """Return a reference to a version of a subject, for `register`. Nothing is sent."""
        return load_library(_CLIENT, "a schema registry").SchemaReference(name, subject, version)

    def _call(self, what: str, send: Callable[[Any], T]) -> T:
        try:
            if self._client is None:
                self._client = _make_client(self._settings)
                weakref.finalize(self, self._client.close)  # its connections; also when the process ends
            return send(self._client)
        except MillpondError:
            raise
        except Exception as error:
            raise self._translate(what, error) from None  # the client's own error may hold the URL with its password

    def _translate(self, what: str, error: Exception) -> MillpondError:
        """Return the error of a request as one of Millpond's."""
        url = self._settings if isinstance(self._settings, str) else self._settings.get("url")
        where = f"schema registry {mask_registry(url)}"
        status = getattr(error, "http_status_code", None)
        said = _hide_secrets(str(error), self._settings)
        if status is None:
            if isinstance(error, ValueError | TypeError):  # raised by the client before it sends anything
                return InvalidUse(f"{where}: expected to ask for {what}, got {said}. Correct registry=.")
            return Unavailable(
                f"{where}: expected an answer about {what}, got {type(error).__name__}: {said}. Check that the "
                "registry runs and that this machine can reach it.",
                retry_after=_RETRY_AFTER,
            )
        if status >= 500 or status in _RETRIABLE:
            return Unavailable(
                f"{where}: expected an answer about {what}, got {said}. Check the registry.", retry_after=_RETRY_AFTER
            )
        if status in (401, 403):
            return InvalidUse(
                f"{where}: expected access to {what}, got HTTP status {status}. Check the credentials in registry= "
                "('basic.auth.user.info' or 'bearer.auth.*') and what they may read and write."
            )
        if status == 404:
            return _NotFound(
                f"{where}: expected {what}, got {said}. Check the URL, and that the schema was registered there.",
                getattr(error, "error_code", None),
            )
        return InvalidUse(f"{where}: expected it to accept {what}, got {said}. Correct the schema or the settings.")


def _make_client(registry: RegistrySettings) -> Any:
    library = load_library(_CLIENT, "a schema registry")
    return library.SchemaRegistryClient(_client_settings(registry))


def _client_settings(registry: RegistrySettings) -> dict[str, Any]:
    """Return settings for the client, with credentials moved out of the URL: HTTP libraries write URLs to logs."""
    settings = {**_DEFAULTS, **({"url": registry} if isinstance(registry, str) else registry)}
    plain = []
    for url in str(settings["url"]).split(","):
        scheme, _, rest = url.strip().partition("://")
        authority, slash, path = rest.partition("/")
        user, at, host = authority.rpartition("@")
        if at:
            settings.setdefault("basic.auth.user.info", unquote(user))
        plain.append(f"{scheme}://{host}{slash}{path}")
    return settings | {"url": ",".join(plain)}


def _hide_secrets(text: str, registry: RegistrySettings) -> str:
    """Return a text in which no secret of the settings occurs."""
    for secret in sorted(_secrets(registry), key=len, reverse=True):
        text = text.replace(secret, _MASK)
    return text


def _secrets(registry: RegistrySettings) -> Iterator[str]:
    """Yield everything in the settings that a message must not show."""
    settings = {"url": registry} if isinstance(registry, str) else registry
    for name, value in settings.items():
        if name in _URLS:
            for url in str(value).split(","):
                user, at, _ = url.partition("://")[2].partition("/")[0].rpartition("@")
                _, question, query = url.partition("?")
                yield from _spellings(user) if at else ()
                yield from [query] if question and query else []
        elif name not in _SHOWN:
            yield from _spellings(str(value))


def _spellings(secret: str) -> Iterator[str]:
    """Yield `user:password`, and the password alone, as they are written and as they are meant."""
    for text in {secret, unquote(secret)}:
        _, _, password = text.partition(":")
        yield from (each for each in (text, password) if each)


def read_schema_id(data: bytes, kind: str) -> int:
    """Return the schema id that a message of the registry's wire format begins with.

    >>> read_schema_id(bytes([0, 0, 0, 0, 7]), "Avro")
    7
    >>> read_schema_id(b'{"n": 1}', "Avro")
    Traceback (most recent call last):
    ...
    ValueError: expected Avro with a schema id (magic byte 0), got 0x7b
    """
    if not data or data[0] != 0:
        got = f"0x{data[0]:02x}" if data else "no bytes"
        raise ValueError(f"expected {kind} with a schema id (magic byte 0), got {got}")
    if len(data) < 5:
        raise ValueError(f"expected {kind} with a schema id of 4 bytes after the magic byte, got {short_repr(data)}")
    schema_id = int.from_bytes(data[1:5], "big")
    if schema_id > _LARGEST_ID:
        raise ValueError(f"expected {kind} with a schema id of at most {_LARGEST_ID}, got {schema_id}")
    return schema_id


def write_schema_id(schema_id: int) -> bytes:
    """Return what a message of the registry's wire format begins with.

    >>> write_schema_id(7)
    b'\\x00\\x00\\x00\\x00\\x07'
    """
    return b"\0" + schema_id.to_bytes(4, "big")


def subject_of(topic: str, is_key: bool) -> str:
    """Return the subject under which the schemas of a topic are registered.

    >>> subject_of("orders", is_key=False)
    'orders-value'
    """
    return f"{topic}-{'key' if is_key else 'value'}"
