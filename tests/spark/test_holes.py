"""Holes that were found by trying: each is closed, and stays closed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from folders import append, held, write
from processes import Program, eventually

import millpond as mp

ROWS = [{"key": f"k{i % 5}", "value": i} for i in range(100)]


def totals(rows: list[dict[str, Any]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in rows:
        found[row["key"]] = found.get(row["key"], 0) + row["value"]
    return found


def test_a_worker_that_dies_in_a_session_without_retries_costs_one_attempt_at_its_batch(
    program: Callable[..., Program], tmp_path: Path
) -> None:
    write(tmp_path / "in" / "a.jsonl", ROWS)
    state = tmp_path / "state"
    program("holes", tmp_path, state, tmp_path / "local", "no-retries").succeed()
    assert (tmp_path / "killed").exists(), "a worker was to die"
    assert dict(mp.open(str(state), "holes").state("total").items()) == totals(ROWS)
    assert len(held(tmp_path / "out")) == len(ROWS)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_first_catch_up_over_more_than_two_gigabytes_of_one_key_runs_in_bounded_memory(
    program: Callable[..., Program], tmp_path: Path
) -> None:
    count, pad = 2200, "x" * 1_000_000
    (tmp_path / "in").mkdir()
    line = json.dumps({"key": "k", "pad": pad}).encode() + b"\n"
    with open(tmp_path / "in" / "a.jsonl", "wb") as file:
        for _ in range(count):
            file.write(line)
    state = tmp_path / "state"
    try:
        program("holes", tmp_path, state, tmp_path / "local", "large").succeed()
    finally:
        os.remove(tmp_path / "in" / "a.jsonl")
    rows, size, most = mp.open(str(state), "holes").state("measured").get("k")
    assert (rows, size) == (count, count * len(pad))
    assert size > 2 << 30
    assert most < 1500, f"a worker took {most} MB"


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket on an S3-compatible server of this machine."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    boto3.client("s3").create_bucket(Bucket="pond")
    yield "s3://pond/state"
    server.stop()


def test_an_app_in_an_object_store_goes_on_on_an_empty_machine(
    program: Callable[..., Program], tmp_path: Path, objects: str
) -> None:
    write(tmp_path / "in" / "a.jsonl", ROWS)
    first = program("holes", tmp_path, objects, tmp_path / "one", "objects", "stay")
    eventually(lambda: len(held(tmp_path / "out")) == len(ROWS), "the first rows")
    first.kill()
    append(tmp_path / "in" / "a.jsonl", ROWS)
    program("holes", tmp_path, objects, tmp_path / "other", "objects").succeed()
    assert dict(mp.open(objects, "holes").state("total").items()) == totals(ROWS + ROWS)
    assert len(held(tmp_path / "out")) == 2 * len(ROWS)
