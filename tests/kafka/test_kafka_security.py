"""Logins, certificates and permissions: what works, one clear error for what does not, and no secret anywhere."""

from __future__ import annotations

import contextlib
import logging
import pickle
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from kafka_apps import Copying
from kafka_broker import free_ports
from secured_kafka import MECHANISMS, RESTRICTED, SecuredBroker, make_certificates

import millpond as mp
from millpond.errors import InvalidUse

PATIENCE = 15.0  # seconds until an error: some 5 on a quiet machine
ROWS = [{"n": i} for i in range(5)]


@pytest.fixture
def filled(secured: SecuredBroker, topic: str) -> str:
    secured.broker.create_topic(topic)
    secured.broker.send(topic, ROWS)
    return topic


def read(folder: Path, topic: str, servers: str, options: dict[str, Any], **how: Any) -> list[Any]:
    return Copying(folder, mp.sources.kafka(topic, servers=servers, options=options, **how)).run()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_login_works(secured: SecuredBroker, filled: str, tmp_path: Path, mechanism: str) -> None:
    assert read(tmp_path, filled, secured.sasl_address, secured.sasl(mechanism=mechanism)) == ROWS


def test_a_certificate_works(secured: SecuredBroker, filled: str, tmp_path: Path) -> None:
    assert read(tmp_path, filled, secured.ssl_address, secured.ssl()) == ROWS


def refusal(folder: Path, topic: str, servers: str, options: dict[str, Any]) -> str:
    """The error of an app that cannot read a topic; it comes soon."""
    began = time.monotonic()
    with pytest.raises(InvalidUse) as caught:
        read(folder, topic, servers, options)
    assert time.monotonic() - began < PATIENCE
    return str(caught.value)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password_is_refused(
    secured: SecuredBroker, filled: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, mechanism: str
) -> None:
    caplog.set_level(logging.DEBUG)
    options = {**secured.sasl(mechanism=mechanism, password="wrong-and-secret"), "debug": "all"}
    text = refusal(tmp_path, filled, secured.sasl_address, options)
    assert "uthentication" in text and "Check the sasl.* and security.protocol options" in text
    assert secured.sasl_address in text
    assert "wrong-and-secret" not in text + caplog.text


def test_a_wrong_authority_is_refused(secured: SecuredBroker, filled: str, tmp_path: Path) -> None:
    make_certificates(tmp_path, "stranger")
    options = {**secured.ssl(), "ssl.ca.location": str(tmp_path / "ca.pem")}
    text = refusal(tmp_path, filled, secured.ssl_address, options)
    assert "Check the ssl.* and security.protocol options" in text


def test_a_client_without_a_certificate_is_refused(secured: SecuredBroker, filled: str, tmp_path: Path) -> None:
    text = refusal(tmp_path, filled, secured.ssl_address, secured.ssl(user=None))
    assert "Check the ssl.* and security.protocol options" in text


@pytest.mark.parametrize("protocol", ["SSL", "sasl_ssl"])
@pytest.mark.parametrize("port", ["plain", "SASL"])
def test_a_client_with_tls_is_refused_at_a_port_without(
    secured: SecuredBroker, filled: str, tmp_path: Path, protocol: str, port: str
) -> None:
    servers = secured.broker.address if port == "plain" else secured.sasl_address
    options = {**secured.ssl(), **secured.sasl(), "security.protocol": protocol}
    text = refusal(tmp_path, filled, servers, options)
    assert f"{servers} answers without TLS, and the client expects TLS" in text
    assert "Check the ssl.* and security.protocol options, and the port in servers=" in text


@pytest.mark.parametrize("login", [False, True])
def test_a_client_without_tls_is_refused_at_a_port_with(
    secured: SecuredBroker, filled: str, tmp_path: Path, login: bool
) -> None:
    text = refusal(tmp_path, filled, secured.ssl_address, secured.sasl() if login else {})
    assert f"{secured.ssl_address} answers with TLS, and the client does not expect TLS" in text
    assert "Check the ssl.* and security.protocol options, and the port in servers=" in text


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_a_port_that_closes_every_connection_is_waited_for(protocol: str) -> None:
    """As the port of a container does while the broker in it starts."""
    with socket.create_server(("127.0.0.1", 0)) as port:

        def close_all() -> None:
            with contextlib.suppress(OSError):
                while True:
                    port.accept()[0].close()

        threading.Thread(target=close_all, daemon=True).start()
        servers = f"127.0.0.1:{port.getsockname()[1]}"
        source = mp.sources.kafka("orders", servers=servers, options={"security.protocol": protocol})
        for _ in range(2):
            with pytest.raises(mp.errors.Unavailable, match=f"{servers}.* Is the broker running"):
                source.plan({}, mp.lowlevel.Limit(1, 1), 0.0)
        port.shutdown(socket.SHUT_RDWR)


