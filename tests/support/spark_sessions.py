"""The Spark session of a test process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from pyspark.sql import SparkSession


@contextlib.contextmanager
def spark_session() -> Iterator[SparkSession]:
    """A session as a user makes it, who has never heard of PYSPARK_PYTHON."""
    os.environ.pop("PYSPARK_PYTHON", None)
    builder = SparkSession.builder.master("local[2,4]").appName("tests")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # starts sooner; no test measures the JVM
        "spark.log.level": "OFF",  # what fails on purpose fails in words of ours
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()
