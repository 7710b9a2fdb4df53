"""Reading tasks that run on their own: their job leaves the blobs where Spark's shuffle keeps them."""

from __future__ import annotations

import contextlib
import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext
from pyspark.errors import PySparkException

from millpond.driver.read_ahead import progress_of
from millpond.messages import ReadProgress
from millpond.runtimes.spark.exchange import Exchange, SparkReadTask

log = logging.getLogger("millpond")

# What comes out of a call to Spark whose job failed, whose JVM died or whose session was stopped.
FAILED = (Py4JError, PySparkException, OSError, EOFError, AttributeError)

# Seconds that a job which reads ahead lets pass, for the tasks of the batch before it to be first in the queue.
MANNERS = 0.015


class SparkReading:
    """The reading tasks of a batch, run on their own."""

    def __init__(self, exchange: Exchange, tasks: int, job: Future[tuple[RDD[Any], list[ReadProgress] | None]]) -> None:
        self.tasks, self._exchange, self._job = tasks, exchange, job

    def progress(self) -> list[ReadProgress] | None:
        try:
            return self._job.result()[1]
        except FAILED:
            return None

    def moved(self) -> RDD[tuple[int, Any]]:
        """The blobs, on their way to their partitions; or what Spark said when its job failed."""
        return self._job.result()[0]

    def drop(self) -> None:
        with contextlib.suppress(*FAILED):
            self._exchange.forget(self._job.result()[0])


class Readings:
    """Jobs that read, one after the other, in a thread of their own."""

    def __init__(self, context: SparkContext, exchange: Exchange) -> None:
        self._context, self._exchange = context, exchange
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="millpond-reading")

    def begin(self, task: SparkReadTask, what: str, later: bool) -> SparkReading:
        """Start to read; `later` lets a job that is about to begin go first."""
        return SparkReading(self._exchange, len(task.groups), self._thread.submit(self._read, task, what, later))

    def _read(self, task: SparkReadTask, what: str, later: bool) -> tuple[RDD[Any], list[ReadProgress] | None]:
        if later:
            time.sleep(MANNERS)
        self._context.setJobDescription(f"{task.context.log.app}: {what}")
        moved = self._exchange.moved(self._exchange.read(task), task.context.log.partitions)
        return moved, progress_of(self._exchange.headers(moved, len(task.groups)))

    def close(self) -> None:
        """Wait for the job at work, and begin no other."""
        self._thread.shutdown(wait=True, cancel_futures=True)
