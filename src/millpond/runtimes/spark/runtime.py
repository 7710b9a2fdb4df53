"""The Spark runtime: one small job of two stages per batch, and one for each further keyed stage."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from millpond.driver.commit import Driver
from millpond.errors import Corrupt, Incompatible, InvalidUse, MillpondError
from millpond.log.jobs import JobLost
from millpond.log.record import SparkBatch
from millpond.messages import BatchContext, ExchangePiece, Parcel, PlannedSplit, StageResults
from millpond.parcels import hand_over, sink_failure
from millpond.pipeline.graph import Program
from millpond.runtimes import pickling
from millpond.runtimes.base import Offer, Reading, RuntimeGone, T, W
from millpond.runtimes.pickling import pack_program
from millpond.runtimes.spark.arrow_messages import ArrowMessages, FrameTask
from millpond.runtimes.spark.causes import find_cause, find_worker_failure
from millpond.runtimes.spark.exchange import Exchange, SparkKeyedTask, SparkReadTask
from millpond.runtimes.spark.reading import SPARK_ERRORS, ReadingJobs, SparkReading
from millpond.runtimes.spark.session import open_session, without_spark_logs
from millpond.runtimes.spark.shipping import ShippedProgram, ship_modules
from millpond.runtimes.spark.streaming_frames import StreamingFrames, json_lines_reader
from millpond.runtimes.spark.warm_up import WarmTask, warm_up
from millpond.sinks.base import FrameSink
from millpond.steps.forks import refuse_forks
from millpond.storage import Storage, open_storage

log = logging.getLogger("millpond")

_CHECKED_APPLICATIONS: set[str] = set()  # Spark applications whose workers can be started


class SparkRuntime:
    """Runs an app's tasks on a Spark session."""

    def __init__(self, program: Program, state_url: str, spark: SparkSession, *, checks_workers: bool = True) -> None:
        self._spark, self._context = spark, spark.sparkContext
        self.state_url = state_url
        packed = pack_program(program)
        self.program = self._program = replace(program, types=packed.types)
        ship_modules(self._context)
        self._shipped = ShippedProgram(self._context, packed)
        self._exchange = Exchange(self._context)
        self._frames = StreamingFrames(program, spark)
        self._readings = ReadingJobs(self._context, self._exchange)
        if checks_workers:
            self._check_workers()

    @classmethod
    @contextlib.contextmanager
    def open(
        cls, program: Program, state_url: str, spark: Any, *, checks_workers: bool = True
    ) -> Iterator[SparkRuntime]:
        """Open a session and yield a runtime on it, for as long as an app runs.

        A job checks first that workers can be started. A standby driver does that in `keep_warm`: another driver may
        have all cores of the cluster, and the job waits for them.
        """
        runtime = cls(program, state_url, open_session(spark), checks_workers=checks_workers)
        try:
            yield runtime
        finally:
            runtime.close()

    def _check_workers(self) -> None:
        """Let one worker load the program, once per Spark application: a failure then comes before the claim."""
        if self._context.applicationId in _CHECKED_APPLICATIONS:
            return
        with contextlib.suppress(JobLost), self._job(self._program.app, "start"), without_spark_logs(self._context):
            self._context.parallelize([0], 1).foreach(partial(_load_program, self._shipped))
            _CHECKED_APPLICATIONS.add(self._context.applicationId)

    @property
    def slots(self) -> int:
        try:
            return max(1, self._context.defaultParallelism)
        except SPARK_ERRORS as error:
            raise self._gone_error() from error

    def check(self) -> None:
        if not self._is_alive():
            raise self._gone_error()

    def keep_warm(self, partitions: int | None) -> None:
        """Do what makes a first batch slow, for a driver that waits: start workers, load the program, shuffle.

        Called again and again. `RuntimeGone` if Spark has ended, `InvalidUse` if no worker can be started; any other
        failure is left to the batch.
        """
        slots = self.slots
        self._check_workers()
        with contextlib.suppress(JobLost), self._job(self._program.app, "keep warm"):
            task = WarmTask(self._shipped, self.state_url)
            warm_up(self._context, self._exchange, task, slots, partitions or slots)

    def stop_streams(self) -> None:
        """Stop the streaming queries of an earlier driver. Called before a driver claims the app."""
        self._frames.stop()

    def start_streams(self, driver: Driver, caught_up: bool = False) -> None:
        """Start the streaming queries from the newest record of a driver, which owns the app."""
        self._frames.start(driver.storage, driver.last, caught_up)

    def close(self) -> None:
        self._frames.stop()
        self._readings.close()
        with contextlib.suppress(*SPARK_ERRORS):
            self._exchange.drop()

    # --- batches ---

    def read(
        self, program: Program, context: BatchContext, tasks: list[list[PlannedSplit]], *, later: bool = False
    ) -> SparkReading:
        return self._readings.begin(
            SparkReadTask(self._shipped, context, tasks), f"batch {context.batch}, reading", later
        )

    def first_stage(
        self,
        program: Program,
        context: BatchContext,
        tasks: list[list[PlannedSplit]],
        offers: list[Offer],
        reading: Reading | None = None,
    ) -> StageResults:
        with self._job(context.log.app, f"batch {context.batch}, stage 1"):
            count, keyed = len(tasks), SparkKeyedTask(self._shipped, context, 1, [])
            if reading is not None:
                assert isinstance(reading, SparkReading)
                return StageResults(self._exchange.run(keyed, [reading.blobs()]), reading.tasks)
            shuffles = []
            if tasks:
                read = self._exchange.read(SparkReadTask(self._shipped, context, tasks))
                shuffles.append(self._exchange.shuffle(read, context.log.partitions))
            for offer in offers:
                messages = ArrowMessages.of(offer.frame)
                framed = FrameTask(self._shipped, context, offer.stream, count, messages.schema)
                blobs = messages.rdd.mapPartitionsWithIndex(framed)
                shuffles.append(self._exchange.shuffle(blobs, context.log.partitions))
                count += messages.rdd.getNumPartitions()
            return StageResults(self._exchange.run(keyed, shuffles), count)

    def next_stage(
        self, program: Program, context: BatchContext, stage: int, carried: list[dict[int, list[ExchangePiece]]]
    ) -> StageResults:
        with self._job(context.log.app, f"batch {context.batch}, stage {stage}"):
            return StageResults(self._exchange.run(SparkKeyedTask(self._shipped, context, stage, carried), []), 0)

    def deliver(self, program: Program, state_url: str, parcels: list[Parcel]) -> None:
        shipped, first = self._shipped, parcels[0]
        sink = program.sinks[first.sink]
        with self._job(program.app, f"batch {first.delivery.batch}, deliver to {first.sink}"):
            if isinstance(sink, FrameSink) and sink.where == "session":
                lines = self._context.parallelize(parcels, len(parcels)).flatMap(json_lines_reader(state_url, shipped))
                try:
                    return sink.deliver_frame(self._spark, lines, first.delivery)
                except (MillpondError, Py4JError, PySparkException) as error:
                    if isinstance(error, AnalysisException):
                        raise sink_failure(first, error) from error
                    raise
                except Exception as error:
                    raise sink_failure(first, error) from error
            tasks = self._context.parallelize(parcels, min(len(parcels), self.slots))
            found = tasks.mapPartitions(lambda mine: _hand_over_all(shipped, state_url, mine)).collect()
        if found:
            raise found[0]

    def each(self, task: Callable[[Storage, W], T], jobs: list[W]) -> list[T]:
        url = self.state_url
        sent = [
            pickling.pickle_value((task, job)) for job in jobs
        ]  # a migration holds functions and classes of the program
        with self._job(self._program.app, getattr(task, "__name__", "maintenance")):
            found = self._context.parallelize(sent, len(sent)).map(lambda one: _run_job(one, url)).collect()
        return _raise_errors(found)

    @property
    def has_hosts(self) -> bool:
        self.hosts()
        return self._exchange.jvm_hosts.has_hosts

    def hosts(self) -> list[str]:
        try:
            executors = self._exchange.jvm_hosts.executors()
        except SPARK_ERRORS as error:
            raise self._gone_error() from error
        return sorted({name.rpartition(":")[0] for name in executors})

    def place(self, hosts: Sequence[str]) -> None:
        self._exchange.place(hosts)

    def each_on(self, task: Callable[[Storage, W], T], jobs: list[tuple[str, W]]) -> list[T]:
        url = self.state_url
        sent = [pickling.pickle_value((task, job)) for _, job in jobs]
        with self._job(self._program.app, getattr(task, "__name__", "standbys")):
            placed = self._exchange.jvm_hosts.placed(sent, [host for host, _ in jobs])
            if placed is None:
                raise JobLost("this Spark cannot run tasks on chosen hosts")
            return _raise_errors(placed.map(lambda one: _run_job(one, url)).collect())

    @contextlib.contextmanager
    def _job(self, app: str, what: str) -> Iterator[None]:
        """Describe Spark jobs; a failed one becomes `JobLost`, or an error that says what a person has to do."""
        try:
            self._context.setJobDescription(f"{app}: {what}")
            yield
        except SPARK_ERRORS as error:
            if not self._is_alive():
                raise self._gone_error() from error
            trouble = find_worker_failure(str(error))
            if trouble:
                raise _worker_error(app, self._context.pythonExec, trouble) from None
            why = find_cause(str(error)) or type(error).__name__
            log.warning("%s: %s failed on Spark and is tried again: %s", app, what, why)
            raise JobLost(why) from error

    def _is_alive(self) -> bool:
        try:
            return self._context.defaultParallelism > 0
        except SPARK_ERRORS:
            return False

    def _gone_error(self) -> RuntimeGone:
        return RuntimeGone(
            f"app {self._program.app!r}: Spark is gone. Its JVM has ended (killed, or out of memory) or the "
            "SparkSession was stopped. What was committed is safe; run the app again in a new process."
        )

    # --- streaming DataFrames ---

    def offers(self, wait: float) -> list[Offer]:
        try:
            return self._frames.offers(wait)
        except SPARK_ERRORS as error:
            raise self._gone_error() from error

    def offer_again(self, storage: Storage, stream: str, held: SparkBatch, whole: bool) -> Offer:
        try:
            return self._frames.offer_again(storage, stream, held, whole)
        except SPARK_ERRORS as error:
            raise self._gone_error() from error

    def accept(self, offer: Offer) -> None:
        self._frames.accept(offer)

    def is_waiting(self, stream: str) -> bool:
        try:
            return self._frames.is_waiting(stream)
        except SPARK_ERRORS as error:
            raise self._gone_error() from error

    @property
    def exhausted(self) -> bool:
        try:
            return self._frames.exhausted
        except SPARK_ERRORS as error:
            raise self._gone_error() from error


