"""The rows of a DataFrame as Arrow messages, and the reading task that takes them.

Spark makes a message of each few thousand rows, and sends it to a Python worker as it sends any bytes. `mapInArrow`
does the same in another way: it computes the size of its buffers after every row, which costs a third of the
conversion, and its results pass through Spark's rows once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import RDD
from pyspark.sql import DataFrame

from millpond.messages import BatchContext
from millpond.runtimes.spark.exchange import WithoutCollection
from millpond.runtimes.spark.jvm import convert_to_arrow
from millpond.runtimes.spark.shipping import ShippedProgram
from millpond.sources.base import Chunk
from millpond.task.read_task import read_rows_task

MESSAGE_ROWS = 2_000  # at most: Spark fills a message with so many rows, however large they are
CHUNK_ROWS, CHUNK_BYTES = 100_000, 16 << 20  # of a DataFrame, about, that become blobs at once

FIRST_FRAME_PLACE = 1 << 16  # above the places of the splits of a batch


@dataclass(frozen=True)
class ArrowMessages:
    """The rows of a DataFrame, partition by partition."""

    rdd: RDD[bytes]
    schema: bytes | None  # of every message; None if each is a stream that begins with its schema

    @classmethod
    def of(cls, frame: DataFrame) -> ArrowMessages:
        """Return the rows of a DataFrame. Nothing is read before a job needs them."""
        converted = convert_to_arrow(frame, MESSAGE_ROWS)
        if converted is not None:
            return cls(*converted)
        streams = frame.mapInArrow(_write_streams, "item binary")
        return cls(streams.rdd.map(lambda row: bytes(row.item)), None)


def _write_streams(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        written = pa.BufferOutputStream()
        with pa.ipc.new_stream(written, batch.schema) as stream:
            stream.write_batch(batch)
        yield pa.record_batch({"item": pa.array([written.getvalue().to_pybytes()], pa.binary())})


@dataclass(frozen=True)
class FrameTask:
    """Makes blobs of the rows of a DataFrame, one reading task per partition of it."""

    shipped: ShippedProgram
    context: BatchContext
    stream: str
    first: int  # the number of its first reading task
    schema: bytes | None  # of the messages

    def __call__(self, index: int, messages: Iterable[bytes]) -> Iterator[tuple[int, Any]]:
        task = self.first + index
        chunks = (Chunk(table, None) for table in combine_batches(read_messages(messages, self.schema)))
        with WithoutCollection():
            program = self.shipped.program()
            yield from read_rows_task(program, self.context, task, self.stream, FIRST_FRAME_PLACE + task, chunks)


def read_messages(messages: Iterable[bytes], schema: bytes | None) -> Iterator[pa.RecordBatch]:
    """Return the rows of some messages, without a copy of them."""
    if schema is None:
        for message in messages:
            yield from pa.ipc.open_stream(message)
        return
    known = pa.ipc.read_schema(pa.py_buffer(schema))
    for message in messages:
        yield pa.ipc.read_record_batch(pa.py_buffer(message), known)


def combine_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Combine Spark's small batches into larger tables, so that work per table and key is done less often."""
    together: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        together.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= CHUNK_ROWS or size >= CHUNK_BYTES:
            yield pa.Table.from_batches(together).combine_chunks()
            together, rows, size = [], 0, 0
    if together:
        yield pa.Table.from_batches(together).combine_chunks()
