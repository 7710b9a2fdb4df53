"""Where outputs go, on Spark."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from folders import append, by_key, held, write
from pyspark.sql import DataFrame, SparkSession

import millpond as mp
from millpond.driver import delivery as delivery_module
from millpond.driver.delivery import DeliveryWorker
from millpond.log.record import Record
from millpond.runtimes.spark.runtime import SparkRuntime
from millpond.sinks.base import Delivery

ROWS = [{"who": f"u{n % 5}", "amount": n} for n in range(100)]


def add(who: str, row: dict[str, Any], total: int) -> tuple[dict[str, Any], int]:
    total += row["amount"]
    return {"who": who, "total": total}, total


def totals(rows: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Every total of every customer, in order."""
    found: dict[str, list[int]] = {}
    for row in rows:
        mine = found.setdefault(row["who"], [])
        mine.append((mine[-1] if mine else 0) + row["amount"])
    return found


def an_app(folder: Path, sink: Any) -> mp.App:
    app = mp.App("sinks", str(folder / "state"), partitions=3, local_dir=str(folder / "local"))
    rows = app.stream("rows", mp.sources.files(folder / "in"))
    rows.key_by("who").stateful_map("total", add, initial=0).to("totals", sink)
    return app


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "in" / "a.jsonl", ROWS)
    return tmp_path


def test_files_of_json_lines_hold_every_output_once(spark: SparkSession, folder: Path) -> None:
    an_app(folder, mp.sinks.files(folder / "out")).run(until="caught-up", spark=spark, max_rows=40)
    assert by_key(held(folder / "out"), "who", "total") == totals(ROWS)
    batches = {file.name.split("-")[0] for file in (folder / "out").glob("*.jsonl")}
    assert len(batches) == 3 and all(len(batch) == 20 for batch in batches)


def test_parquet_files_hold_every_output_once(spark: SparkSession, folder: Path) -> None:
    an_app(folder, mp.sinks.files(folder / "out", format="parquet")).run(until="caught-up", spark=spark, max_rows=40)
    files = sorted((folder / "out").glob("*.parquet"))
    rows = [row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()]
    assert by_key(rows, "who", "total") == totals(ROWS)
    assert spark.read.parquet(str(folder / "out")).count() == 100


def test_a_function_in_the_driver_is_called_once_per_delivery(spark: SparkSession, folder: Path) -> None:
    calls: list[tuple[int, Delivery, list[Any]]] = []
    sink = mp.sinks.function(lambda rows, delivery: calls.append((os.getpid(), delivery, rows)))
    an_app(folder, sink).run(until="caught-up", spark=spark, max_rows=40)
    assert {pid for pid, _, _ in calls} == {os.getpid()}
    assert len({delivery.id for _, delivery, _ in calls}) == len(calls)
    assert [d.batch for _, d, _ in calls] == sorted(d.batch for _, d, _ in calls)
    assert {(d.app, d.sink) for _, d, _ in calls} == {("sinks", "totals")}
    assert by_key([row for _, _, rows in calls for row in rows], "who", "total") == totals(ROWS)


def test_a_function_in_the_workers_is_called_once_per_delivery(spark: SparkSession, folder: Path) -> None:
    def put(rows: list[Any], delivery: Delivery) -> None:
        write(folder / "taken" / f"{delivery.batch:05d}-{delivery.partition}-{os.getpid()}.jsonl", rows)

    an_app(folder, mp.sinks.function(put, where="workers")).run(until="caught-up", spark=spark, max_rows=40)
    names = [file.stem.split("-") for file in (folder / "taken").iterdir()]
    assert str(os.getpid()) not in {pid for _, _, pid in names}
    assert len({(batch, partition) for batch, partition, _ in names}) == len(names)
    assert by_key(held(folder / "taken"), "who", "total") == totals(ROWS)


def test_a_memory_sink_holds_the_rows_in_the_driver(spark: SparkSession, folder: Path) -> None:
    sink = mp.sinks.memory()
    app = an_app(folder, sink)
    app.run(until="caught-up", spark=spark, max_rows=40)
    assert by_key(sink.rows, "who", "total") == totals(ROWS)
    append(folder / "in" / "a.jsonl", ROWS)
    app.run(until="caught-up", spark=spark)
    assert by_key(sink.rows, "who", "total") == totals([*ROWS, *ROWS])


def test_a_dataframe_sink_gets_a_frame_per_batch(spark: SparkSession, folder: Path) -> None:
    batches: list[int] = []

    def save(frame: DataFrame, delivery: Delivery) -> None:
        batches.append(delivery.batch)
        frame.write.mode("overwrite").parquet(str(folder / "out" / f"batch={delivery.batch}"))

    sink = mp.sinks.dataframe(save, schema="who string, total long")
    an_app(folder, sink).run(until="caught-up", spark=spark, max_rows=40)
    assert len(batches) == 3 and batches == sorted(set(batches))
    frame = spark.read.parquet(str(folder / "out"))
    found = by_key([row.asDict() for row in frame.orderBy("batch", "total").collect()], "who", "total")
    assert found == totals(ROWS)
    assert dict(frame.dtypes)["total"] == "bigint"


