"""A standalone cluster of two hosts: partitions stay where they are, and outlive a host."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from folders import held, write
from processes import Program, descendants, eventually

import millpond as mp

pytestmark = pytest.mark.slow


class Cluster:
    """A master and two workers, each with an address of its own, so that Spark sees two hosts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._home = os.path.dirname(pyspark.__file__)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"spark://127.0.0.1:{port}"
        self._processes = {"master": self._start("127.0.0.1", "master.Master", "--host", "127.0.0.1", "--port", port)}
        self.said("master", "Starting Spark master")
        for address in ("127.0.0.1", "127.0.0.2"):
            self.add(address)

    def add(self, address: str) -> None:
        work = str(self._folder / f"work-{address}")
        options = ("--cores", 2, "--memory", "1g", "--work-dir", work, self.url)
        self._processes[address] = self._start(address, "worker.Worker", *options)
        self.said(address, "Successfully registered with master")

    def _start(self, address: str, role: str, *options: object) -> subprocess.Popen[bytes]:
        name = "master" if role.startswith("master") else address
        command = [f"{self._home}/bin/spark-class", f"org.apache.spark.deploy.{role}", "--webui-port", "0"]
        env = {**os.environ, "SPARK_LOCAL_IP": address, "SPARK_HOME": self._home, "PYSPARK_PYTHON": sys.executable}
        with open(self._folder / f"{name}.log", "ab") as log:
            return subprocess.Popen(
                [*command, *map(str, options)],
                env={**env, "SPARK_DAEMON_MEMORY": "256m"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self, name: str, text: str) -> None:
        log = self._folder / f"{name}.log"
        eventually(lambda: log.exists() and text in log.read_text(errors="replace"), f"{text!r} of {name}")

    def kill(self, name: str) -> None:
        """The host is gone: its worker and the executors on it."""
        process = self._processes.pop(name)
        for pid in [*descendants(process.pid), process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for name in reversed(list(self._processes)):
            self.kill(name)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="millpond-cluster-", ignore_cleanup_errors=True) as folder:
        made = Cluster(Path(folder))
        try:
            yield made
        finally:
            made.stop()


def feed(folder: Path, number: int, rows: int = 100) -> list[dict[str, Any]]:
    first = number * rows
    fresh = [{"id": i, "key": f"k{i % 40}", "value": i} for i in range(first, first + rows)]
    write(folder / "in" / f"{number:04d}.jsonl", fresh)
    return fresh


def totals(rows: list[dict[str, Any]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in rows:
        found[row["key"]] = found.get(row["key"], 0) + row["value"]
    return found


def places(folder: Path) -> dict[int, set[str]]:
    """Per partition the executors that have worked on it, from what they wrote."""
    found: dict[int, set[str]] = {}
    for file in sorted((folder / "out").glob("*.jsonl")):
        partition = int(file.name.split("-")[1])
        for line in file.read_text().splitlines():
            found.setdefault(partition, set()).add(line.partition('"executor":')[2])
    return found


@pytest.mark.timeout(0)
def test_every_partition_stays_with_its_executor_until_that_is_killed_and_the_stream_goes_on(
    cluster: Cluster, program: Callable[..., Program], tmp_path: Path
) -> None:
    env = {"MILLPOND_LOCAL_DIR": str(tmp_path / "local")}
    rows = [row for number in range(8) for row in feed(tmp_path, number)]
    running = program("clustered", cluster.url, tmp_path, "totals", "stay", env=env)
    eventually(lambda: len(held(tmp_path / "out")) == len(rows), "the first rows")
    at_first = places(tmp_path)
    assert sorted(at_first) == [0, 1, 2, 3]
    assert all(len(executors) == 1 for executors in at_first.values()), at_first
    assert len(set.union(*at_first.values())) == 2, "both hosts have work"

    cluster.kill("127.0.0.2")
    rows += [row for number in range(8, 14) for row in feed(tmp_path, number)]
    eventually(lambda: len(held(tmp_path / "out")) >= len(rows), "the rows after the kill")
    running.send(signal.SIGTERM)
    running.succeed()
    out = held(tmp_path / "out")
    assert sorted(row["id"] for row in out) == [row["id"] for row in rows]
    state = mp.open(str(tmp_path / "state"), "clustered").state("total")
    assert dict(state.items()) == totals(rows)


@pytest.mark.timeout(0)
def test_case_29_keys_that_differ_when_a_task_runs_again_lose_and_double_no_row(
    cluster: Cluster, program: Callable[..., Program], tmp_path: Path
) -> None:
    rows = [row for number in range(4) for row in feed(tmp_path, number, 500)]
    env = {"MILLPOND_LOCAL_DIR": str(tmp_path / "local")}
    program("clustered", cluster.url, tmp_path, "random", env=env).succeed()
    assert (tmp_path / "killed").exists(), "an executor was to die"
    ids = [row["id"] for row in rows]
    assert sorted(row["id"] for row in held(tmp_path / "out")) == ids
    state = mp.open(str(tmp_path / "state"), "clustered").state("held")
    assert sorted(value for _, value in state.items()) == ids
