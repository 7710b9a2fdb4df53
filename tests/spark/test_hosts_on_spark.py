"""Three hosts with a disk each, and state in an object store: kill -9 of hosts in random order, and warm restarts."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import signal
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from folders import held, write
from processes import Program, eventually
from s3_server import s3_server
from spark_cluster import Cluster
from typer.testing import CliRunner

import millpond as mp
from millpond.cli import commands
from millpond.clock import new_id
from millpond.runtimes.spark.jvm import JvmHosts

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("MILLPOND_KILL_HOSTS_ROUNDS", "2"))
SEED = int(os.environ.get("MILLPOND_KILL_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


@pytest.fixture
def state_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket, and the environment that leads there; executors inherit it from their workers."""
    with s3_server() as endpoint:
        for name, value in {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        bucket = f"bucket-{new_id()}"
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{bucket}", method="PUT")).close()
        yield f"s3://{bucket}/state"


@pytest.fixture
def cluster(state_dir: str) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="millpond-cluster-", ignore_cleanup_errors=True) as folder:
        made = Cluster(Path(folder), HOSTS, cores=1, local_dirs=Path(folder) / "local")
        try:
            yield made
        finally:
            made.stop()


class Input:
    """Rows for the app, and what its state and sink must hold."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.chance, self.rows, self.files = folder, random.Random(seed), list[dict[str, Any]](), 0

    def feed(self, count: int = 200) -> None:
        first = len(self.rows)
        fresh = [
            {"id": i, "key": f"k{self.chance.randrange(60)}", "value": self.chance.randrange(100)}
            for i in range(first, first + count)
        ]
        self.rows += fresh
        self.files += 1
        write(self.folder / "in" / f"{self.files:05d}.jsonl", fresh)

    def wait_for_outputs(self, running: Program) -> None:
        def is_done() -> bool:
            assert running.process.poll() is None, running.output[-4000:]
            return len(held(self.folder / "out")) >= len(self.rows)

        eventually(is_done, f"{len(self.rows)} outputs")

    def check(self, state_dir: str) -> None:
        totals: dict[str, int] = {}
        outputs = []
        for row in self.rows:
            totals[row["key"]] = totals.get(row["key"], 0) + row["value"]
            outputs.append((row["id"], totals[row["key"]]))
        assert sorted((row["id"], row["total"]) for row in held(self.folder / "out")) == outputs
        assert dict(mp.open(state_dir, "hosts").state("total").items()) == totals


def partitions(state_dir: str) -> dict[str, Any]:
    """What `millpond status` says about the partitions."""
    found = CliRunner().invoke(commands, ["status", "--state-dir", state_dir, "--format", "json"])
    assert found.exit_code == 0, found.output
    return dict(json.loads(found.stdout)["replicas"])


def all_ready(state_dir: str, hosts: int) -> bool:
    """Whether so many hosts have partitions, and each partition a ready standby on another host."""
    try:
        found = partitions(state_dir)
    except AssertionError:
        return False
    return (
        len(found) == 6
        and len({copies["host"] for copies in found.values()}) == hosts
        and all(
            [standby["ready"] for standby in copies["standbys"]] == [True]
            and copies["standbys"][0]["host"] != copies["host"]
            for copies in found.values()
        )
    )


def test_a_spark_without_the_calls_has_no_hosts_to_choose_and_that_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    other: Any = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: object()), _jvm=object())
    hosts = JvmHosts(other)
    with caplog.at_level(logging.WARNING, "millpond"):
        assert hosts.executors() == []
        assert hosts.executors() == []
        assert hosts.placed([b"job"], ["127.0.0.1"]) is None
    assert [record.message.partition(",")[0] for record in caplog.records] == [
        "this Spark cannot run tasks on chosen hosts"
    ]


@pytest.mark.timeout(0)
def test_kill_9_of_hosts_in_random_order_loses_nothing_and_standbys_take_over(
    state_dir: str, cluster: Cluster, program: Callable[..., Program], tmp_path: Path
) -> None:
    print(f"\nMILLPOND_KILL_SEED={SEED} MILLPOND_KILL_HOSTS_ROUNDS={ROUNDS}")
    chance, source = random.Random(SEED), Input(tmp_path, SEED)
    source.feed()
    running = program("hosts", cluster.url, state_dir, tmp_path, 1)
    source.wait_for_outputs(running)
    for number in range(ROUNDS):

        def is_settled() -> bool:
            source.feed(5)
            time.sleep(0.5)
            return all_ready(state_dir, 3)

        try:
            eventually(is_settled, f"standbys of every partition, in round {number}", patience=120)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{partitions(state_dir)}\n{running.output[-4000:]}") from None
        for _ in range(3):
            source.feed()
        time.sleep(chance.random())
        victim, before = chance.choice(HOSTS), len(running.output)
        cluster.kill(victim)
        for _ in range(3):
            source.feed()
        source.wait_for_outputs(running)
        said = running.output[before:]
        moves = re.findall(rf"moved from {re.escape(victim)} to (\S+) in \S+ s, from (a standby|the log)", said)
        assert moves, said
        assert {how for _, how in moves} == {"a standby"}, said
        cluster.add(victim)
    running.send(signal.SIGTERM)
    running.succeed()
    source.check(state_dir)


@pytest.mark.timeout(0)
def test_a_driver_that_starts_again_finds_every_partition_where_its_replica_is(
    state_dir: str, cluster: Cluster, program: Callable[..., Program], tmp_path: Path
) -> None:
    source = Input(tmp_path, 1)
    source.feed(600)
    running = program("hosts", cluster.url, state_dir, tmp_path, 0)
    source.wait_for_outputs(running)

    def is_spread() -> bool:
        source.feed(5)
        time.sleep(0.5)
        return len({at["host"] for at in partitions(state_dir).values()}) == 3

    eventually(is_spread, "three hosts at work", patience=120)
    source.feed()
    source.wait_for_outputs(running)
    running.kill()
    stores = sorted(path for host in HOSTS for path in cluster.local_dir(host).rglob("data.mdb"))
    source.feed()
    program("hosts", cluster.url, state_dir, tmp_path, 0, "until-caught-up").succeed()
    after = sorted(path for host in HOSTS for path in cluster.local_dir(host).rglob("data.mdb"))
    assert after == stores, "no store was built: every partition was computed where its store is"
    source.check(state_dir)