def test_an_unknown_host_is_refused(tmp_path: Path) -> None:
    text = refusal(tmp_path, "orders", "no-such-host.invalid:9092", {})
    assert "no-such-host.invalid:9092" in text and "Check the host in servers=" in text


def test_one_unknown_host_among_others_is_no_matter(secured: SecuredBroker, filled: str, tmp_path: Path) -> None:
    servers = ["no-such-host.invalid:9092", secured.sasl_address]
    assert read(tmp_path, filled, ",".join(servers), secured.sasl()) == ROWS


def test_a_user_without_permission_is_refused_and_needs_only_to_read_the_topic(
    secured: SecuredBroker, filled: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = secured.sasl(RESTRICTED)
    text = refusal(tmp_path, filled, secured.sasl_address, options)
    assert "Give the user the permissions" in text and filled in text
    secured.allow(RESTRICTED, filled, "DESCRIBE")
    text = refusal(tmp_path, filled, secured.sasl_address, options)
    assert "Give the user the permissions" in text and filled in text
    secured.allow(RESTRICTED, filled, "READ")
    assert read(tmp_path, filled, secured.sasl_address, options) == ROWS  # without permission for a group


def test_the_same_source_works_when_the_permission_was_given(
    secured: SecuredBroker, filled: str, tmp_path: Path
) -> None:
    source = mp.sources.kafka(filled, servers=secured.sasl_address, options=secured.sasl(RESTRICTED))
    app = Copying(tmp_path, source)
    with pytest.raises(InvalidUse, match="Give the user the permissions"):
        app.run()
    secured.allow(RESTRICTED, filled, "DESCRIBE", "READ")
    assert app.run() == ROWS


def test_no_secret_is_written_or_shown(
    secured: SecuredBroker, filled: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    options = {**secured.sasl(), "debug": "security,broker,protocol,conf"}
    secret = options["sasl.password"]
    source = mp.sources.kafka(filled, servers=secured.sasl_address, options=options)
    app = Copying(tmp_path, source)
    assert app.run() == ROWS
    assert [name for name in tmp_path.rglob("*") if name.is_file()]
    holding = [name for name in tmp_path.rglob("*") if name.is_file() and secret.encode() in name.read_bytes()]
    assert holding == []
    assert secret not in repr(source) + str(source) + repr(app.app) + caplog.text
    assert "rdkafka" in caplog.text  # the debug lines were logged
    assert pickle.loads(pickle.dumps(source))  # to workers it does travel


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"sasl.mechanism": "SAFE", "sasl.password": "secret-tea", "security.protocol": "SASL_SSL"}, "SAFE"),
        ({"no.such.option": "secret-tea"}, "no.such.option"),
        ({"ssl.key.pem": "secret-tea", "security.protocol": "SSL"}, "ssl"),
        ({"ssl.ca.location": "/no/such/file", "security.protocol": "SSL"}, "ssl.ca.location"),
    ],
    ids=["mechanism", "unknown", "key", "authority"],
)
def test_a_wrong_option_is_refused(
    secured: SecuredBroker, filled: str, tmp_path: Path, options: dict[str, Any], hint: str
) -> None:
    text = refusal(tmp_path, filled, secured.broker.address, options)
    assert hint in text and "Check the" in text
    assert "secret-tea" not in text


def test_nothing_listens(tmp_path: Path) -> None:
    """Not an error: a broker that is down comes back. It ends when it is asked to."""
    [port] = free_ports(1)
    source = mp.sources.kafka("orders", servers=f"127.0.0.1:{port}")
    with pytest.raises(mp.errors.Unavailable, match=f"127.0.0.1:{port}.* Is the broker running"):
        source.plan({}, mp.lowlevel.Limit(1, 1), 0.0)
