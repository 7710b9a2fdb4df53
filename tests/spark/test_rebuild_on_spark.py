"""A rebuild on Spark: of files, and of streaming DataFrames, whose batches Spark offers again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from folders import write
from pyspark.sql import SparkSession

import millpond as mp


def add(key: str, row: Any, total: int) -> Any:
    return {"k": key, "total": total + row["v"]}, total + row["v"]


def add_twice(key: str, row: Any, total: int) -> Any:
    return None, total + 2 * row["v"]


def app_of(folder: Path, source: Any, f: Any = add, name: str = "orders", **how: Any) -> mp.App:
    app = mp.App(name, str(folder / "state"), partitions=2, local_dir=str(folder / "local"), **how)
    rows = app.stream("rows", source, timestamp="at").key_by("k")
    rows.stateful_map("total", f, initial=0).to("out", mp.sinks.files(folder / "out" / name))
    windowed = rows.window("by ten", mp.tumbling(10), grace=mp.NO_GRACE)
    windowed.aggregate(n=mp.count(), all=mp.collect("v")).to("windows", mp.sinks.discard())
    late = windowed.late.key_by(k=lambda row: row["key"])
    late.stateful_map("late", lambda k, row, n: (None, n + 1), initial=0)
    return app


def frame(spark: SparkSession, folder: Path) -> Any:
    reader = spark.readStream.schema("k string, v long, at long").option("maxFilesPerTrigger", 1)
    return reader.json(str(folder / "in"))


def file(folder: Path, number: int, *rows: tuple[str, int, int]) -> None:
    write(folder / "in" / f"{number}.json", [{"k": k, "v": v, "at": at} for k, v, at in rows])


def state(app: mp.App, step: str = "total") -> dict[str, Any]:
    return dict(app.state(step).items())


@pytest.fixture
def place(tmp_path: Path) -> Path:
    file(tmp_path, 1, ("a", 1, 1), ("b", 2, 2))
    file(tmp_path, 2, ("a", 10, 31))
    return tmp_path


def test_a_look_with_a_wrong_function_leaves_nothing_behind(spark: SparkSession, place: Path) -> None:
    source = mp.sources.files(place / "in", format="jsonl")
    beside = app_of(place, source, name="orders~total")
    app_of(place, source).run(until="caught-up", spark=spark)
    beside.run(until="caught-up", spark=spark)
    looked = app_of(place, source, add_twice).rebuild("total", spark)
    assert {d.key: (d.live, d.rebuilt) for d in looked} == {"a": (11, 22), "b": (2, 4)}
    assert app_of(place, source).rebuild("total", spark, switch=True) == []
    assert state(app_of(place, source)) == {"a": 11, "b": 2}
    assert state(beside) == {"a": 11, "b": 2}


def test_a_frame_is_read_to_where_the_app_is_in_the_same_batches(spark: SparkSession, place: Path) -> None:
    app = app_of(place, frame(spark, place))
    app.run(until="caught-up", spark=spark)
    file(place, 3, ("a", 100, 5), ("a", 100, 3), ("b", 100, 33))
    app.run(until="caught-up", spark=spark)
    held = {step: state(app, step) for step in ("total", "by ten", "late")}
    assert held["total"] == {"a": 211, "b": 102} and held["late"] == {"a": 2}
    file(place, 4, ("a", 1000, 40))  # newer than the app
    for step in held:
        found = app_of(place, frame(spark, place)).rebuild(step, spark, switch=True)
        assert found == [] and found.unknown is None, step
    assert {step: state(app, step) for step in held} == held
    app.run(until="caught-up", spark=spark)
    assert state(app) == {"a": 1211, "b": 102} and app.verify().ok


def test_a_frame_whose_input_is_gone_is_refused(spark: SparkSession, place: Path) -> None:
    app = app_of(place, frame(spark, place))
    app.run(until="caught-up", spark=spark)
    assert state(app) == {"a": 11, "b": 2}
    (place / "in" / "1.json").unlink()
    with pytest.raises(mp.errors.InvalidUse, match=r"read 2 rows of it, and now there are 0"):
        app_of(place, frame(spark, place)).rebuild("total", spark, switch=True)
    assert state(app) == {"a": 11, "b": 2}


def test_a_frame_is_read_as_a_whole_where_the_bounds_are_gone(spark: SparkSession, place: Path) -> None:
    def app(f: Any = add) -> mp.App:
        return app_of(place, frame(spark, place), f, keep=1, compact_every=1)

    for number in range(3, 7):
        file(place, number, ("b", 1, number * 20))
    app().run(until="caught-up", spark=spark)
    file(place, 7, ("b", 5, 999))
    found = app(add_twice).rebuild("total", spark, switch=True)
    assert found.unknown is not None
    assert {d.key: d.rebuilt for d in found} == {"a": 22, "b": 12}
    app().run(until="caught-up", spark=spark)
    assert state(app()) == {"a": 22, "b": 17}
    shutil.rmtree(place / "local")
    assert state(app()) == {"a": 22, "b": 17}
