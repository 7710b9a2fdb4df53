"""Spark: the only package that imports pyspark, and only its public API."""

from millpond.runtimes.spark.runtime import SparkRuntime as SparkRuntime
