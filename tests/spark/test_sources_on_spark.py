"""Where rows come from, on Spark: files that keep growing, streaming DataFrames, sources of the user's own."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from folders import append, held, write
from processes import Program, eventually
from pyspark.sql import DataFrame, SparkSession

import millpond as mp
from millpond.driver.loop import Settings
from millpond.sources.base import Chunk, Limit, Split


@dataclass
class Paid:
    who: str
    amount: int


def add(who: str, row: Any, total: int) -> tuple[dict[str, Any], int]:
    total += row["amount"] if isinstance(row, dict) else row.amount
    return {"who": who, "total": total}, total


def an_app(folder: Path) -> mp.App:
    return mp.App("totals", str(folder / "state"), partitions=2, local_dir=str(folder / "local"))


def totals_of(folder: Path, source: Any, type: Any = None) -> mp.App:
    app = an_app(folder)
    rows = app.stream("rows", source, type=type)
    rows.key_by("who").stateful_map("total", add, initial=0).to("out", mp.sinks.files(folder / "out"))
    return app


def payments(first: int, last: int) -> list[dict[str, Any]]:
    return [{"who": f"u{n % 7}", "amount": n} for n in range(first, last)]


def folded(rows: list[dict[str, Any]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in rows:
        found[row["who"]] = found.get(row["who"], 0) + row["amount"]
    return found


def totals(app: mp.App) -> dict[str, int]:
    return dict(app.state("total").items())


# --- files ---


def as_csv(file: Path, rows: list[dict[str, Any]]) -> None:
    pyarrow.csv.write_csv(pa.Table.from_pylist(rows), file)


def as_parquet(file: Path, rows: list[dict[str, Any]]) -> None:
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), file, row_group_size=100)


@pytest.mark.parametrize(
    ("write_file", "ending"),
    [(write, "jsonl"), (as_csv, "csv"), (as_parquet, "parquet")],
    ids=["jsonl", "csv", "parquet"],
)
def test_a_folder_that_grows_between_runs_is_read_once(
    spark: SparkSession, tmp_path: Path, write_file: Callable[[Path, list[Any]], None], ending: str
) -> None:
    (tmp_path / "in").mkdir()
    seen: list[dict[str, Any]] = []
    for number in range(3):
        rows = payments(number * 300, number * 300 + 300)
        write_file(tmp_path / "in" / f"{number}.{ending}", rows)
        seen += rows
        app = totals_of(tmp_path, mp.sources.files(tmp_path / "in"), Paid if ending == "csv" else None)
        app.run(until="caught-up", spark=spark, max_rows=200)
        assert totals(app) == folded(seen)
    assert len(held(tmp_path / "out")) == len(seen)


def test_lines_appended_to_a_file_are_read_when_they_are_whole(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "in" / "a.jsonl"
    write(file, payments(0, 10))
    app = totals_of(tmp_path, mp.sources.files(tmp_path / "in"))
    app.run(until="caught-up", spark=spark)
    with open(file, "a") as opened:
        opened.write('{"who": "u0", "amo')
    app.run(until="caught-up", spark=spark)
    assert totals(app) == folded(payments(0, 10))
    with open(file, "a") as opened:
        opened.write('unt": 1000}\n')
    append(file, payments(10, 20))
    app.run(until="caught-up", spark=spark)
    assert totals(app) == folded([*payments(0, 20), {"who": "u0", "amount": 1000}])


# --- streaming DataFrames ---


def json_frame(spark: SparkSession, folder: Path, files_per_batch: int = 1) -> DataFrame:
    reader = spark.readStream.schema("who string, amount long").option("maxFilesPerTrigger", files_per_batch)
    return reader.json(str(folder))


def test_a_streaming_dataframe_goes_on_from_the_state_dir_alone(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.streaming.fileSource.log.compactInterval", "3")  # so that its log is compacted twice
    seen: list[dict[str, Any]] = []
    for number in range(7):
        rows = payments(number * 50, number * 50 + 50)
        write(tmp_path / "in" / f"{number}.json", rows)
        seen += rows
        if number in (2, 3, 6):
            app = totals_of(tmp_path, json_frame(spark, tmp_path / "in"))
            app.run(until="caught-up", spark=spark)
            assert totals(app) == folded(seen)
            shutil.rmtree(tmp_path / "local")
            # Another machine: the same files below the same path is all that it has.
            shutil.move(tmp_path / "state", tmp_path / "moved")
            shutil.copytree(tmp_path / "moved", tmp_path / "state")
            shutil.rmtree(tmp_path / "moved")
    newest = mp.open(str(tmp_path / "state"), "totals").newest
    assert newest is not None and newest.spark["rows"].batch == 6
    assert len(held(tmp_path / "out")) == len(seen)
    spark.conf.unset("spark.sql.streaming.fileSource.log.compactInterval")


class Pulled(BaseException):
    """The plug."""


@pytest.mark.parametrize(
    "point", [("compute", "after"), ("commit", "before"), ("commit", "during"), ("acknowledge", "before")], ids=" ".join
)
def test_what_spark_was_not_told_is_not_counted_again(
    spark: SparkSession, tmp_path: Path, point: tuple[str, str]
) -> None:
    write(tmp_path / "in" / "0.json", payments(0, 50))
    write(tmp_path / "in" / "1.json", payments(50, 100))
    passed = []

    def pull(step: str, when: str) -> None:
        if (step, when) == point:
            passed.append(point)
            if len(passed) == 2:  # in the second batch
                raise Pulled

    settings = Settings(until="caught-up")
    with pytest.raises(Pulled):
        mp.lowlevel.run_with(totals_of(tmp_path, json_frame(spark, tmp_path / "in")), settings, spark, pull)
    write(tmp_path / "in" / "2.json", payments(100, 150))
    app = totals_of(tmp_path, json_frame(spark, tmp_path / "in"))
    app.run(until="caught-up", spark=spark)
    assert totals(app) == folded(payments(0, 150))
    assert len(held(tmp_path / "out")) == 150


def test_sparks_own_rate_source_gives_every_row_once_over_two_runs(spark: SparkSession, tmp_path: Path) -> None:
    def build() -> mp.App:
        app = an_app(tmp_path)
        frame = spark.readStream.format("rate").option("rowsPerSecond", 50).load()
        keyed = app.stream("ticks", frame).key_by(parity=lambda row: row["value"] % 2)
        keyed.aggregate("seen", n=mp.count(), last=mp.last("value")).to("counts", mp.sinks.memory())
        keyed.map(lambda row: row["value"]).to("out", mp.sinks.files(tmp_path / "out"))
        return app

    for _ in range(2):
        before = len(held(tmp_path / "out"))
        app = build()
        app.start(spark=spark, every="100ms")
        eventually(lambda: len(held(tmp_path / "out")) > before + 50, "rows of the rate source")  # noqa: B023
        app.stop()
    found = held(tmp_path / "out")
    assert sorted(found) == list(range(len(found)))
    assert {parity: state["n"] for parity, state in app.state("seen").items()} == {
        parity: sum(n % 2 == parity for n in found) for parity in (0, 1)
    }


def test_two_dataframes_and_a_folder_meet_in_one_app(spark: SparkSession, tmp_path: Path) -> None:
    for name, first in (("one", 0), ("two", 100), ("three", 200)):
        write(tmp_path / name / "a.json", payments(first, first + 50))
    app = an_app(tmp_path)
    one = app.stream("one", json_frame(spark, tmp_path / "one"))
    two = app.stream("two", json_frame(spark, tmp_path / "two").repartition(3))
    three = app.stream("three", mp.sources.files(tmp_path / "three", format="jsonl"))
    together = one.union(two, three).key_by("who").stateful_map("total", add, initial=0)
    together.to("out", mp.sinks.files(tmp_path / "out"))
    app.run(until="caught-up", spark=spark)
    seen = [*payments(0, 50), *payments(100, 150), *payments(200, 250)]
    assert totals(app) == folded(seen)
    for name in ("one", "two", "three"):
        write(tmp_path / name / "b.json", payments(300, 310))
        seen += payments(300, 310)
    app.run(until="caught-up", spark=spark)
    assert totals(app) == folded(seen)
    assert len(held(tmp_path / "out")) == len(seen)


def test_a_dataframes_columns_become_the_values_that_python_has(spark: SparkSession, tmp_path: Path) -> None:
    write(
        tmp_path / "in" / "a.json",
        [{"k": "a", "at": "2026-01-02T03:04:05Z", "price": "12.50", "tags": ["x", "y"], "place": {"city": "Aix"}}],
    )
    schema = "k string, at timestamp, price decimal(10,2), tags array<string>, place struct<city: string>, none int"
    frame = spark.readStream.schema(schema).json(str(tmp_path / "in"))
    app = an_app(tmp_path)
    app.stream("rows", frame).key_by("k").stateful_map("kept", lambda k, row, _: (None, row), initial=None)
    app.run(until="caught-up", spark=spark)
    assert app.state("kept").get("a") == {
        "k": "a",
        "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "price": Decimal("12.50"),
        "tags": ["x", "y"],
        "place": {"city": "Aix"},
        "none": None,
    }


def test_a_dataframe_with_state_of_sparks_own_has_batches_without_rows(spark: SparkSession, tmp_path: Path) -> None:
    write(
        tmp_path / "in" / "a.json", [{"k": "a", "at": "2026-01-02T03:00:00Z"}, {"k": "b", "at": "2026-01-02T03:09:00Z"}]
    )
    frame = spark.readStream.schema("k string, at timestamp").json(str(tmp_path / "in"))
    windows = frame.withWatermark("at", "1 minute").groupBy("k", "at").count()  # "a" is done when "b" has come
    app = an_app(tmp_path)
    app.stream("rows", windows).key_by("k").aggregate("n", n=mp.count())
    app.run(until="caught-up", spark=spark)
    assert dict(app.state("n").items()) == {"a": {"n": 1}}


# --- the user's own ---


class Numbers:
    """The numbers below a limit, in two lanes: a source as a user writes it."""

    def __init__(self, below: int) -> None:
        self.below = below

    def plan(self, position: Mapping[str, Any], limit: Limit, now: float) -> Sequence[Split]:
        splits = []
        for lane in range(2):
            start = position.get(str(lane), lane)
            stop = min(self.below, start + limit.rows)
            if start < stop:
                splits.append(Split(str(lane), start, stop, partition=str(lane), weight=1 << 20))
        return splits

    def read(self, split: Split) -> Iterator[Chunk]:
        for n in range(split.start, split.stop, 2):
            yield Chunk([{"who": f"u{n % 7}", "amount": n}], n + 2)


def test_a_source_of_the_users_own_is_read_by_the_workers(spark: SparkSession, tmp_path: Path) -> None:
    app = totals_of(tmp_path, Numbers(200))
    app.run(until="caught-up", spark=spark, max_rows=60)
    assert totals(app) == folded(payments(0, 200))
    app = totals_of(tmp_path, Numbers(300))
    app.run(until="caught-up", spark=spark, max_rows=60)
    assert totals(app) == folded(payments(0, 300))
    assert len(held(tmp_path / "out")) == 300


def test_rows_of_one_key_come_in_the_order_of_the_source(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(4):
        rows = [{"who": f"u{n % 3}", "n": n} for n in range(number * 3000, number * 3000 + 3000)]
        write(tmp_path / "in" / f"{number}.jsonl", rows)

    def rising(who: str, row: dict[str, Any], last: int) -> tuple[None, int]:
        assert row["n"] == (last + 3 if last >= 0 else int(who[1])), f"{row['n']} after {last}"
        return None, row["n"]

    app = an_app(tmp_path)
    app.stream("rows", mp.sources.files(tmp_path / "in")).key_by("who").stateful_map("last", rising, initial=-1)
    app.run(until="caught-up", spark=spark, max_rows=5000)
    assert dict(app.state("last").items()) == {"u0": 11997, "u1": 11998, "u2": 11999}


def test_modules_beside_a_script_and_classes_in_it_reach_the_workers(
    program: Callable[..., Program], tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    write(tmp_path / "in" / "a.jsonl", [{"who": "ann", "amount": 3}, {"who": "bob", "amount": 4}])
    program("own_types", tmp_path, cwd=elsewhere).succeed()
    append(tmp_path / "in" / "a.jsonl", [{"who": "ann", "amount": 5}])
    said = program("own_types", tmp_path, cwd=elsewhere).succeed()
    assert "ann Account(owner='ann', spent=8, payments=[Paid(who='ann', amount=3), Paid(who='ann', amount=5)])" in said
    assert "bob Account(owner='bob', spent=4, payments=[Paid(who='bob', amount=4)])" in said
    assert sorted(row["label"] for row in held(tmp_path / "out")) == ["<ann: 3>", "<ann: 8>", "<bob: 4>"]


def test_a_source_that_stands_still_costs_no_commits(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.jsonl", payments(0, 10))
    app = totals_of(tmp_path, mp.sources.files(tmp_path / "in"))
    app.start(spark=spark, every="50ms")
    eventually(lambda: len(held(tmp_path / "out")) == 10, "ten rows")
    newest = mp.open(str(tmp_path / "state"), "totals").newest
    time.sleep(1)
    assert mp.open(str(tmp_path / "state"), "totals").newest == newest
    app.stop()
