"""An object store with the protocol of S3 on this machine, by moto."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from moto.server import ThreadedMotoServer


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Start a server; yield its address."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()
