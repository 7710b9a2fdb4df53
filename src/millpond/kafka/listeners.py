"""Finds out whether a port speaks TLS, for clients that get no answer: librdkafka only says that it was cut off.

A port that accepts connections and closes them is no proof: that of a proxy does so while the broker behind it starts.
So both sides are asked in their own words.
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl

PROBE_SECONDS = 1.0
MOST_SERVERS = 3  # that are asked
CORRELATION = b"mill"  # that an answer begins with
# ApiVersions in version 0, without the name of a client: every listener without TLS answers it, before a login
API_VERSIONS = (10).to_bytes(4) + (18).to_bytes(2) + (0).to_bytes(2) + CORRELATION + b"\xff\xff"


def find_wrong_protocol(servers: str, uses_tls: bool) -> str | None:
    """Return which server speaks TLS with a client that does not, or the other way round; None if none is known to."""
    for server in servers.split(",")[:MOST_SERVERS]:
        address = parse_server(server)
        if uses_tls and _answers_plainly(address):
            return f"{server.strip()} answers without TLS, and the client expects TLS"
        if not uses_tls and _answers_with_tls(address):
            return f"{server.strip()} answers with TLS, and the client does not expect TLS"
    return None


def parse_server(server: str) -> tuple[str, int]:
    """Return host and port of a server, as librdkafka reads them.

    >>> parse_server("SSL://broker:9093"), parse_server("[::1]:9092"), parse_server("broker")
    (('broker', 9093), ('::1', 9092), ('broker', 9092))
    """
    host = re.sub(r"^\w+://", "", server.strip())
    found = re.fullmatch(r"(.*):(\d{1,5})", host)
    host, port = (host, 9092) if found is None else (found[1], int(found[2]))
    return host.strip("[]"), port


def _answers_plainly(address: tuple[str, int]) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(address, PROBE_SECONDS) as connection:
        connection.settimeout(PROBE_SECONDS)
        connection.sendall(API_VERSIONS)
        return connection.recv(8, socket.MSG_WAITALL)[4:] == CORRELATION
    return False


def _answers_with_tls(address: tuple[str, int]) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent; only the answer matters
    try:
        with socket.create_connection(address, PROBE_SECONDS) as connection, context.wrap_socket(connection):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")  # it refuses this client, in the words of TLS
    except OSError:
        return False
