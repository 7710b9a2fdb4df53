"""The Spark runtime: one small job of two stages per batch, and one for each further keyed stage."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from millpond.codec import Codec
from millpond.driver.commit import Driver
from millpond.driver.runtime import Offer, Reading, RuntimeGone, T, W
from millpond.errors import Corrupt, Incompatible, InvalidUse, MillpondError
from millpond.log.jobs import JobLost
from millpond.log.record import SparkBatch
from millpond.messages import BatchContext, ExchangePiece, PlannedSplit, StageResults
from millpond.parcels import Parcel, hand_over, sink_failure
from millpond.pipeline.graph import Program
from millpond.runtimes import pickling
from millpond.runtimes.pickling import pack_program
from millpond.runtimes.spark.causes import cause, worker_trouble
from millpond.runtimes.spark.exchange import Exchange, SparkKeyedTask, SparkReadTask
from millpond.runtimes.spark.frames import Frames, FrameTask, plain_lines
from millpond.runtimes.spark.reading import FAILED, Readings, SparkReading
from millpond.runtimes.spark.session import quietly, session
from millpond.runtimes.spark.shipping import Shipped, ship_modules
from millpond.sinks.base import FrameSink
from millpond.storage import Storage, open_storage

log = logging.getLogger("millpond")

_CHECKED: set[str] = set()  # Spark applications whose workers can be started


class SparkRuntime:
    """Runs an app's tasks on a Spark session."""

    def __init__(self, program: Program, state_url: str, spark: SparkSession) -> None:
        self._spark, self._context = spark, spark.sparkContext
        self.state_url = state_url
        packed = pack_program(program)
        self.program = self._program = replace(program, types=packed.types)
        ship_modules(self._context)
        self._shipped = Shipped(self._context, packed)
        self._exchange = Exchange(self._context)
        self._frames = Frames(program, spark)
        self._readings = Readings(self._context, self._exchange)
        self._check_workers()

    @classmethod
    @contextlib.contextmanager
    def opened(cls, program: Program, state_url: str, spark: Any) -> Iterator[SparkRuntime]:
        """A runtime, for as long as an app runs."""
        runtime = cls(program, state_url, session(spark))
        try:
            yield runtime
        finally:
            runtime.close()

    def _check_workers(self) -> None:
        """Let one worker load the program, once for a session: what keeps it from that is told before a claim."""
        if self._context.applicationId in _CHECKED:
            return
        with contextlib.suppress(JobLost), self._job(self._program.app, "start"), quietly(self._context):
            self._context.parallelize([0], 1).foreach(partial(_load, self._shipped))
            _CHECKED.add(self._context.applicationId)

    @property
    def slots(self) -> int:
        try:
            return max(1, self._context.defaultParallelism)
        except FAILED as error:
            raise self._gone() from error

    def check(self) -> None:
        if not self._alive():
            raise self._gone()

    def begin(self) -> None:
        """A driver is about to claim the app."""
        self._frames.stop()

    def resume(self, driver: Driver, caught_up: bool = False) -> None:
        """A driver owns the app: streaming DataFrames go on from its newest record."""
        self._frames.start(driver.storage, driver.last, caught_up)

    def close(self) -> None:
        self._frames.stop()
        self._readings.close()
        with contextlib.suppress(*FAILED):
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
                return StageResults(self._exchange.run(keyed, [reading.moved()]), reading.tasks)
            brought = []
            if tasks:
                read = self._exchange.read(SparkReadTask(self._shipped, context, tasks))
                brought.append(self._exchange.moved(read, context.log.partitions))
            for offer in offers:
                blobs = FrameTask(self._shipped, context, offer.stream, count).over(offer.frame)
                moved, parts = self._exchange.moved_frame(blobs, context.log.partitions)
                count += parts
                brought.append(moved)
            return StageResults(self._exchange.run(keyed, brought), count)

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
                lines = self._context.parallelize(parcels, len(parcels)).flatMap(plain_lines(state_url, shipped))
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

    def each(self, task: Callable[[Storage, W], T], works: list[W]) -> list[T]:
        url = self.state_url
        sent = [
            pickling.dumps((task, work)) for work in works
        ]  # a migration holds functions and classes of the program
        with self._job(self._program.app, getattr(task, "__name__", "maintenance")):
            found = self._context.parallelize(sent, len(sent)).map(lambda one: _done(one, url)).collect()
        for result in found:
            if isinstance(result, MillpondError):
                raise result
        return found

    @contextlib.contextmanager
    def _job(self, app: str, what: str) -> Iterator[None]:
        """A job, or several, on Spark. What Spark says of one that failed is told in words of ours."""
        try:
            self._context.setJobDescription(f"{app}: {what}")
            yield
        except FAILED as error:
            if not self._alive():
                raise self._gone() from error
            trouble = worker_trouble(str(error))
            if trouble:
                raise _unfit(app, self._context.pythonExec, trouble) from None
            why = cause(str(error)) or type(error).__name__
            log.warning("%s: %s failed on Spark and is tried again: %s", app, what, why)
            raise JobLost(why) from error

    def _alive(self) -> bool:
        try:
            return self._context.defaultParallelism > 0
        except FAILED:
            return False

    def _gone(self) -> RuntimeGone:
        return RuntimeGone(
            f"app {self._program.app!r}: Spark is gone. Its JVM has ended (killed, or out of memory) or the "
            "SparkSession was stopped. What was committed is safe; run the app again in a new process."
        )

    # --- streaming DataFrames ---

    def offers(self, wait: float) -> list[Offer]:
        try:
            return self._frames.offers(wait)
        except FAILED as error:
            raise self._gone() from error

    def offer_again(self, storage: Storage, stream: str, held: SparkBatch, whole: bool) -> Offer:
        try:
            return self._frames.offer_again(storage, stream, held, whole)
        except FAILED as error:
            raise self._gone() from error

    def accept(self, offer: Offer) -> None:
        self._frames.accept(offer)

    def is_waiting(self, stream: str) -> bool:
        try:
            return self._frames.is_waiting(stream)
        except FAILED as error:
            raise self._gone() from error

    @property
    def exhausted(self) -> bool:
        try:
            return self._frames.exhausted
        except FAILED as error:
            raise self._gone() from error


def _hand_over_all(shipped: Shipped, state_url: str, parcels: Iterable[Parcel]) -> Iterator[MillpondError]:
    program = shipped.program()
    storage, codec = open_storage(state_url), Codec(program.types)
    for parcel in parcels:
        try:
            hand_over(storage, codec, program.sinks[parcel.sink], parcel)
        except MillpondError as error:
            yield error
            return


def _load(shipped: Shipped, _: int) -> None:
    shipped.program()


def _unfit(app: str, python: str, trouble: str) -> InvalidUse:
    return InvalidUse(
        f"app {app!r}: a Python worker of Spark could not be started with {python!r}. It said:\n{trouble}\n"
        "Every host needs this Python (PYSPARK_PYTHON says which) with Millpond and what the program imports. A file "
        "in the current folder that has the name of a module, as copy.py has, hides that module: give it another name."
    )


def _done(sent: bytes, state_url: str) -> Any:
    """What a task makes of its work, or the error of ours that it raised: Spark would try again, to no purpose."""
    task, work = pickling.loads(sent)
    try:
        return task(open_storage(state_url), work)
    except (Corrupt, Incompatible, InvalidUse) as error:
        return error
