"""The cases of event time that hold on Spark too, through `app.run`."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from folders import held, write
from processes import Program, eventually
from pyspark.sql import SparkSession

import millpond as mp

MINUTES = [0, 4, 5, 6, 7, 8, 9, 15, 25, 45, 3, 56, 59, 32, 16]
START = datetime(2015, 9, 13, 3, 0, 0, 829_000, tzinfo=UTC)


def at(minute: int) -> str:
    return (START + timedelta(minutes=minute)).isoformat()


def an_app(folder: Path, partitions: int = 2) -> mp.App:
    return mp.App("timed", str(folder / "state"), partitions, local_dir=str(folder / "local"))


def everyone(row: dict[str, Any]) -> str:
    return "all"


def test_case_1_tumbling_windows_closed_at_the_end_of_the_input(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.jsonl", [{"id": i, "at": at(m)} for i, m in enumerate(MINUTES)])
    app = an_app(tmp_path)
    rows = app.stream("rows", mp.sources.files(tmp_path / "in"), timestamp="at", disorder="1h")
    counts = rows.key_by(everyone).window("per five", mp.tumbling("5m"), grace=mp.NO_GRACE).aggregate(n=mp.count())
    counts.to("out", mp.sinks.files(tmp_path / "out"))
    app.run(until="caught-up", spark=spark)
    assert held(tmp_path / "out") == []  # windows stay open for the next run
    app.run(until="caught-up", spark=spark, close_at_end=True)
    found = {row["window_start"][11:16]: row["n"] for row in held(tmp_path / "out")}
    assert found == {"03:00": 3, "03:05": 5, "03:15": 2, "03:25": 1, "03:30": 1, "03:45": 1, "03:55": 2}


def test_case_3_sessions_of_rows_out_of_order(spark: SparkSession, tmp_path: Path) -> None:
    minutes = {1: [0, 4, 16], 2: [4, 5, 1], 3: [19, 16, 12], 4: [6, 25, 56], 5: [7, 9, 13]}
    write(tmp_path / "in" / "a.jsonl", [{"k": k, "at": m} for k, ms in minutes.items() for m in ms])
    app = an_app(tmp_path)
    rows = app.stream("rows", mp.sources.files(tmp_path / "in"), timestamp="at", disorder=60)
    sessions = rows.key_by("k").window("visits", mp.session(5), grace=mp.NO_GRACE).aggregate(all=mp.collect("at"))
    sessions.to("out", mp.sinks.files(tmp_path / "out"))
    app.run(until="caught-up", spark=spark, close_at_end=True)
    found: dict[int, list[Any]] = {}
    for row in held(tmp_path / "out"):
        found.setdefault(row["k"], []).append((row["window_start"], row["window_end"], row["all"]))
    assert {k: sorted(v) for k, v in found.items()} == {
        1: [(0, 4, [0, 4]), (16, 16, [16])],
        2: [(1, 5, [4, 5, 1])],
        3: [(12, 19, [19, 16, 12])],
        4: [(6, 6, [6]), (25, 25, [25]), (56, 56, [56])],
        5: [(7, 13, [7, 9, 13])],
    }


def test_case_11_windows_close_by_the_watermark(spark: SparkSession, tmp_path: Path) -> None:
    app = an_app(tmp_path, partitions=1)
    rows = app.stream("rows", mp.sources.files(tmp_path / "in"), timestamp="at")
    sums = rows.key_by(everyone).window("tens", mp.tumbling(10), grace=mp.NO_GRACE).aggregate(total=mp.sum("v"))
    sums.to("out", mp.sinks.files(tmp_path / "out"))
    for number, (value, when) in enumerate([(1, 1), (1, 2), (2, 20), (3, 39), (4, 38)]):
        write(tmp_path / "in" / f"{number}.jsonl", [{"v": value, "at": when}])
        app.run(until="caught-up", spark=spark)
    assert [(r["window_start"], r["total"], r["final"]) for r in held(tmp_path / "out")] == [
        (0, 2, True),
        (20, 2, True),
    ]
    assert [(w["window_start"], w["total"]) for w in app.state("tens").get("all")] == [(30, 7)]


def test_a_stream_that_has_gone_quiet_closes_its_windows_by_the_clock(
    program: Callable[..., Program], tmp_path: Path
) -> None:
    write(tmp_path / "in" / "a.jsonl", [{"k": "a", "at": datetime.now(UTC).isoformat()}])
    running = program("quiet", tmp_path)
    began = time.monotonic()
    eventually(lambda: held(tmp_path / "out"), "a window that closes although no row comes")
    eventually(lambda: held(tmp_path / "told"), "a timer of the clock that fires although no row comes")
    assert time.monotonic() - began < 120
    running.send(signal.SIGTERM)
    running.succeed()
    assert [row["n"] for row in held(tmp_path / "out")] == [1]
    assert held(tmp_path / "told") == [{"k": "a", "quiet": True}]
