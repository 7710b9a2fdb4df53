"""The exchange: Spark moves blobs from reading tasks to the partitions that own their keys.

Spark never sees a row. It schedules the tasks, moves a few blobs for each, and brings back pointers. The
anchor keeps every partition where its replica is: a cached RDD has preferred locations, and a union of
RDDs with the same partitioner prefers where its parents are.
"""

from __future__ import annotations

import contextlib
import gc
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext, StorageLevel, TaskContext
from pyspark.core.rdd import Partitioner
from pyspark.serializers import BatchedSerializer, CPickleSerializer
from pyspark.sql import DataFrame

from millpond.messages import BatchContext, ExchangePiece, KeyedResult, PlannedSplit, ReadHeader
from millpond.runtimes.spark.shipping import Shipped
from millpond.task.keyed_task import KeyedTask
from millpond.task.read_task import read_task

LATE_ATTEMPT = 2  # a task that has died twice may have died of its replica

DRIVER = -1  # the partition of what is said to the driver: the first of Spark's, so that it can be had alone


_PICKLED: Any = BatchedSerializer(CPickleSerializer())  # type: ignore[no-untyped-call]


def own(partition: int) -> int:
    """Which of Spark's partitions a blob goes to. One function of the module: Spark compares partitioners by it."""
    return partition + 1


def paired(partition: int, item: Any) -> tuple[bytes, bytes]:
    """A blob as Spark's own Python side would hand it to a shuffle: where it goes, and a list of what goes there."""
    return own(partition).to_bytes(8, "big"), pickle.dumps([(partition, item)], 5)


