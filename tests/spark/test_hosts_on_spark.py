"""Three hosts with a disk each, and state in an object store: kill -9 of hosts in random order, and warm restarts."""

from __future__ import annotations

import contextlib
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

ROUNDS = int(os.environ.get("MILLPOND_KILL_HOSTS_ROUNDS", "1"))
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


@contextlib.contextmanager
def a_cluster(cores: int) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="millpond-cluster-", ignore_cleanup_errors=True) as folder:
        made = Cluster(Path(folder), HOSTS, cores=cores, local_dirs=Path(folder) / "local")
        try:
            yield made
        finally:
            made.stop()


@pytest.fixture
def cluster(state_dir: str) -> Iterator[Cluster]:
    with a_cluster(cores=1) as made:
        yield made


@pytest.fixture
def roomy_cluster(state_dir: str) -> Iterator[Cluster]:
    """The same, with room for the executors of two drivers."""
    with a_cluster(cores=2) as made:
        yield made


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


class KilledHosts:
    """The app on three hosts, with standbys, while hosts die and come back."""

    def __init__(self, state_dir: str, cluster: Cluster, running: Program, source: Input) -> None:
        self.state_dir, self.cluster, self.running, self.source = state_dir, cluster, running, source

    def settle(self, number: int) -> None:
        """Wait until every partition has a ready standby."""

        def is_settled() -> bool:
            self.source.feed(5)
            time.sleep(0.5)
            return all_ready(self.state_dir, 3)

        try:
            eventually(is_settled, f"standbys of every partition, in round {number}", patience=120)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{partitions(self.state_dir)}\n{self.running.output[-4000:]}") from None

    def feed(self) -> None:
        for _ in range(3):
            self.source.feed()

    def kill_host(self, victim: str) -> None:
        """kill -9 of a host in the middle of the work: its partitions move to their standbys."""
        before = len(self.running.output)
        self.cluster.kill(victim)
        self.feed()
        self.source.wait_for_outputs(self.running)
        said = self.running.output[before:]
        moves = re.findall(rf"moved from {re.escape(victim)} to (\S+) in \S+ s, from (a standby|the log)", said)
        assert moves, said
        assert {how for _, how in moves} == {"a standby"}, said
        self.cluster.add(victim)

    def kill_driver(self, standby: Program) -> None:
        """kill -9 of the driver: the standby driver goes on, with the copies that the hosts have."""
        self.running.kill()
        self.feed()
        self.running = standby
        self.source.wait_for_outputs(standby)
        said = standby.output
        assert "taking over: " in said and "from the log" not in said and "built a copy" not in said, said

    def end(self) -> None:
        self.running.send(signal.SIGTERM)
        self.running.succeed()
        self.source.check(self.state_dir)


@pytest.mark.timeout(0)
def test_kill_9_of_hosts_in_random_order_loses_nothing_and_standbys_take_over(
    state_dir: str, cluster: Cluster, program: Callable[..., Program], tmp_path: Path
) -> None:
    print(f"\nMILLPOND_KILL_SEED={SEED} MILLPOND_KILL_HOSTS_ROUNDS={ROUNDS}")
    chance, source = random.Random(SEED), Input(tmp_path, SEED)
    source.feed()
    app = KilledHosts(state_dir, cluster, program("hosts", cluster.url, state_dir, tmp_path, 1), source)
    source.wait_for_outputs(app.running)
    for number in range(ROUNDS):
        app.settle(number)
        app.feed()
        time.sleep(chance.random())
        app.kill_host(chance.choice(HOSTS))
    app.end()


@pytest.mark.timeout(0)
def test_kill_9_of_hosts_and_drivers_with_a_standby_driver_beside_loses_nothing_and_builds_nothing(
    state_dir: str, roomy_cluster: Cluster, program: Callable[..., Program], tmp_path: Path
) -> None:
    print(f"\nMILLPOND_KILL_SEED={SEED} MILLPOND_KILL_HOSTS_ROUNDS={ROUNDS}")
    chance, source = random.Random(SEED), Input(tmp_path, SEED)

    def start(*args: object) -> Program:
        return program("hosts", roomy_cluster.url, state_dir, tmp_path, 1, *args)

    def is_waiting(standby: Program) -> bool:
        assert standby.process.poll() is None, standby.output[-4000:]
        return "standing by" in standby.output

    source.feed()
    app = KilledHosts(state_dir, roomy_cluster, start(), source)
    source.wait_for_outputs(app.running)
    for number in range(ROUNDS):
        standby = start("standby")
        eventually(lambda standby=standby: is_waiting(standby), "the standby driver to wait")  # type: ignore[misc]
        app.settle(number)
        app.feed()
        time.sleep(chance.random())
        if number % 2:
            app.kill_host(chance.choice(HOSTS))
            app.settle(number)
            app.feed()
        app.kill_driver(standby)
    app.end()


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
