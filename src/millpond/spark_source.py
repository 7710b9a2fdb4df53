"""`mp.register_spark_source`: makes the data source `millpond` known to a Spark session."""

from __future__ import annotations

from typing import Any


def register_spark_source(spark: Any) -> None:
    """Let a Spark session read state: `spark.read.format("millpond").options(app=…, step=…).load(state_dir)`.

    Spark finds the data source by itself if the Python that it starts has Millpond, as PYSPARK_PYTHON says. Otherwise
    call this once per session: the session then starts the Python of this process, unless PYSPARK_PYTHON is set.

    >>> import millpond as mp
    >>> def totals(spark):
    ...     mp.register_spark_source(spark)
    ...     return spark.read.format("millpond").options(app="orders", step="total").load("state")
    """
    from millpond.runtimes.spark.data_source import register

    register(spark)
