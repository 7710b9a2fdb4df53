"""Streams of changes on Spark: files kept by key are the state, through restarts, a rescale and a rollback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from folders import write
from pyspark.sql import SparkSession

import millpond as mp


def add_up(key: Any, row: Any, total: int) -> tuple[None, int | None]:
    return None, None if row["n"] % 7 == 0 else total + row["n"]


def totals(folder: Path, partitions: int) -> mp.App:
    app = mp.App("totals", str(folder / "state"), partitions=partitions, local_dir=str(folder / "local"))
    keyed = app.stream("rows", mp.sources.files(folder / "rows", format="jsonl"), timestamp="n").key_by("who")
    keyed.stateful_map("total", add_up, initial=0)
    keyed.window("tens", mp.tumbling(10), grace=mp.NO_GRACE).aggregate(n=mp.count(), sum=mp.sum("n"))
    app.changes("total").to("total out", mp.sinks.files(folder / "totals"))
    app.changes("tens").key_by("key").aggregate("updates", n=mp.count())
    app.changes("updates").to("updates out", mp.sinks.files(folder / "updates"))
    return app


def published(folder: Path) -> dict[Any, Any]:
    """The newest value of every key, from the files of a sink."""
    found: dict[Any, Any] = {}
    rows = [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]
    for row in sorted(rows, key=lambda row: row["batch"]):
        found[row["key"]] = row["value"]
    return {key: value for key, value in found.items() if value is not None}


def test_files_of_changes_kept_by_key_are_the_state(tmp_path: Path, spark: SparkSession) -> None:
    def run(first: int, partitions: int) -> mp.App:
        write(tmp_path / "rows" / f"{first}.jsonl", [{"who": f"w{n % 40}", "n": n} for n in range(first, first + 300)])
        app = totals(tmp_path, partitions)
        app.run(until="caught-up", spark=spark, max_rows=100)
        return app

    def check(app: mp.App) -> None:
        for step, folder in (("total", "totals"), ("updates", "updates")):
            assert published(tmp_path / folder) == dict(app.state(step).items()) != {}

    app = run(0, 3)
    check(app)
    middle = mp.open(str(tmp_path / "state"), "totals").newest
    assert middle is not None
    app = run(300, 2)
    check(app)
    app.rollback(middle.number)
    assert published(tmp_path / "totals") == dict(app.state("total").items()), "files go back"
    app = run(600, 2)
    check(app)
