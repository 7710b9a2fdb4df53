"""The data source `millpond` in Spark SQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import millpond as mp
from millpond.testing.replica_suite import APP, GrowingLog


def test_a_session_of_another_kind_is_refused() -> None:
    with pytest.raises(mp.errors.InvalidUse, match=r"expected a classic SparkSession, got builtins\.str"):
        mp.register_spark_source("local")


def test_state_and_changes_are_queried_with_sql(spark: SparkSession, tmp_path: Path) -> None:
    log = GrowingLog(tmp_path / "log")
    log.send_some(4)
    mp.register_spark_source(spark)
    read = spark.read.format("millpond").option("app", APP)
    totals = read.option("step", "total").load(log.app.state_dir)
    assert totals.rdd.getNumPartitions() == log.newest.partitions == 3
    assert {row.key: row.value for row in totals.collect()} == log.state("total")
    latest = spark.read.format("millpond").options(app=APP, step="latest").load(log.app.state_dir)
    totals.createOrReplaceTempView("totals")
    latest.createOrReplaceTempView("latest")
    joined = spark.sql("select key, t.value as total, l.value.v as last from totals t join latest l using (key)")
    assert {row.key: (row.total, row.last) for row in joined.collect()} == {
        key: (total, log.state("latest")[key]["v"]) for key, total in log.state("total").items()
    }
    middle = log.batches[1]
    earlier = spark.read.format("millpond").options(app=APP, step="total", batch=middle).load(log.app.state_dir)
    assert {row.key: row.value for row in earlier.collect()} == log.state("total", middle)
    changes = spark.read.format("millpond").options(app=APP, step="total", changes_from=0, changes_to=middle)
    changed = changes.load(log.app.state_dir).groupBy("batch").count().collect()
    assert {row.batch for row in changed} == set(range(1, middle + 1))
    with pytest.raises(PySparkException, match="has no step 'totl'; it has: latest, total"):
        spark.read.format("millpond").options(app=APP, step="totl").load(log.app.state_dir)
