"""A savepoint restored on Spark: windows and joins go on in the order of arrival."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from folders import held, write
from pyspark.sql import SparkSession

import millpond as mp

KEYS = [f"k{n}" for n in range(5)]


def app_of(folder: Path, name: str) -> mp.App:
    app = mp.App(name, str(folder / f"state-{name}"), partitions=3, local_dir=str(folder / "local"))
    left, right = (
        app.stream(side, mp.sources.files(folder / side), timestamp="t").key_by("k") for side in ("left", "right")
    )
    kept = left.window("kept", mp.session(50), grace=0).aggregate(all=mp.collect("v"), last=mp.last("v"))
    kept.to("sessions", mp.sinks.files(folder / "sessions"))
    pairs = left.join_interval("near", right, before=0, after=50, grace=0, merge=lambda a, b: [a["k"], a["v"], b["v"]])
    pairs.to("pairs", mp.sinks.files(folder / "pairs"))
    return app


def test_rows_of_equal_key_and_time_survive_a_restore(spark: SparkSession, tmp_path: Path) -> None:
    def run(name: str, *, left: int, right: int, t: int = 10) -> None:
        for side, v in {"left": left, "right": right}.items():
            write(tmp_path / side / f"{v:03}.jsonl", [{"k": k, "t": t, "v": v} for k in KEYS])
        app_of(tmp_path, name).run(until="caught-up", spark=spark)

    for v in range(3):
        run("first", left=v, right=100 + v)
    app_of(tmp_path, "first").savepoint(tmp_path / "saved")
    app_of(tmp_path, "second").restore(tmp_path / "saved")
    run("second", left=3, right=103)
    shutil.rmtree(tmp_path / "local")
    run("second", left=4, right=104)
    run("second", left=5, right=105, t=1000)

    sessions: dict[str, Any] = {row["k"]: (row["all"], row["last"]) for row in held(tmp_path / "sessions")}
    assert sessions == {k: ([0, 1, 2, 3, 4], 4) for k in KEYS}
    pairs = sorted(held(tmp_path / "pairs"))
    expected = [[k, a, b] for k in KEYS for a in range(5) for b in range(100, 105)] + [[k, 5, 105] for k in KEYS]
    assert pairs == sorted(expected)
