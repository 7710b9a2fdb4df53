"""The exchange over Spark: what is moved, what the driver is told, and how it is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millpond.runtimes.spark.exchange import DRIVER_PARTITION, Exchange
from millpond.runtimes.spark.reading import SPARK_ERRORS
from millpond.runtimes.spark.session import open_session


def read(spark: SparkSession, broken: bool = False) -> Any:
    """What two reading tasks make for three partitions and the driver."""
    context = open_session(spark).sparkContext

    def blobs(task: int, nothing: Iterable[int]) -> Iterator[tuple[int, Any]]:
        if broken:
            raise ValueError("no such file")
        for partition in range(3):
            yield partition, (task, partition, b"x" * 1000)
        yield DRIVER_PARTITION, f"task {task} is done"

    return context.parallelize(range(2), 2).mapPartitionsWithIndex(blobs)


def test_blobs_reach_their_partitions_and_what_is_said_the_driver(spark: SparkSession) -> None:
    exchange = Exchange(spark.sparkContext)
    moved = exchange.shuffle(read(spark), 3)
    assert sorted(str(header) for header in exchange.headers(moved, 2)) == ["task 0 is done", "task 1 is done"]
    found = [sorted(item for _, item in part) for part in moved.glom().collect()]
    assert found[1:] == [[(task, partition, b"x" * 1000) for task in range(2)] for partition in range(3)]


def test_the_driver_hears_why_reading_failed(spark: SparkSession) -> None:
    exchange = Exchange(spark.sparkContext)
    with pytest.raises(SPARK_ERRORS, match="no such file"):
        exchange.headers(exchange.shuffle(read(spark, broken=True), 3), 2)


def serializer_of(moved: Any) -> str:
    shuffle = moved._jrdd.rdd().dependencies().head().rdd().dependencies().head()
    name: str = shuffle.serializer().getClass().getSimpleName()
    return name


def test_no_task_makes_a_kryo_of_its_own(spark: SparkSession) -> None:
    assert serializer_of(read(spark).partitionBy(4)) == "KryoSerializer"  # or else there is nothing to spare
    assert serializer_of(Exchange(spark.sparkContext).shuffle(read(spark), 3)) == "JavaSerializer"


def test_a_spark_that_cannot_spare_it_moves_blobs_all_the_same(spark: SparkSession) -> None:
    exchange = Exchange(spark.sparkContext)
    exchange._jvm._serializer = object()  # nothing that Spark could use
    moved = exchange.shuffle(read(spark), 3)
    assert serializer_of(moved) == "KryoSerializer"
    assert [len(part) for part in moved.glom().collect()] == [2, 2, 2, 2]


def test_shuffled_blobs_stay_where_the_partitions_are(spark: SparkSession) -> None:
    exchange = Exchange(spark.sparkContext)
    together = exchange.anchor(3).union(exchange.shuffle(read(spark), 3))
    assert together.getNumPartitions() == 4, "a union must keep the partitions where they are"
    exchange.drop()
