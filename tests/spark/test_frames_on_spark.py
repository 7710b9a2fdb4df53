"""What Spark does for a streaming DataFrame: how rows become Arrow, and how its checkpoint is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import millpond as mp
from millpond.runtimes.spark import arrow_messages, jvm
from millpond.runtimes.spark.arrow_messages import MESSAGE_ROWS, ArrowMessages, combine_batches, read_messages
from millpond.runtimes.spark.jvm import checkpoint_url
from millpond.runtimes.spark.session import open_session
from millpond.runtimes.spark.streaming_frames import StreamingFrames

SCHEMA = (
    "id long, flag boolean, name string, raw binary, price decimal(10,2), at timestamp, plain timestamp_ntz, day date, "
    "tags array<string>, place struct<city: string, zip: int>, counts map<string, int>, none int"
)


def odd_rows(spark: SparkSession) -> DataFrame:
    """Rows of many types in three partitions, of which one is empty."""
    at = datetime(2026, 1, 2, 3, 4, 5, 678_901)
    row = (True, "Zoë", b"\x00\xff", Decimal("12.50"), at, at, at.date(), ["x", None], ("Aix", 7), {"a": 1}, None)
    rows = [(1, *row), (2, *[None] * len(row)), (3, *row)]
    return spark.createDataFrame(rows, SCHEMA).repartition(1).union(spark.createDataFrame([], SCHEMA).repartition(2))


def tables_of(messages: ArrowMessages) -> list[pa.Table]:
    """The rows of each partition that has some."""
    schema = messages.schema

    def as_pickled(index: int, parts: Iterable[bytes]) -> Iterator[pa.Table]:
        yield from combine_batches(read_messages(parts, schema))

    return messages.rdd.mapPartitionsWithIndex(as_pickled).collect()


def without_the_calls(frame: DataFrame, rows: int) -> None:
    return None


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
def test_rows_become_the_same_arrow_columns_as_in_map_in_arrow(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    open_session(spark)
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = odd_rows(spark)
        messages = ArrowMessages.of(frame)
        assert messages.schema is not None, "this Spark has the calls"
        assert messages.rdd.getNumPartitions() == frame.rdd.getNumPartitions()
        [direct] = tables_of(messages)
        monkeypatch.setattr(arrow_messages, "convert_to_arrow", without_the_calls)
        messages = ArrowMessages.of(frame)
        assert messages.schema is None
        [by_way_of_python] = tables_of(messages)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert direct.num_rows == 3
    assert direct.schema.field("at").type == pa.timestamp("us", zone)
    assert direct.schema == by_way_of_python.schema
    assert direct.to_pylist() == by_way_of_python.to_pylist()


def test_many_rows_become_messages_of_few_and_keep_their_order(spark: SparkSession) -> None:
    open_session(spark)
    messages = ArrowMessages.of(spark.range(0, 2 * MESSAGE_ROWS + 1, 1, 1))
    assert messages.rdd.count() == 3
    [table] = tables_of(messages)
    assert table.column("id").to_pylist() == list(range(2 * MESSAGE_ROWS + 1))
    assert table.column("id").num_chunks == 1


def test_a_column_that_arrow_does_not_have_is_left_to_spark(spark: SparkSession) -> None:
    frame = spark.sql("SELECT named_struct('a', 1, 'a', 2) AS twice")  # a struct with two fields of one name
    assert jvm.convert_to_arrow(frame, 10) is None


def count_files(spark: SparkSession, folder: Path) -> mp.App:
    """An app over a streaming DataFrame with one file a batch."""
    frame = spark.readStream.schema("k string").option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    app = mp.App("frames", state_dir=str(folder / "state"), local_dir=str(folder / "local"), partitions=2)
    app.stream("rows", frame).key_by("k").aggregate("n", n=mp.count())
    return app


def run_over_files(spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run an app over two files, and return what Spark's checkpoint had in its folder of offsets in the end."""
    (folder / "in").mkdir()
    for number in range(2):
        (folder / "in" / f"{number}.json").write_text('{"k": "a"}\n')
    found: list[str] = []
    stop = StreamingFrames.stop

    def look(self: StreamingFrames) -> None:
        if self._folder is not None:
            found.extend(sorted(file.name for file in Path(self._folder).glob("*/offsets/*")))
        stop(self)

    monkeypatch.setattr(StreamingFrames, "stop", look)
    app = count_files(spark, folder)
    app.run(until="caught-up", spark=spark)
    assert dict(app.state("n").items()) == {"a": {"n": 2}}
    return found


def test_a_checkpoint_is_written_without_the_files_that_cost_processes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_over_files(spark, tmp_path, monkeypatch) == ["0", "1"]
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    assert hadoop.get(f"fs.{jvm.CHECKPOINT_SCHEME}.impl") is None, "the session keeps its settings"


def test_a_spark_without_hive_writes_its_checkpoint_all_the_same(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jvm, "CHECKPOINT_SCHEME", "missing")
    monkeypatch.setattr(jvm, "CHECKPOINT_FILES", "org.example.NoSuchFileSystem")
    assert checkpoint_url(spark, tmp_path) == str(tmp_path)
    assert run_over_files(spark, tmp_path, monkeypatch) == [".0.crc", ".1.crc", "0", "1"]
