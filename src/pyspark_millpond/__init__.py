"""Registers the data source `millpond` with PySpark, which looks for packages that are named like this one."""

from millpond.runtimes.spark.data_source import MillpondSource as DefaultSource

__all__ = ["DefaultSource"]
