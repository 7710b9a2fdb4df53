"""The Spark runtime: one small job of two stages per batch, and one for each further keyed stage."""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millpond.codec import Codec
from millpond.errors import MillpondError, Unavailable
from millpond.pipeline.graph import Program
from millpond.run.commit import Driver
from millpond.run.context import Context, Piece, Planned, Stage
from millpond.run.delivery import hand_over
from millpond.run.runtime import JobLost, Offer, Parcel
from millpond.runtimes.spark.exchange import Exchange, KeyedTask, ReadTask
from millpond.runtimes.spark.frames import Frames, FrameTask, plain_lines
from millpond.runtimes.spark.session import session
from millpond.runtimes.spark.shipping import Shipped, ship_modules
from millpond.storage import open_storage

log = logging.getLogger("millpond")


class SparkRuntime:
    """Runs an app's tasks on a Spark session."""

    def __init__(self, program: Program, state_url: str, spark: SparkSession) -> None:
        self._spark, self._context = spark, spark.sparkContext
        self.state_url = state_url
        self._program = program
        ship_modules(self._context)
        self._shipped = Shipped(self._context, program)
        self._exchange = Exchange(self._context)
        self._frames = Frames(program, spark)

    @classmethod
    @contextlib.contextmanager
    def opened(cls, program: Program, state_url: str, spark: Any) -> Iterator[SparkRuntime]:
        """A runtime, for as long as an app runs."""
        own = None
        if state_url.startswith("memory:"):
            # Workers are processes of their own and share no memory: a folder that goes away does for it.
            own = tempfile.mkdtemp(prefix="millpond-memory-")
        runtime = cls(program, own or state_url, session(spark))
        try:
            yield runtime
        finally:
            runtime.close()
            if own is not None:
                shutil.rmtree(own, ignore_errors=True)

    @property
    def slots(self) -> int:
        return max(1, self._context.defaultParallelism)

    def begin(self) -> None:
        """A driver is about to claim the app."""
        self._frames.stop()

    def resume(self, driver: Driver, caught_up: bool = False) -> None:
        """A driver owns the app: streaming DataFrames go on from its newest record."""
        self._frames.start(driver.storage, driver.last, caught_up)

    def close(self) -> None:
        self._frames.stop()
        with contextlib.suppress(Py4JError, PySparkException, ConnectionError):
            self._exchange.drop()

    # --- batches ---

    def first_stage(self, program: Program, context: Context, tasks: list[list[Planned]], offers: list[Offer]) -> Stage:
        with self._job(context, 1):
            blobs, count = [], len(tasks)
            if tasks:
                groups = self._context.parallelize(tasks, len(tasks))
                blobs.append(groups.mapPartitionsWithIndex(ReadTask(self._shipped, context)))
            for offer in offers:
                task = FrameTask(self._shipped, context, offer.stream, count)
                read = task.over(offer.frame)
                count += read.getNumPartitions()
                blobs.append(read)
            both = self._context.union(blobs) if len(blobs) > 1 else blobs[0]
            return Stage(self._exchange.run(KeyedTask(self._shipped, context, 1, []), both), count)

    def next_stage(
        self, program: Program, context: Context, stage: int, carried: list[dict[int, list[Piece]]]
    ) -> Stage:
        with self._job(context, stage):
            return Stage(self._exchange.run(KeyedTask(self._shipped, context, stage, carried), None), 0)

    def deliver(self, program: Program, state_url: str, parcels: list[Parcel]) -> None:
        sink = program.sinks[parcels[0].sink]
        batch = parcels[0].delivery.batch
        self._context.setJobDescription(f"{program.app}: batch {batch}, deliver to {parcels[0].sink}")
        try:
            if sink.where == "session":
                lines = self._context.parallelize(parcels, len(parcels)).flatMap(plain_lines(state_url, self._shipped))
                sink.deliver_frame(self._spark, lines, parcels[0].delivery)  # type: ignore[attr-defined]
                return
            shipped = self._shipped
            tasks = min(len(parcels), self.slots)
            failed = (
                self._context.parallelize(parcels, tasks)
                .mapPartitions(lambda mine: _hand_over(shipped, state_url, mine))
                .collect()
            )
        except (Py4JError, PySparkException) as error:
            raise Unavailable(f"sink {parcels[0].sink!r}: its delivery job failed: {error}") from error
        if failed:
            raise failed[0]

    @contextlib.contextmanager
    def _job(self, context: Context, stage: int) -> Iterator[None]:
        self._context.setJobDescription(f"{context.app}: batch {context.batch}, stage {stage}")
        try:
            yield
        except (Py4JNetworkError, ConnectionError) as error:
            raise Unavailable(
                f"app {context.app!r}: Spark itself is gone: {_first(error)}. Run the app again."
            ) from error
        except (Py4JError, PySparkException) as error:
            log.warning("%s: batch %d is run again, its job failed: %s", context.app, context.batch, _first(error))
            raise JobLost(_first(error)) from error

    # --- streaming DataFrames ---

    def offers(self, wait: float) -> list[Offer]:
        return self._frames.offers(wait)

    def accept(self, offer: Offer) -> None:
        self._frames.accept(offer)

    @property
    def exhausted(self) -> bool:
        return self._frames.exhausted


def _hand_over(shipped: Shipped, state_url: str, parcels: Iterable[Parcel]) -> Iterator[MillpondError]:
    program = shipped.program()
    storage, codec = open_storage(state_url), Codec(program.types)
    for parcel in parcels:
        try:
            hand_over(storage, codec, program.sinks[parcel.sink], parcel)
        except MillpondError as error:
            yield error
            return


def _first(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    told = [line.strip() for line in lines if "Error" in line or "Exception" in line or "Incomplete" in line]
    return (told or lines or [type(error).__name__])[-1][:500]
