"""Spark: the only package that imports pyspark; what is not in its public API is in `jvm`."""

from millpond.runtimes.spark.runtime import SparkRuntime as SparkRuntime
