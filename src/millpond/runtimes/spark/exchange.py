"""The exchange: Spark moves blobs from reading tasks to the partitions that own their keys.

Spark never sees a row. It schedules the tasks, moves a few blobs for each, and brings back pointers. The
anchor keeps every partition where its replica is: a cached RDD has preferred locations, and a union of
RDDs with the same partitioner prefers where its parents are.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pyspark import RDD, SparkContext, StorageLevel, TaskContext

from millpond.messages import BatchContext, ExchangePiece, KeyedResult, PlannedSplit, ReadHeader
from millpond.runtimes.spark.jvm import JvmHosts, JvmShuffle
from millpond.runtimes.spark.shipping import ShippedProgram
from millpond.task.keyed_task import KeyedTask
from millpond.task.read_task import read_task

LATE_ATTEMPT = 2  # a task that has failed twice may have failed because of its replica, which is rebuilt

DRIVER_PARTITION = -1  # of the headers for the driver: the first of Spark's partitions, so that it can be read alone


def spark_partition(partition: int) -> int:
    """Return which of Spark's partitions a blob goes to.

    It is a function of the module, because Spark compares partitioners by it.
    """
    return partition + 1


def _as_is(items: Iterable[Any]) -> Iterable[Any]:
    return items


@dataclass(frozen=True)
class SparkReadTask:
    """One reading task per Spark partition."""

    shipped: ShippedProgram
    context: BatchContext
    groups: list[list[PlannedSplit]]

    def __call__(self, index: int, nothing: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        with WithoutCollection():
            for partition, item in read_task(self.shipped.program(), self.context, index, self.groups[index]):
                yield partition, item
                if partition == 0 and isinstance(item, ReadHeader):
                    yield DRIVER_PARTITION, item  # read by the driver only if it reads ahead


@dataclass(frozen=True)
class SparkKeyedTask:
    """One keyed task per Spark partition."""

    shipped: ShippedProgram
    context: BatchContext
    stage: int
    carried: list[dict[int, list[ExchangePiece]]]

    def __call__(self, index: int, items: Iterable[tuple[int, Any]]) -> Iterator[KeyedResult]:
        mine = [item for _, item in items if item is not None]
        task = TaskContext.get()
        rebuild = task is not None and task.attemptNumber() >= LATE_ATTEMPT
        partition = index - spark_partition(0)
        carried = self.carried[partition] if self.carried else {}
        with WithoutCollection():
            program = self.shipped.program()
            keyed_task = KeyedTask(program, self.context, self.stage, partition)
            yield keyed_task.run(mine, carried, rebuild=rebuild)


class WithoutCollection:
    """Disables the garbage collector within a task: its objects live about as long as it does.

    Spark's worker runs a full collection after every task, which looks at every object of the process: the modules
    that are loaded, and what tasks keep for the next ones. So the objects that are left at the end of a task are
    frozen, which excludes them from collections. After every `FULL_EVERY` tasks all of them are looked at again.
    """

    FULL_EVERY = 1000  # tasks of this process
    _tasks = 0

    def __enter__(self) -> None:
        gc.disable()

    def __exit__(self, *_: object) -> None:
        WithoutCollection._tasks += 1
        if WithoutCollection._tasks % WithoutCollection.FULL_EVERY == 0:
            gc.unfreeze()
        gc.collect()
        gc.freeze()
        gc.enable()


class Exchange:
    """The anchor of an app's partitions, and the jobs that run over it."""

    def __init__(self, context: SparkContext) -> None:
        self._spark = context
        self.jvm_hosts = JvmHosts(context)
        self._anchor: RDD[tuple[int, Any]] | None = None
        self._wanted: tuple[str, ...] = ()  # the host of each partition; empty if any will do
        self._laid: tuple[Any, ...] = ()  # what the anchor was made for
        self._checked = False
        self._readers: dict[int, RDD[int]] = {}
        self._jvm = JvmShuffle(context)

    def read(self, task: SparkReadTask) -> RDD[tuple[int, Any]]:
        """Return the blobs of reading tasks.

        The splits are part of the task: an RDD of them would cost a tenth of a small batch.
        """
        count = len(task.groups)
        if count not in self._readers:
            self._readers[count] = self._spark.parallelize(range(count), count)
        return self._readers[count].mapPartitionsWithIndex(task)

    def anchor(self, partitions: int) -> RDD[tuple[int, Any]]:
        """Return the anchor: one small element per partition, cached where the partition is.

        It is made again when the number of partitions, the executors or the wanted hosts change: an executor that is
        lost takes its part of the anchor along.
        """
        executors = self.jvm_hosts.executors() or self._spark.defaultParallelism
        wanted = self._wanted if len(self._wanted) == partitions else ()
        if self._anchor is None or (executors, partitions, wanted) != self._laid:
            self.drop()
            slots = spark_partition(partitions)
            pairs = self._spark.parallelize([(p, None) for p in range(DRIVER_PARTITION, partitions)], slots)
            self._anchor = pairs.partitionBy(slots, spark_partition).persist(StorageLevel.MEMORY_AND_DISK)
            on_hosts = self.jvm_hosts.placed(range(slots), (None, *wanted)) if wanted else None
            # The tasks of a zip run where the first RDD prefers, and cache their part of the anchor there.
            (self._anchor if on_hosts is None else on_hosts.zip(self._anchor)).count()
            self._laid = (executors, partitions, wanted)
        return self._anchor

    def place(self, hosts: Sequence[str]) -> None:
        """Let each partition be on its host from the next job on; anywhere if there are no hosts."""
        self._wanted, self._laid = tuple(hosts), ()

    def shuffle(self, blobs: RDD[tuple[int, Any]], partitions: int) -> RDD[tuple[int, Any]]:
        """Return the blobs, each in the partition that it is for. Spark moves them when a job needs them."""
        shuffled = blobs.partitionBy(spark_partition(partitions), spark_partition)
        self._jvm.use_java_serializer(shuffled)
        return shuffled

    def headers(self, shuffled: RDD[tuple[int, Any]], tasks: int) -> list[ReadHeader]:
        """Run only the tasks that make blobs, and return their headers. Spark keeps the blobs for a later job.

        `runJob` over the one partition with the headers would need one more Python task.
        """
        return [header for _, header in islice(shuffled.toLocalIterator(), tasks)]

    def release(self, shuffled: RDD[tuple[int, Any]]) -> None:
        """Let Spark remove blobs that are not needed any more."""
        shuffled.cleanShuffleDependencies(blocking=False)

    def run(self, task: SparkKeyedTask, shuffles: Sequence[RDD[tuple[int, Any]]]) -> list[KeyedResult]:
        """Run the keyed task of every partition over the blobs that were shuffled to it, and release them."""
        partitions = task.context.log.partitions
        anchored = self.anchor(partitions)
        for shuffled in shuffles:
            anchored = anchored.union(shuffled)
            if not self._checked:
                assert anchored.getNumPartitions() == spark_partition(partitions), "the union must keep the partitions"
        self._checked = self._checked or bool(shuffles)
        try:
            keyed = anchored.mapPartitionsWithIndex(task)
            return self._spark.runJob(keyed, _as_is, [spark_partition(p) for p in range(partitions)])
        finally:
            for shuffled in shuffles:
                self.release(shuffled)

    def drop(self) -> None:
        """Let Spark forget the anchor."""
        if self._anchor is not None:
            self._anchor.unpersist()
            self._anchor = None
