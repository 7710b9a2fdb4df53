"""What is faster through the JVM than through PySpark's public API. Each has a fallback for a Spark that differs."""

from __future__ import annotations

import contextlib
import logging
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext
from pyspark.errors import PySparkException
from pyspark.serializers import BatchedSerializer, CPickleSerializer, NoOpSerializer
from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("millpond")

# What a call raises that this version of Spark does not have, or that it refuses.
_DIFFERS = (Py4JError, PySparkException, AttributeError, TypeError)


class JvmShuffle:
    """Shortcuts for a shuffle. Where Spark is built differently, they do nothing and the public API is used."""

    def __init__(self, context: SparkContext) -> None:
        self._spark: Any = context
        self._serializer: Any = None

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


class JvmHosts:
    """The executors of a session, and RDDs whose partitions prefer chosen hosts.

    PySpark's API has no call for either. Where Spark is built differently, there are no hosts to choose. That is logged
    once, and partitions are where Spark happens to put them.
    """

    def __init__(self, context: SparkContext) -> None:
        self._spark: Any = context
        self._own: str | None = None  # the driver's entry among the executors
        self._can_choose = True
        self._local: list[str] | None = None  # in local mode the driver is the only executor

    @property
    def has_hosts(self) -> bool:
        """Whether tasks can be sent to chosen hosts; known after `executors` was called."""
        return self._can_choose and self._local is None

    def executors(self) -> list[str]:
        """Return the executors that are alive, each as `host:port`, in order; empty if Spark does not say."""
        if self._local is not None:
            return self._local
        if not self._can_choose:
            return []
        context = self._spark._jsc
        try:
            if self._own is None:
                known = context.sc().statusStore().executorList(True)
                found = [known.apply(at) for at in range(known.size())]
                self._own = next((str(one.hostPort()) for one in found if one.id() == "driver"), None)
                if self._own is None:  # Spark has not noted its own driver yet
                    return []
                if context.isLocal():
                    self._local = [self._own]
                    return self._local
            names = str(context.sc().getExecutorMemoryStatus().keys().mkString(" ")).split()
        except _DIFFERS as error:
            return self._give_up(error)
        return sorted(name for name in names if name != self._own)

    def placed(self, values: Sequence[Any], hosts: Sequence[str | None]) -> RDD[Any] | None:
        """Return an RDD with one value in each partition, which prefers a host; None if this Spark cannot do that."""
        if not self._can_choose:
            return None
        try:
            jvm = self._spark._jvm
            pairs, as_scala = jvm.java.util.ArrayList(), jvm.scala.jdk.javaapi.CollectionConverters.asScala
            for value, host in zip(values, hosts, strict=True):
                names = jvm.java.util.ArrayList()
                if host is not None:
                    names.add(host)
                pairs.add(jvm.scala.Tuple2(bytearray(pickle.dumps([value], 5)), as_scala(names).toSeq()))
            tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
            made = self._spark._jsc.sc().makeRDD(as_scala(pairs).toSeq(), tag)
            return RDD(made.toJavaRDD(), self._spark, BatchedSerializer(CPickleSerializer()))  # type: ignore[no-untyped-call]
        except _DIFFERS as error:
            self._give_up(error)
            return None

    def _give_up(self, error: BaseException) -> list[str]:
        if self._spark._jsc is not None and self._can_choose:
            self._can_choose = False
            log.warning("this Spark cannot run tasks on chosen hosts, and partitions are where it puts them: %s", error)
        return []


def convert_to_arrow(frame: DataFrame, rows: int) -> tuple[RDD[bytes], bytes] | None:
    """Return the rows of a DataFrame as Arrow messages of at most so many rows, and their schema as one more message.

    None if this Spark does not have these calls, or cannot convert a column.
    """
    with contextlib.suppress(*_DIFFERS):
        frame_in_jvm: Any = frame._jdf
        conf = frame_in_jvm.sparkSession().sessionState().conf()
        zone, large = conf.sessionLocalTimeZone(), conf.arrowUseLargeVarTypes()
        context: Any = frame.sparkSession.sparkContext
        schema = context._jvm.org.apache.spark.sql.util.ArrowUtils.toArrowSchema(
            frame_in_jvm.schema(), zone, True, large, False
        )
        messages = frame_in_jvm.toArrowBatchRdd(rows, zone, True, large).toJavaRDD()
        return RDD(messages, context, NoOpSerializer()), bytes(schema.serializeAsMessage())
    return None


CHECKPOINT_SCHEME = "millpond"  # of the URLs under which Spark's checkpoints are written
CHECKPOINT_FILES = "org.apache.hadoop.fs.ProxyLocalFileSystem"


def checkpoint_url(spark: SparkSession, folder: Path) -> str:
    """Return a URL of a local folder under which Spark writes the files of a checkpoint faster.

    Under `file:` Spark writes them through Hadoop's `FileContext`, which starts ten processes (`chmod`, `readlink`) for
    each file, thirty for each batch. Under a scheme without a `FileContext` it creates and renames them through a
    `FileSystem`, and this one starts a single process. It is Hive's proxy for the local file system, put into Hadoop's
    cache of file systems; no setting of the session is changed.

    The folder must have one user, because such a rename may replace a file. The plain path if this Spark has no Hive,
    or has other machines, whose file systems do not know the scheme.
    """
    with contextlib.suppress(*_DIFFERS):
        context: Any = spark.sparkContext
        if context._jsc.isLocal():
            hadoop = context._jvm.org.apache.hadoop
            settings = hadoop.conf.Configuration(context._jsc.hadoopConfiguration())
            settings.set(f"fs.{CHECKPOINT_SCHEME}.impl", CHECKPOINT_FILES)
            path = hadoop.fs.Path(f"{CHECKPOINT_SCHEME}://{folder}")
            files = path.getFileSystem(settings)
            files.setWriteChecksum(False)  # one more file, and one more process
            if files.exists(path):
                return str(path.toString())
    return str(folder)