def _unpaired(rows: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    for place, row in enumerate(rows):
        if place % 2:
            yield from pickle.loads(row.item)


def _as_is(items: Iterable[Any]) -> Iterable[Any]:
    return items


@dataclass(frozen=True)
class SparkReadTask:
    """One reading task per Spark partition."""

    shipped: Shipped
    context: BatchContext
    groups: list[list[PlannedSplit]]

    def __call__(self, index: int, nothing: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        with quiet():
            for partition, item in read_task(self.shipped.program(), self.context, index, self.groups[index]):
                yield partition, item
                if partition == 0 and isinstance(item, ReadHeader):
                    yield DRIVER, item  # if it asks


@dataclass(frozen=True)
class SparkKeyedTask:
    """One keyed task per Spark partition."""

    shipped: Shipped
    context: BatchContext
    stage: int
    carried: list[dict[int, list[ExchangePiece]]]

    def __call__(self, index: int, items: Iterable[tuple[int, Any]]) -> Iterator[KeyedResult]:
        mine = [item for _, item in items if item is not None]
        task = TaskContext.get()
        rebuild = task is not None and task.attemptNumber() >= LATE_ATTEMPT
        partition = index - own(0)
        carried = self.carried[partition] if self.carried else {}
        with quiet():
            program = self.shipped.program()
            keyed_task = KeyedTask(program, self.context, self.stage, partition)
            yield keyed_task.run(mine, carried, rebuild=rebuild)


class quiet:
    """No garbage collection within a task: its objects live about as long as it does.

    Spark's worker collects all garbage after every task, which looks at every object that is there: the modules that
    are loaded, and what a task has left for the next. So what is there at the end of a task is looked at once, and
    then passed over; now and then all of it is looked at again.
    """

    ALL = 1000  # tasks of this process
    _tasks = 0

    def __enter__(self) -> None:
        gc.disable()

    def __exit__(self, *_: object) -> None:
        quiet._tasks += 1
        if quiet._tasks % quiet.ALL == 0:
            gc.unfreeze()
        gc.collect()
        gc.freeze()
        gc.enable()


class Exchange:
    """The anchor of an app's partitions, and the jobs that run over it."""

    def __init__(self, context: SparkContext) -> None:
        self._spark = context
        self._anchor: RDD[tuple[int, Any]] | None = None
        self._cores = 0
        self._partitions = 0
        self._checked = False
        self._readers: dict[int, RDD[int]] = {}
        self._serializer: Any = None

    def read(self, task: SparkReadTask) -> RDD[tuple[int, Any]]:
        """The blobs of reading tasks. What they are to read travels with the task: an RDD of it for each batch
        would cost a tenth of a small one.
        """
        count = len(task.groups)
        if count not in self._readers:
            self._readers[count] = self._spark.parallelize(range(count), count)
        return self._readers[count].mapPartitionsWithIndex(task)

    def anchor(self, partitions: int) -> RDD[tuple[int, Any]]:
        """One small element per partition, cached where the partition lives; laid anew when the cluster changes."""
        cores = self._spark.defaultParallelism
        if self._anchor is None or (cores, partitions) != (self._cores, self._partitions):
            self.drop()
            slots = own(partitions)
            pairs = self._spark.parallelize([(p, None) for p in range(DRIVER, partitions)], slots)
            self._anchor = pairs.partitionBy(slots, own).persist(StorageLevel.MEMORY_AND_DISK)
            self._anchor.count()
            self._cores, self._partitions = cores, partitions
        return self._anchor

    def moved(self, blobs: RDD[tuple[int, Any]], partitions: int) -> RDD[tuple[int, Any]]:
        """Blobs on their way to their partitions."""
        moved = blobs.partitionBy(own(partitions), own)
        self._spare_kryo(moved)
        return moved

    def moved_frame(self, blobs: DataFrame, partitions: int) -> tuple[RDD[tuple[int, Any]], int]:
        """The same for what `paired` has made, as the rows of a DataFrame; and the number of tasks that make it."""
        found = self._straight(blobs, own(partitions))
        if found is not None:
            return found
        rows = blobs.rdd.mapPartitions(_unpaired)
        return self.moved(rows, partitions), rows.getNumPartitions()

    def _straight(self, blobs: DataFrame, slots: int) -> tuple[RDD[tuple[int, Any]], int] | None:
        """From the worker that made them to the shuffle: as an RDD of Python's they would go through another first.
        Nothing where Spark is made otherwise.
        """
        spark: Any = self._spark
        with contextlib.suppress(Py4JError, AttributeError, TypeError):
            items = getattr(blobs._jdf, "as")(spark._jvm.org.apache.spark.sql.Encoders.BINARY()).rdd()
            pairs = spark._jvm.PairwiseRDD(items).asJavaPairRDD()
            values = spark._jvm.PythonRDD.valueOfPair(pairs.partitionBy(spark._jvm.PythonPartitioner(slots, id(own))))
            moved: RDD[tuple[int, Any]] = RDD(values, spark, _PICKLED)
            moved.partitioner = Partitioner(slots, own)
            self._spare_kryo(moved)
            return moved, items.getNumPartitions()
        return None

    def _spare_kryo(self, moved: RDD[tuple[int, Any]]) -> None:
        """Let Java's own serializer write the blobs. Spark picks Kryo for what is bytes already and makes one for
        every task, which is half of what the task costs its JVM. That is all: a Spark without these calls does as it
        likes.
        """
        spark: Any = self._spark
        with contextlib.suppress(Py4JError, AttributeError, TypeError):
            if self._serializer is None:
                # each blob is forgotten as soon as it is written
                conf = spark._jsc.sc().conf().clone().set("spark.serializer.objectStreamReset", "1")
                self._serializer = spark._jvm.org.apache.spark.serializer.JavaSerializer(conf)
            moved._jrdd.rdd().dependencies().head().rdd().setSerializer(self._serializer)

    def headers(self, moved: RDD[tuple[int, Any]], tasks: int) -> list[ReadHeader]:
        """Run the tasks that make blobs, and none that takes them: Spark keeps what they made. What they say.

        To collect one partition with `runJob` would take one more task in Python.
        """
        return [header for _, header in islice(moved.toLocalIterator(), tasks)]

    def forget(self, moved: RDD[tuple[int, Any]]) -> None:
        """Remove blobs that are not needed any more."""
        moved.cleanShuffleDependencies(blocking=False)

    def run(self, task: SparkKeyedTask, brought: Sequence[RDD[tuple[int, Any]]]) -> list[KeyedResult]:
        """Run the keyed task of every partition over the blobs that were brought to it."""
        partitions = task.context.log.partitions
        anchored = self.anchor(partitions)
        for moved in brought:
            anchored = anchored.union(moved)
            if not self._checked:
                assert anchored.getNumPartitions() == own(partitions), "the union must keep the partitions"
        self._checked = self._checked or bool(brought)
        try:
            keyed = anchored.mapPartitionsWithIndex(task)
            return self._spark.runJob(keyed, _as_is, [own(p) for p in range(partitions)])
        finally:
            for moved in brought:
                self.forget(moved)

    def drop(self) -> None:
        if self._anchor is not None:
            self._anchor.unpersist()
            self._anchor = None
