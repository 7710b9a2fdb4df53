"""Two object stores on this machine: S3 by moto, and Google's by a small server of our own."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator

import pytest
from gcs_server import GcsServer
from s3_server import s3_server

from millpond.clock import new_id


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    with s3_server() as address:
        yield address


@pytest.fixture
def s3_url(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket of the test's own, and the environment that leads there."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    bucket = f"bucket-{new_id()}"
    urllib.request.urlopen(urllib.request.Request(f"{s3_endpoint}/{bucket}", method="PUT")).close()
    return f"s3://{bucket}/some/folder"


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    """An empty bucket, and the environment that leads there."""
    with GcsServer() as server:
        account = {
            "gcs_base_url": server.endpoint,
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(account))
        monkeypatch.setenv("GOOGLE_ALLOW_HTTP", "true")
        yield server
