"""What a program sees when the schema registry is away or refuses, and that no message shows its credentials."""

from __future__ import annotations

import io
import logging
import pickle
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from schema_registry import SchemaRegistry

import millpond as mp
from millpond.errors import InvalidUse, Unavailable
from millpond.kafka.message_formats import make_decoder, make_encoder
from millpond.kafka.schema_registry import Registry

SCHEMA = "string"
USER = "ann:let:me in"


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as server:
        server.add("words-value", SCHEMA)
        yield server


@pytest.fixture
def guarded() -> Iterator[SchemaRegistry]:
    """A registry that asks for a user."""
    with SchemaRegistry(user=USER) as server:
        server.add("words-value", SCHEMA)
        yield server


WORD = b"\0\0\0\0\1\x04hi"


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


# --- away ---


def test_a_registry_that_cannot_be_reached_is_unavailable_and_asked_again() -> None:
    settings = {"url": f"http://127.0.0.1:{free_port()}", "max.retries": 0}
    decode, encode = make_decoder("avro", registry=settings), make_encoder("avro", registry=settings)
    for call in (lambda: decode(WORD, "words"), lambda: encode("hi", "words")):
        with pytest.raises(
            Unavailable, match=r"^schema registry http://127.0.0.1:\d+: expected an answer about s"
        ) as caught:
            call()
        assert caught.value.retry_after is not None and caught.value.retry_after > 0


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_registry_in_trouble_is_unavailable_until_it_recovers(status: int, registry: SchemaRegistry) -> None:
    decode = make_decoder("avro", registry=registry.settings())
    registry.failure = status
    with pytest.raises(Unavailable, match=rf"expected an answer about schema id 1, got .*HTTP status code {status}"):
        decode(WORD, "words")
    registry.failure = None
    assert decode(WORD, "words") == "hi"


def test_a_schema_that_is_known_needs_no_registry(registry: SchemaRegistry) -> None:
    decode, encode = (
        make(f, registry=registry.settings()) for make, f in [(make_decoder, "avro"), (make_encoder, "avro")]
    )
    assert decode(WORD, "words") == "hi" and encode("hi", "words") == WORD
    registry.failure = 500
    assert decode(WORD, "words") == "hi" and encode("hi", "words") == WORD


# --- refusals ---


@pytest.mark.parametrize("format", ["avro", "protobuf"])
def test_an_unknown_schema_id_is_a_bad_row(format: str, registry: SchemaRegistry) -> None:
    decode = make_decoder(format, registry=registry.settings())
    for _ in range(3):
        with pytest.raises(ValueError, match=r"^schema registry http.*: expected schema id 9, got Schema 9 not found"):
            decode(b"\0\0\0\0\x09\0", "words")


def test_a_schema_id_that_the_registry_learns_late_is_waited_for(registry: SchemaRegistry) -> None:
    registry.learn_late("names-value", "bytes", after=2)
    assert make_decoder("avro", registry=registry.settings())(b"\0\0\0\0\2\x04hi", "names") == b"hi"
    assert registry.requests == ["GET /schemas/ids/2"] * 3


def test_many_unknown_schema_ids_do_not_wait_for_each(registry: SchemaRegistry) -> None:
    decode = make_decoder("avro", registry=registry.settings())
    began = time.monotonic()
    for number in [*range(9, 29)] * 2:
        with pytest.raises(ValueError, match=f"expected schema id {number}, got Schema {number} not found"):
            decode(bytes([0, 0, 0, 0, number]), "words")
    assert time.monotonic() - began < 20  # instead of two seconds for each
    assert all(registry.requests.count(f"GET /schemas/ids/{number}") == 1 for number in range(10, 29))


def test_a_number_that_is_no_schema_id_is_not_asked_for(registry: SchemaRegistry) -> None:
    with pytest.raises(ValueError, match="expected Avro with a schema id of at most 2147483647, got 4294967295"):
        make_decoder("avro", registry=registry.settings())(b"\0\xff\xff\xff\xff", "words")
    assert registry.requests == []


def test_an_unknown_subject_is_refused(registry: SchemaRegistry) -> None:
    with pytest.raises(InvalidUse, match=r"expected subject 'names-value', got Subject 'names-value' not found.*40401"):
        make_encoder("avro", registry=registry.settings())("hi", "names")


def test_a_schema_that_is_not_compatible_is_refused(registry: SchemaRegistry) -> None:
    registry.incompatible.add("words-value")
    encode = make_encoder(mp.formats.avro("long"), registry=registry.settings())
    with pytest.raises(
        InvalidUse, match=r"accept a schema of subject 'words-value', got Schema being registered is inc"
    ):
        encode(5, "words")


def test_something_else_at_the_url_is_refused(registry: SchemaRegistry) -> None:
    settings = registry.settings(url=f"{registry.url}/other")
    with pytest.raises(InvalidUse, match=r"expected schema id 1, got HTTP 404 Not Found .* Check the URL"):
        make_decoder("avro", registry=settings)(WORD, "words")


# --- credentials ---


@pytest.mark.parametrize("status", [401, 403])
def test_refused_credentials_are_a_mistake_and_are_not_shown(status: int, guarded: SchemaRegistry) -> None:
    if status == 403:
        guarded.failure = 403
    settings = guarded.settings(**{"basic.auth.user.info": "ann:hunter2"})
    with pytest.raises(
        InvalidUse, match=rf"expected access to schema id 1, got HTTP status {status}\. Check"
    ) as caught:
        make_decoder("avro", registry=settings)(WORD, "words")
    assert "hunter2" not in repr(caught.value)


@pytest.mark.parametrize("status", [422, 503])
def test_an_answer_that_repeats_the_credentials_is_shown_without_them(status: int, registry: SchemaRegistry) -> None:
    registry.failure, registry.failure_text = status, "no rights for ann:hunter2, password hunter2"
    settings = registry.settings(**{"basic.auth.user.info": "ann:hunter2"})
    with pytest.raises((InvalidUse, Unavailable), match=r"no rights for \*\*\*, password \*\*\*") as caught:
        make_decoder("avro", registry=settings)(WORD, "words")
    assert "hunter2" not in repr(caught.value)


@pytest.mark.parametrize("is_in_url", [True, False])
def test_the_right_credentials_open_it_and_no_log_shows_them(is_in_url: bool, guarded: SchemaRegistry) -> None:
    url = guarded.url.replace("http://", "http://ann:let%3Ame%20in@")
    settings: Any = url if is_in_url else guarded.settings(**{"basic.auth.user.info": USER})
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    root, level = logging.getLogger(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        assert make_decoder("avro", registry=settings)(WORD, "words") == "hi"
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    assert "/schemas/ids/1" in log.getvalue()  # the HTTP library logs its requests
    assert not any(secret in log.getvalue() for secret in ("let:me", "let%3Ame", "ann:"))


def test_an_unreachable_registry_shows_no_credentials() -> None:
    settings = {"url": f"http://ann:hunter2@127.0.0.1:{free_port()}", "max.retries": 0}
    with pytest.raises(Unavailable) as caught:
        make_decoder("avro", registry=settings)(WORD, "words")
    assert "http://***@127.0.0.1" in str(caught.value) and "hunter2" not in repr(caught.value)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


def test_a_registry_shows_no_credentials_and_is_pickled_without_its_client(guarded: SchemaRegistry) -> None:
    store = Registry(guarded.settings(**{"basic.auth.user.info": USER}))
    assert "let:me" not in repr(store) and guarded.url in repr(store)
    assert store.get_schema(1).schema_str == '"string"'
    assert pickle.loads(pickle.dumps(store)).get_schema(1).schema_str == '"string"'
