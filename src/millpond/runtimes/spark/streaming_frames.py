"""Streaming DataFrames as sources: Spark reads and keeps the offsets, the ledger keeps Spark's checkpoint.

`foreachBatch` offers its batch and waits. The driver takes the offer with one of its own batches, and lets
`foreachBatch` return when that batch is committed. At that time Spark has written the offsets of the batch and not yet
that it is done. These small files are stored with the commit: restored on an empty machine, they make Spark offer the
same batch again.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from millpond.codec import Codec
from millpond.errors import InvalidUse, Unavailable
from millpond.log import checked
from millpond.log.checked import Pointer
from millpond.log.record import Record, SparkBatch
from millpond.log.segment import unpack_outputs
from millpond.messages import Parcel
from millpond.pipeline.graph import Program, Read
from millpond.rows.plain_json import encode_json_lines
from millpond.runtimes.base import Offer
from millpond.runtimes.spark.jvm import checkpoint_url
from millpond.runtimes.spark.shipping import ShippedProgram
from millpond.sources.base import Source
from millpond.storage import Storage, open_storage

JVM_ERRORS = (Py4JError, PySparkException, OSError)  # what a call to a JVM that has ended raises

# A stopped query ends without an error only after an interruption; Spark recognises one from Python by this text.
STOPPED_MESSAGE = (
    "the app was stopped, and this batch will be offered again: py4j.protocol.Py4JJavaError: An error occurred "
    "while calling take: java.lang.InterruptedException"
)


class _OfferingQuery:
    """One streaming query, and the batch that it offers."""

    def __init__(self, stream: str, checkpoint: Path, ends: bool, once: bool = False) -> None:
        self.stream, self.checkpoint, self.ends, self.once = stream, checkpoint, ends, once
        self.offer: Offer | None = None
        self.there = threading.Event()
        self.done = threading.Event()
        self.stopping = False
        self.query: Any = None

    def take(self, frame: DataFrame, batch: int) -> None:
        """Called by Spark: offer a batch, and wait until it is committed."""
        self.done.clear()
        self.offer = Offer(self.stream, batch, checkpoint_files(self.checkpoint, batch), frame)
        self.there.set()
        while not self.done.wait(0.1):
            if self.stopping:
                raise RuntimeError(STOPPED_MESSAGE)

    def stop(self) -> None:
        """End the query, whether its offer is open or not: the batch counts neither as done nor as an error."""
        # Spark ends the query at once and then waits for us, who are waiting in `take`.
        ending = threading.Thread(target=self._stop_query, daemon=True)
        ending.start()
        while ending.is_alive() and self._is_active():
            ending.join(0.02)
        self.stopping = True
        ending.join()

    def _stop_query(self) -> None:
        with contextlib.suppress(*JVM_ERRORS):
            self.query.stop()

    def _is_active(self) -> bool:
        try:
            return bool(self.query.isActive)
        except JVM_ERRORS:
            return False


class StreamingFrames:
    """The streaming DataFrames of an app."""

    def __init__(self, program: Program, spark: SparkSession) -> None:
        ops = [node.op for node in program.nodes if isinstance(node.op, Read)]
        self._sources = {op.stream: op.source for op in ops if not isinstance(op.source, Source)}
        self._spark = spark
        self._queries: list[_OfferingQuery] = []
        self._folder: str | None = None
        self._made = 0  # checkpoints in the folder

    def start(self, storage: Storage, last: Record, caught_up: bool) -> None:
        """Start the queries from the checkpoints that the ledger holds."""
        if not self._sources:
            return
        for stream in self._sources:
            held = last.spark.get(stream)
            checkpoint = self._checkpoint(storage, held.files if held is not None else {})
            self._start(_OfferingQuery(stream, checkpoint, caught_up))

    def offer_again(self, storage: Storage, stream: str, held: SparkBatch, whole: bool) -> Offer:
        """Offer the batch of a record again, by a query that ends when the offer is accepted.

        With `whole` the batch begins where the input begins: its end becomes the end of Spark's first batch.
        """
        files = held.files
        if whole:
            files = {name: file for name, file in files.items() if not name.startswith(("offsets/", "commits/"))}
            files["offsets/0"] = held.files[f"offsets/{held.batch}"]
        offered = _OfferingQuery(stream, self._checkpoint(storage, files), ends=False, once=True)
        self._start(offered)
        while not offered.there.wait(0.2):
            self._check(offered)
            if not offered.query.isActive and not offered.there.is_set():
                raise Unavailable(f"stream {stream!r}: its streaming DataFrame ended without a batch")
        offer, batch = offered.offer, 0 if whole else held.batch
        if offer is None or offer.batch != batch:
            raise InvalidUse(
                f"stream {stream!r}: expected its streaming DataFrame to offer batch {batch} again, as it was "
                f"committed, got {None if offer is None else offer.batch}. Its checkpoint does not fit the DataFrame "
                "of the program."
            )
        return offer

    def _checkpoint(self, storage: Storage, files: Mapping[str, Pointer]) -> Path:
        """Make a new checkpoint for Spark, with these files in it."""
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="millpond-spark-")
        self._made += 1
        checkpoint = Path(self._folder, str(self._made))
        checkpoint.mkdir()
        for name, file in files.items():
            target = checkpoint / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(checked.read_file(storage, file))
        return checkpoint

    def _start(self, offered: _OfferingQuery) -> None:
        frame = self._sources[offered.stream]
        location = checkpoint_url(self._spark, offered.checkpoint)
        writer = frame.writeStream.foreachBatch(offered.take).option("checkpointLocation", location)
        writer = (
            writer.trigger(availableNow=True) if offered.ends else writer.trigger(processingTime="100 milliseconds")
        )
        try:
            offered.query = writer.start()
        except PySparkException as error:
            raise InvalidUse(f"stream {offered.stream!r}: its streaming DataFrame cannot be run: {error}") from error
        self._queries.append(offered)

    def offers(self, wait: float) -> list[Offer]:
        """Return what is offered now, or within `wait` seconds."""
        for query in self._queries:
            if wait and query.query.isActive:
                query.there.wait(wait)
            self._check(query)
        return [q.offer for q in self._queries if q.there.is_set() and q.offer is not None]

    def _check(self, query: _OfferingQuery) -> None:
        if not query.query.isActive and not query.there.is_set():
            error = query.query.exception()
            if error is not None and not query.stopping:
                raise Unavailable(f"stream {query.stream!r}: its streaming DataFrame failed: {error}")

    def accept(self, offer: Offer) -> None:
        for query in list(self._queries):
            if query.stream == offer.stream and query.offer is not None and query.offer.batch == offer.batch:
                if query.once:
                    self._queries.remove(query)
                    query.stop()
                    shutil.rmtree(query.checkpoint, ignore_errors=True)
                    continue
                query.there.clear()
                query.offer = None
                query.done.set()

    def is_waiting(self, stream: str) -> bool:
        """Return whether a stream has no query, or one that has ended or found nothing new."""
        for query in self._queries:
            if query.stream == stream:
                if query.there.is_set():
                    return False
                if not query.query.isActive:
                    return True
                # It says that it waits after it has looked; before, it says that it is about to begin.
                status = query.query.status
                return not query.ends and not status["isDataAvailable"] and status["message"].startswith("Waiting")
        return True

    @property
    def exhausted(self) -> bool:
        return all(not q.query.isActive and not q.there.is_set() for q in self._queries)

    def stop(self) -> None:
        for query in self._queries:
            query.stop()
        self._queries = []
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def checkpoint_files(checkpoint: Path, batch: int) -> dict[str, Path]:
    """Return the files of a checkpoint that make Spark offer this batch again."""
    names = ["metadata", f"offsets/{batch}", f"offsets/{batch - 1}", f"commits/{batch - 1}"]
    found = {name: checkpoint / name for name in names if (checkpoint / name).is_file()}
    for log in sorted(checkpoint.glob("sources/*")):
        entries = [(_entry_number(file), file) for file in log.iterdir() if _entry_number(file) is not None]
        compacted = [number for number, file in entries if file.suffix == ".compact"]
        floor = max(compacted, default=-1)  # type: ignore[type-var]
        for number, file in entries:
            if number is not None and number >= (floor or 0):
                found[str(file.relative_to(checkpoint))] = file
    return found


def _entry_number(file: Path) -> int | None:
    return int(file.stem) if file.stem.isdigit() and not file.name.startswith(".") else None


def json_lines_reader(state_url: str, shipped: ShippedProgram) -> Callable[[Parcel], list[str]]:
    """Return a function that reads the rows of a parcel as plain JSON lines. It runs in a task."""

    def read(parcel: Parcel) -> list[str]:
        storage, codec = open_storage(state_url), Codec(shipped.program().types)
        rows: list[Any] = []
        for part in parcel.segments:
            rows += unpack_outputs(checked.read_file(storage, part)).objects(codec)
        return encode_json_lines(rows).decode().rstrip("\n").split("\n") if rows else []

    return read