def _hand_over_all(shipped: ShippedProgram, state_url: str, parcels: Iterable[Parcel]) -> Iterator[MillpondError]:
    refuse_forks()
    program = shipped.program()
    storage, codec = open_storage(state_url), program.codec
    for parcel in parcels:
        try:
            hand_over(storage, codec, program.sinks[parcel.sink], parcel)
        except MillpondError as error:
            yield error
            return


def _load_program(shipped: ShippedProgram, _: int) -> None:
    shipped.program()


def _raise_errors(found: list[Any]) -> list[Any]:
    for result in found:
        if isinstance(result, MillpondError):
            raise result
    return found


def _worker_error(app: str, python: str, trouble: str) -> InvalidUse:
    return InvalidUse(
        f"app {app!r}: a Python worker of Spark could not be started with {python!r}. It said:\n{trouble}\n"
        "Every host needs this Python (PYSPARK_PYTHON says which) with Millpond and what the program imports. A file "
        "in the current folder that has the name of a module, as copy.py has, hides that module: give it another name."
    )


def _run_job(sent: bytes, state_url: str) -> Any:
    """Run a task, and return its result or the error that it raised: Spark would only try again."""
    task, job = pickling.unpickle_value(sent)
    try:
        return task(open_storage(state_url), job)
    except (Corrupt, Incompatible, InvalidUse) as error:
        return error
