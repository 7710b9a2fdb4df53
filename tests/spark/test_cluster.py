"""A standalone cluster of two hosts: partitions stay where they are, and outlive a host."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from folders import held, write
from processes import Program, eventually
from spark_cluster import Cluster

import millpond as mp

pytestmark = pytest.mark.slow


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
