"""Local stores on Spark: any worker of a host may have the next batch of a partition, whatever its store."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from folders import write
from pyspark.sql import SparkSession

import millpond as mp
from millpond.replica.lending import delete_home


def total(key: str, row: dict[str, Any], state: int) -> tuple[None, int]:
    return None, state + row["n"]


def an_app(folder: Path) -> mp.App:
    app = mp.App("stores", str(folder / "state"), partitions=4, local_dir=str(folder / "local"), store="rocksdb")
    rows = app.stream("rows", mp.sources.files(folder / "rows", format="jsonl")).key_by("key")
    rows.stateful_map("total", total, initial=0)
    rows.aggregate("count", n=mp.count(), store="memory")
    return app


def test_workers_hand_stores_over_and_readers_see_them(spark: SparkSession, tmp_path: Path) -> None:
    totals, counts = Counter[str](), Counter[str]()
    for number in range(3):
        rows: list[dict[str, Any]] = [{"key": f"k{n % 40}", "n": n} for n in range(number, 400)]
        write(tmp_path / "rows" / f"{number}.jsonl", rows)
        for row in rows:
            totals[row["key"]] += row["n"]
            counts[row["key"]] += 1
        an_app(tmp_path).run(until="caught-up", spark=spark, max_rows=150)
        assert dict(an_app(tmp_path).state("total").items()) == dict(totals)
        assert {key: value["n"] for key, value in an_app(tmp_path).state("count").items()} == dict(counts)
    assert len(list((tmp_path / "local").rglob("*%rocksdb*-of-00004"))) == 4
    delete_home(str(tmp_path / "local"))
