"""Jobs that run only the reading tasks of a batch: Spark's shuffle keeps the blobs for the keyed tasks."""

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

# What a call to Spark raises if its job has failed, its JVM has ended or its session was stopped.
SPARK_ERRORS = (Py4JError, PySparkException, OSError, EOFError, AttributeError)

# A job that reads ahead starts so much later, so that the tasks of the batch before it are queued first.
YIELD_SECONDS = 0.015


class SparkReading:
    """The reading job of one batch."""

    def __init__(self, exchange: Exchange, tasks: int, job: Future[tuple[RDD[Any], list[ReadProgress] | None]]) -> None:
        self.tasks, self._exchange, self._job = tasks, exchange, job

    def progress(self) -> list[ReadProgress] | None:
        try:
            return self._job.result()[1]
        except SPARK_ERRORS:
            return None

    def blobs(self) -> RDD[tuple[int, Any]]:
        """Return the blobs, each in its partition; raises what the job has failed with."""
        return self._job.result()[0]

    def drop(self) -> None:
        with contextlib.suppress(*SPARK_ERRORS):
            self._exchange.release(self._job.result()[0])


class ReadingJobs:
    """Runs reading jobs one after the other, in a thread of its own."""

    def __init__(self, context: SparkContext, exchange: Exchange) -> None:
        self._context, self._exchange = context, exchange
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="millpond-reading")

    def begin(self, task: SparkReadTask, what: str, later: bool) -> SparkReading:
        """Start to read; `later` lets a job that is about to begin go first."""
        return SparkReading(self._exchange, len(task.groups), self._thread.submit(self._read, task, what, later))

    def _read(self, task: SparkReadTask, what: str, later: bool) -> tuple[RDD[Any], list[ReadProgress] | None]:
        if later:
            time.sleep(YIELD_SECONDS)
        self._context.setJobDescription(f"{task.context.log.app}: {what}")
        blobs = self._exchange.shuffle(self._exchange.read(task), task.context.log.partitions)
        return blobs, progress_of(self._exchange.headers(blobs, len(task.groups)))

    def close(self) -> None:
        """Wait for the running job, and start no other."""
        self._thread.shutdown(wait=True, cancel_futures=True)
