"""A standby driver on Spark: kill -9 of the owner and its JVM, and the standby driver goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from folders import held, write
from processes import Program, eventually, workers
from pyspark.sql import SparkSession
from spark_cluster import Cluster

import millpond as mp
from millpond.clock import SystemClock
from millpond.log.standby_drivers import standby_drivers
from millpond.runtimes.spark import SparkRuntime
from millpond.storage import open_storage

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("MILLPOND_KILL_ROUNDS", "1"))
ROWS = 300  # of a file


@pytest.mark.timeout(0)
def test_kill_9_of_the_owner_with_a_standby_driver_beside_it_loses_nothing_and_doubles_nothing(
    program: Callable[..., Program], tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = []

    def feed() -> None:
        fresh = [{"id": n, "key": f"k{n % 50}", "value": n % 11} for n in range(len(rows), len(rows) + ROWS)]
        write(tmp_path / "in" / f"{len(rows):08d}.jsonl", fresh)
        rows.extend(fresh)

    def arrives(what: str) -> None:
        eventually(lambda: len(held(tmp_path / "out")) >= len(rows), f"all rows from {what}")

    def is_shown(standby: Program) -> bool:
        assert standby.process.poll() is None, standby.output[-4000:]
        found = standby_drivers(open_storage(str(tmp_path / "state")), "totals", SystemClock())
        return standby.pid in [beat.pid for beat in found]

    feed()
    owner = program("totals", tmp_path)
    for number in range(ROUNDS):
        arrives(f"driver {number}")
        standby = program("totals", tmp_path, "standby")
        eventually(lambda standby=standby: is_shown(standby), "the standby driver to wait")  # type: ignore[misc]
        feed()
        if number % 2:
            arrives("the owner")
        owner.kill()
        feed()
        owner = standby
    arrives("the last driver")
    owner.send(signal.SIGTERM)
    owner.succeed()
    assert sorted(row["id"] for row in held(tmp_path / "out")) == [row["id"] for row in rows]
    totals: dict[str, int] = {}
    for row in rows:
        totals[row["key"]] = totals.get(row["key"], 0) + row["value"]
    assert dict(mp.open(str(tmp_path / "state"), "totals").state("total").items()) == totals


def test_python_workers_that_are_kept_warm_are_used_again(spark: SparkSession, tmp_path: Path) -> None:
    app = mp.App("warm", str(tmp_path / "state"), partitions=2)
    app.stream("rows", mp.sources.rows([])).key_by("key").aggregate("n", n=mp.count()).to("out", mp.sinks.discard())
    with SparkRuntime.open(mp.lowlevel.program(app), str(tmp_path / "state"), spark) as runtime:
        runtime.keep_warm(2)
        before = set(workers(os.getpid()))
        runtime.keep_warm(None)
        assert before & set(workers(os.getpid())), "all workers have ended"
    assert not (tmp_path / "state").exists(), "nothing is written"


NO_CORES = """
import logging, sys
import millpond as mp
from pyspark.sql import SparkSession
logging.basicConfig(level=logging.INFO)
logging.getLogger("py4j").setLevel(logging.WARNING)
spark = SparkSession.builder.master(sys.argv[1]).config("spark.driver.host", "127.0.0.1").getOrCreate()
app = mp.App("bank", sys.argv[2], partitions=2)
app.stream("rows", mp.sources.rows([])).key_by("key").aggregate("n", n=mp.count()).to("out", mp.sinks.memory())
app.run(spark=spark, standby=True)
"""


def test_a_standby_driver_without_cores_stands_by_and_is_shown(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    app = mp.App("bank", state, partitions=2)
    app.stream("rows", mp.sources.rows([])).key_by("key").aggregate("n", n=mp.count()).to("out", mp.sinks.memory())
    (tmp_path / "standby.py").write_text(NO_CORES)
    cluster = Cluster(tmp_path, addresses=())  # every session waits for cores
    try:
        with mp.testing.TestDriver(app, storage=state) as driver:
            driver.send("rows", [{"key": 1}])  # it owns the app
            standby = Program(tmp_path / "standby.py", cluster.url, state, logs=tmp_path / "logs")
            try:
                standby.wait_for("app 'bank': standing by; ")
            finally:
                standby.destroy()
    finally:
        cluster.stop()
