"""What is faster through the JVM than through PySpark's public API. Each has a fallback for a Spark that differs."""

from __future__ import annotations

import contextlib
from typing import Any

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext
from pyspark.sql import DataFrame

_DIFFERS = (Py4JError, AttributeError, TypeError)  # what a call raises that this version of Spark does not have


class JvmShuffle:
    """Shortcuts for a shuffle. Where Spark is built differently, they do nothing and the public API is used."""

    def __init__(self, context: SparkContext) -> None:
        self._spark: Any = context
        self._serializer: Any = None

    def shuffle_directly(self, blobs: DataFrame, slots: int, partitioner: int) -> tuple[Any, int] | None:
        """Shuffle the rows of a DataFrame without a second Python worker, and return the Java RDD and its tasks.

        As a Python RDD the rows would pass through one more worker first. `partitioner` identifies the Python function
        by which Spark compares partitioners. None if this Spark does not have these calls.
        """
        with contextlib.suppress(*_DIFFERS):
            jvm = self._spark._jvm
            items = getattr(blobs._jdf, "as")(jvm.org.apache.spark.sql.Encoders.BINARY()).rdd()
            pairs = jvm.PairwiseRDD(items).asJavaPairRDD()
            values = jvm.PythonRDD.valueOfPair(pairs.partitionBy(jvm.PythonPartitioner(slots, partitioner)))
            return values, items.getNumPartitions()
        return None

    def use_java_serializer(self, shuffled: RDD[Any]) -> None:
        """Let Java's own serializer write the blobs of a shuffle.

        Spark chooses Kryo for byte arrays and creates a Kryo for every task, which is half of what the task costs the
        JVM. Without these calls Spark keeps its choice.
        """
        with contextlib.suppress(*_DIFFERS):
            if self._serializer is None:
                # each blob is forgotten as soon as it is written
                conf = self._spark._jsc.sc().conf().clone().set("spark.serializer.objectStreamReset", "1")
                self._serializer = self._spark._jvm.org.apache.spark.serializer.JavaSerializer(conf)
            shuffled._jrdd.rdd().dependencies().head().rdd().setSerializer(self._serializer)
