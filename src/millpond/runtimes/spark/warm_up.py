"""Jobs that do what makes the first batch of a session slow, for a standby driver that waits.

Spark starts a Python worker when a task needs one, and ends it after a minute without tasks. A worker that starts
imports Millpond, Arrow and the user's modules, and loads the program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyspark import SparkContext

from millpond.log import segment
from millpond.runtimes.spark.exchange import Exchange, spark_partition
from millpond.runtimes.spark.shipping import ShippedProgram
from millpond.storage import open_storage
from millpond.task import keyed_task, read_task


class WarmTask:
    """Loads the program in a worker, as the tasks of a batch do, and opens the storage. Reads and writes nothing."""

    def __init__(self, shipped: ShippedProgram, state_url: str) -> None:
        self._shipped, self._state_url = shipped, state_url

    def __call__(self, index: int, items: Iterable[object]) -> Iterator[tuple[int, None]]:
        assert keyed_task and read_task and segment  # imported
        for _ in items:  # a worker whose task leaves input unread is not used again
            pass
        self._shipped.program()
        open_storage(self._state_url)
        yield max(0, index - spark_partition(0)), None


def warm_up(context: SparkContext, exchange: Exchange, task: WarmTask, slots: int, partitions: int) -> None:
    """Run a job of two stages with a shuffle, as a batch is, in as many workers as run at the same time."""
    made = context.parallelize(range(slots), slots).mapPartitionsWithIndex(task)
    shuffled = exchange.shuffle(made, partitions)
    try:
        context.runJob(shuffled.mapPartitionsWithIndex(task), list)
    finally:
        exchange.release(shuffled)
