"""What befalls a driver on Spark: it sleeps while another takes over, it is killed, its workers are shot."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from folders import held, write
from processes import Program, any_alive, descendants, eventually, is_asleep
from pyspark.sql import SparkSession

import millpond as mp

pytestmark = pytest.mark.slow

ROWS = [{"id": n, "key": f"k{n % 7}", "value": n} for n in range(100)]


def add(key: str, row: dict[str, Any], total: int) -> tuple[dict[str, Any], int]:
    total += row["value"]
    return {"id": row["id"], "key": key, "total": total}, total


def an_app(folder: Path, source: Any) -> mp.App:
    app = mp.App("drivers", str(folder / "state"), partitions=2, local_dir=str(folder / "other"))
    app.stream("rows", source).key_by("key").stateful_map("total", add, initial=0).to(
        "out", mp.sinks.files(folder / "out")
    )
    return app


def assert_each_row_counts_once(app: mp.App, folder: Path, rows: list[dict[str, Any]]) -> None:
    assert sorted(row["id"] for row in held(folder / "out")) == [row["id"] for row in rows]
    totals: dict[str, int] = {}
    for row in rows:
        totals[row["key"]] = totals.get(row["key"], 0) + row["value"]
    assert dict(app.state("total").items()) == totals


@pytest.mark.parametrize("point", [("commit", "before"), ("deliver", "before")], ids=" ".join)
def test_a_driver_that_slept_while_another_took_over_is_fenced_and_does_no_harm(
    spark: SparkSession, program: Callable[..., Program], tmp_path: Path, point: tuple[str, str]
) -> None:
    write(tmp_path / "in" / "a.jsonl", ROWS)
    sleeper = program("drivers", tmp_path, "asleep", *point)
    eventually(lambda: is_asleep(sleeper.pid), "the first driver to fall asleep")
    app = an_app(tmp_path, mp.sources.files(tmp_path / "in"))
    app.run(until="caught-up", spark=spark)
    sleeper.send(signal.SIGCONT)
    assert "fenced: app 'drivers'" in sleeper.succeed()
    assert_each_row_counts_once(app, tmp_path, ROWS)


def test_a_killed_driver_takes_its_jvm_along_and_a_dataframe_goes_on_in_the_next(
    spark: SparkSession, program: Callable[..., Program], tmp_path: Path
) -> None:
    for number in range(10):
        write(tmp_path / "in" / f"{number}.json", ROWS[number * 10 : number * 10 + 10])
    first = program("drivers", tmp_path, "frames")
    eventually(lambda: len(held(tmp_path / "out")) >= 30, "three batches")
    below = descendants(first.pid)
    assert below
    os.kill(first.pid, signal.SIGKILL)  # of the Python process, and of nothing else
    first.wait()
    reader = spark.readStream.schema("id long, key string, value long").option("maxFilesPerTrigger", 4)
    app = an_app(tmp_path, reader.json(str(tmp_path / "in")))
    app.run(until="caught-up", spark=spark)
    assert_each_row_counts_once(app, tmp_path, ROWS)
    eventually(lambda: not any_alive(below), "the first driver's JVM and workers to end", 60)


def test_workers_that_die_while_they_read_or_deliver_cost_one_more_attempt(
    program: Callable[..., Program], tmp_path: Path
) -> None:
    write(tmp_path / "in" / "a.jsonl", ROWS)
    program("drivers", tmp_path, "shot").succeed()
    assert (tmp_path / "shot-while-reading").exists() and (tmp_path / "shot-while-delivering").exists()
    assert_each_row_counts_once(an_app(tmp_path, mp.sources.files(tmp_path / "in")), tmp_path, ROWS)
