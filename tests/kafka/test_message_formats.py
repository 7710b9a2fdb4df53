"""Formats that need no schema, and what is refused when the program is built."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

import millpond as mp
from millpond.errors import InvalidUse
from millpond.kafka.message_formats import check_format, make_decoder, make_encoder, mask_registry

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "amount", "type": "long"}]}
URL = "http://127.0.0.1:1"


def upper(value: Any) -> Any:
    return value.upper()


@dataclass
class Sale:
    amount: int


# --- bytes to values ---


@pytest.mark.parametrize(
    ("format", "data", "value"),
    [
        ("json", b'{"n":[1,2.5,null]}', {"n": [1, 2.5, None]}),
        ("json", b'"text"', "text"),
        ("string", "größe".encode(), "größe"),
        ("string", b"", ""),
        ("bytes", b"\xff\x00", b"\xff\x00"),
        (upper, b"abc", b"ABC"),
    ],
)
def test_bytes_become_a_value(format: Any, data: bytes, value: Any) -> None:
    decode = pickle.loads(pickle.dumps(make_decoder(format)))
    assert decode(data, "orders") == value


@pytest.mark.parametrize(
    ("format", "data", "message"),
    [
        ("json", b"{n", "expected JSON, got b'{n': "),
        ("json", b"", "expected JSON, got b'': "),
        ("json", b"[" * 100_000, "expected JSON, got b'[[["),
        ("string", b"ab\xffc", "expected UTF-8 text, got byte 0xff at position 2 of b'ab\\xffc'"),
    ],
)
def test_bytes_that_do_not_fit_say_what_was_expected(format: str, data: bytes, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        make_decoder(format)(data, "orders")
    assert str(caught.value).startswith(message)


# --- values to bytes ---


@pytest.mark.parametrize(
    ("format", "value", "data"),
    [
        ("json", {"n": 1, "t": ("a",)}, b'{"n":1,"t":["a"]}'),
        ("json", Sale(3), b'{"amount":3}'),
        ("string", "größe", "größe".encode()),
        ("bytes", b"\xff", b"\xff"),
        (upper, b"abc", b"ABC"),
        ("json", None, None),
        ("string", None, None),
        ("bytes", None, None),
    ],
)
def test_a_value_becomes_bytes_and_none_a_tombstone(format: Any, value: Any, data: bytes | None) -> None:
    encode = pickle.loads(pickle.dumps(make_encoder(format)))
    assert encode(value, "orders") == data


@pytest.mark.parametrize(
    ("format", "value", "is_key", "message"),
    [
        ("string", 5, True, "message key for topic 'orders', key='string': expected str, got 5 (int). Convert it"),
        ("string", "\ud800", False, "expected str that UTF-8 can encode, got '\\ud800'"),
        ("bytes", "x", False, "message value for topic 'orders', value='bytes': expected bytes, got 'x' (str)."),
        ("json", {"n": object()}, False, "a row cannot be written as JSON"),
        (upper, "x", False, "expected upper to return bytes, or None for a tombstone, got 'X' (str). Encode it"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(format: Any, value: Any, is_key: bool, message: str) -> None:
    with pytest.raises(InvalidUse) as caught:
        make_encoder(format, is_key=is_key)(value, "orders")
    assert message in str(caught.value)


# --- what is refused when the program is built ---


@pytest.mark.parametrize("where", ["sources.kafka", "sinks.kafka"])
@pytest.mark.parametrize(
    ("format", "registry"),
    [
        ("json", None),
        ("string", None),
        ("bytes", URL),
        (upper, None),
        ("avro", URL),
        ("avro", {"url": f"{URL},https://other:8081/path", "basic.auth.user.info": "ann:pw"}),
        ("avro", "http://ann:pw@127.0.0.1:1"),
        ("avro", {"url": URL, "ssl.ca.location": "/nowhere/ca.pem"}),
        (mp.formats.avro(ORDER), None),
        (mp.formats.avro(ORDER), URL),
    ],
)
def test_a_format_that_can_work_passes(where: str, format: Any, registry: Any) -> None:
    check_format(where, "value", format, registry)


@pytest.mark.parametrize(
    ("where", "format", "registry", "message"),
    [
        (
            "sources.kafka",
            "xml",
            None,
            "sources.kafka(value=): expected 'json', 'string', 'bytes', 'avro', 'protobuf', ",
        ),
        ("sources.kafka", None, None, "got None. Choose one of them."),
        ("sources.kafka", 5, None, "got 5. Choose one of them."),
        ("sources.kafka", lambda a, b: a, None, "expected a function of 1 argument (data), got <lambda>(a, b)"),
        ("sources.kafka", "avro", None, "expected registry= beside 'avro', which holds the schemas, got None. Set"),
        ("sinks.kafka", "avro", None, "or give the schema with mp.formats.avro(schema)."),
        ("sources.kafka", "protobuf", None, "or give the schema with mp.formats.protobuf(MessageClass)."),
        (
            "sinks.kafka",
            "protobuf",
            URL,
            "sinks.kafka(value=): expected a Protobuf class, whose message is written, got ",
        ),
        ("sources.kafka", "avro", 5, "expected registry= to be a URL such as 'http://localhost:8081', or a dict"),
        ("sources.kafka", "avro", "localhost:8081", "expected a registry URL that begins with http:// or https://"),
        ("sources.kafka", "avro", {"timeout": 3}, "expected a registry URL that begins with http:// or https://"),
        ("sources.kafka", "avro", "http://", "expected a registry URL that begins with http:// or https://"),
        ("sources.kafka", "avro", {"url": URL, "user": "x"}, "Unrecognized properties: user. Correct registry=."),
    ],
)
def test_a_format_that_cannot_work_is_refused(where: str, format: Any, registry: Any, message: str) -> None:
    with pytest.raises(InvalidUse) as caught:
        check_format(where, "value", format, registry)
    assert message in str(caught.value)


def test_a_message_class_in_place_of_a_format_is_refused_with_the_remedy() -> None:
    from google.protobuf.timestamp_pb2 import Timestamp

    with pytest.raises(
        InvalidUse, match=r"got the Protobuf class Timestamp\. Write mp\.formats\.protobuf\(Timestamp\)"
    ):
        check_format("sources.kafka", "value", Timestamp, None)


@pytest.mark.parametrize(
    ("library", "format"),
    [("fastavro", "avro"), ("google.protobuf", "protobuf"), ("confluent_kafka.schema_registry", "avro")],
)
def test_a_missing_library_is_named_with_how_to_install_it(
    library: str, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InvalidUse, match=rf"expected the library {library}, .* pip install 'millpond\[kafka\]'"):
        check_format("sources.kafka", "value", format, URL)


def test_importing_the_formats_imports_no_optional_library() -> None:
    code = (
        "import sys, millpond.formats, millpond.kafka.message_formats\n"
        "print([n for n in ('confluent_kafka', 'fastavro', 'google.protobuf', 'httpx2') if n in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert shown == "[]\n"


# --- secrets ---


@pytest.mark.parametrize(
    ("registry", "shown"),
    [
        (None, "None"),
        (5, "<int>"),
        ("http://host:8081", "http://host:8081"),
        ("https://ann:p%40ss@host/path?token=t", "https://***@host/path"),
        ("http://a:b@one,http://c:d@two", "http://***@one,http://***@two"),
        ("ann:pw@host", "***@host"),
        (
            {"url": "http://a:b@host", "ssl.key.password": "pw", "timeout": 3, "some.new.setting": "s"},
            "{'url': 'http://***@host', 'ssl.key.password': '***', 'timeout': 3, 'some.new.setting': '***'}",
        ),
    ],
)
def test_a_registry_is_shown_without_secrets(registry: Any, shown: str) -> None:
    assert mask_registry(registry) == shown


def test_an_error_about_settings_shows_no_secret() -> None:
    registry = {"url": URL, "basic.auth.user.info": "hunter2", "proxy": "http://ann:letmein@proxy"}
    with pytest.raises(InvalidUse) as caught:
        check_format("sources.kafka", "value", "avro", registry)
    assert "must be in the form" in str(caught.value)
    assert "hunter2" not in str(caught.value) and "letmein" not in str(caught.value)