def test_a_console_sink_prints_a_line_per_row(
    spark: SparkSession, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    an_app(folder, mp.sinks.console()).run(until="caught-up", spark=spark)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("totals: ")]
    assert len(lines) == 100
    assert 'totals: {"who": "u4", "total": 1030}' in lines


def test_several_sinks_get_the_same_rows(spark: SparkSession, folder: Path) -> None:
    memory = mp.sinks.memory()
    app = an_app(folder, mp.sinks.files(folder / "one"))
    letters = app.dead_letters.to("letters", memory)
    app.stream("more", mp.sources.files(folder / "in")).to("raw", mp.sinks.files(folder / "two"))
    app.run(until="caught-up", spark=spark)
    assert letters is not None and memory.rows == []
    assert by_key(held(folder / "one"), "who", "total") == totals(ROWS)
    assert sorted(held(folder / "two"), key=str) == sorted(ROWS, key=str)


@pytest.mark.parametrize("where", ["driver", "workers"])
def test_a_sink_that_is_unavailable_is_asked_again(spark: SparkSession, folder: Path, where: Any) -> None:
    def put(rows: list[Any], delivery: Delivery) -> None:
        if not (folder / "open").exists():
            (folder / "open").touch()
            raise mp.errors.Unavailable("the shop is closed", retry_after=0.2)
        write(folder / "taken" / f"{delivery.batch:05d}-{delivery.partition}.jsonl", rows)

    an_app(folder, mp.sinks.function(put, where=where)).run(until="caught-up", spark=spark)
    assert by_key(held(folder / "taken"), "who", "total") == totals(ROWS)


@pytest.mark.parametrize("where", ["driver", "workers"])
def test_a_sink_that_raises_ends_the_run_and_gets_its_rows_from_the_next(
    spark: SparkSession, folder: Path, where: Any
) -> None:
    def put(rows: list[Any], delivery: Delivery) -> None:
        if not (folder / "mended").exists():
            raise ZeroDivisionError("the sink's own fault")
        write(folder / "taken" / f"{delivery.batch:05d}-{delivery.partition}.jsonl", rows)

    app = an_app(folder, mp.sinks.function(put, where=where))
    with pytest.raises(mp.errors.StepFailed, match="ZeroDivisionError: the sink's own fault") as caught:
        app.run(until="caught-up", spark=spark)
    assert caught.value.step == "totals" and caught.value.batch is not None
    assert dict(app.state("total").items()) == {who: each[-1] for who, each in totals(ROWS).items()}
    (folder / "mended").touch()
    app.run(until="caught-up", spark=spark)
    assert by_key(held(folder / "taken"), "who", "total") == totals(ROWS)


def test_a_backlog_is_delivered_by_the_tasks_of_its_batches(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sinks in workers get what they would get of jobs of their own; a sink that is unavailable for a while, too."""
    jobs: list[int] = []
    deliver, attach = SparkRuntime.deliver, DeliveryWorker.attach

    def count(self: SparkRuntime, program: Any, state_url: str, parcels: list[Any]) -> None:
        jobs.append(parcels[0].delivery.batch)
        deliver(self, program, state_url, parcels)

    def put(rows: list[Any], delivery: Delivery) -> None:
        if delivery.batch == 5 and not (folder / "open").exists():
            (folder / "open").touch()
            raise mp.errors.Unavailable("the shop is closed", retry_after=0.2)
        write(folder / "taken" / f"{delivery.batch:05d}-{delivery.partition}.jsonl", rows)

    def attach_when_all_is_delivered(self: DeliveryWorker, record: Record) -> bool:
        self.wait()
        return attach(self, record)

    # On a slow machine the app would choose jobs, rightly.
    monkeypatch.setattr(delivery_module, "LONGEST_ATTACHED", 3600.0)
    monkeypatch.setattr(delivery_module, "LONGEST_ANNOUNCEMENT", 3600.0)
    monkeypatch.setattr(DeliveryWorker, "attach", attach_when_all_is_delivered)
    monkeypatch.setattr(SparkRuntime, "deliver", count)
    app = an_app(folder, mp.sinks.function(put, where="workers"))
    app.run(until="caught-up", spark=spark, max_rows=8)
    assert by_key(held(folder / "taken"), "who", "total") == totals(ROWS)
    assert len(jobs) < 6  # of 13 batches: the first, the one that was refused, the last


def test_a_dataframe_sink_with_a_mistake_ends_the_run(spark: SparkSession, folder: Path) -> None:
    sink = mp.sinks.dataframe(lambda frame, delivery: frame.select("no such column").collect())
    with pytest.raises(mp.errors.StepFailed, match="no such column") as caught:
        an_app(folder, sink).run(until="caught-up", spark=spark)
    assert caught.value.step == "totals"
