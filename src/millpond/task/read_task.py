"""The reading task: it reads splits of sources, runs the program up to the first exchange, and packs the rows.

It does not depend on what runs it: a loop in a test, or Spark on a cluster. A task may run twice, anywhere, at the same
time; no two attempts write files of the same name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from millpond.clock import new_id
from millpond.errors import MillpondError, Unavailable
from millpond.log.paths import Attempt
from millpond.messages import (
    BatchContext,
    PlannedSplit,
    ReadHeader,
    ReadProgress,
    TaskOutput,
    TooManyRows,
    TooMuch,
)
from millpond.pipeline.graph import Program, Read
from millpond.sources.base import Chunk, JsonLines
from millpond.task.router import Router
from millpond.task.tools import TASK_FAILURES, Tools, failure_of

UNLIMITED = 1 << 62  # rows
MOST_BLOB_BYTES = 1 << 30  # Spark cannot move 2 GiB from one task to one partition

TaskItem = tuple[int, Any]  # a partition, and a ReadHeader or (task, nonce, number, exchange, blob)
_NO_POSITION = object()


def read_task(
    program: Program, context: BatchContext, task: int, planned: list[PlannedSplit], tools: Tools | None = None
) -> Iterator[TaskItem]:
    """Read splits, run what comes before `key_by`, and yield a header and blobs for every partition."""
    reading = _ReadTask(program, context, tools or Tools.of(context))
    try:
        left = sum(UNLIMITED if item.share is None else item.share for item in planned)
        for item in planned:
            left -= reading.read_split(item, left)
        reading.write_output(task)
    except TASK_FAILURES as error:
        reading.fail(error)
    yield from reading.items(task)


def read_rows_task(
    program: Program, context: BatchContext, task: int, stream: str, place: int, chunks: Iterable[Chunk]
) -> Iterator[TaskItem]:
    """Do the same for rows that someone else reads, as a streaming DataFrame does."""
    reading = _ReadTask(program, context, Tools.of(context))
    try:
        reading.read_chunks(stream, place, chunks)
        reading.write_output(task)
    except TASK_FAILURES as error:
        reading.fail(error)
    yield from reading.items(task)


class _ReadTask:
    """One attempt at a reading task."""

    def __init__(self, program: Program, context: BatchContext, tools: Tools) -> None:
        self._program, self._context, self._storage = program, context, tools.storage
        self._router = Router(program, context, 0, tools.clock)
        self._attempt = Attempt(context.batch, context.driver, new_id())
        self._progress: list[ReadProgress] = []
        self._output = TaskOutput()

    def read_split(self, item: PlannedSplit, most_rows: int) -> int:
        """Read a split; return how many rows it had. Past `most_rows`, only the last split of a lane may stop early."""
        op = self._program.reads[item.stream].op
        assert isinstance(op, Read)
        self._router.partition = item.split.partition
        chunks = op.source.read(item.split)
        rows, size, position = self._push(item.stream, item.place, chunks, most_rows, item.is_last)
        found = item.split.start if position is _NO_POSITION else position
        self._progress.append(ReadProgress(item.stream, item.split.place, found, rows, size))
        return rows

    def read_chunks(self, stream: str, place: int, chunks: Iterable[Chunk]) -> None:
        """Read all rows of some chunks; their reader knows the position after them."""
        rows, _, _ = self._push(stream, place, chunks)
        self._progress.append(ReadProgress(stream, "", None, rows))

    def _push(
        self, stream: str, place: int, chunks: Iterable[Chunk], most_rows: int = UNLIMITED, may_stop: bool = False
    ) -> tuple[int, int, Any]:
        """Route the rows of some chunks; return how many there were, their bytes, and the position after them.

        A chunk that does not fit into `most_rows` is left for the next batch, if reading `may_stop` before the end.
        """
        node, outbox = self._program.reads[stream], self._router.outbox
        rows, size, position = 0, 0, _NO_POSITION
        for chunk in _name_stream(stream, chunks):
            data = chunk.rows
            if isinstance(data, JsonLines):
                count, length = len(data.lines), sum(map(len, data.lines)) + len(data.lines)
            else:
                count, length = len(data), chunk.size or getattr(data, "nbytes", 0)
            count += len(chunk.bad)
            if rows + count > most_rows:
                if may_stop and position is not _NO_POSITION:
                    break
                raise TooManyRows(stream, rows + count, size + length)
            self._router.read(node, chunk, (place << 32) + rows)
            rows, size, position = rows + count, size + length, chunk.position
            if outbox.blob_bytes > MOST_BLOB_BYTES:
                raise TooMuch(
                    f"stream {stream!r}: a task made {outbox.blob_bytes} bytes of the rows that it read, and the "
                    f"most is {MOST_BLOB_BYTES}. Make rows smaller, or let a batch of the stream have fewer of them."
                )
        return rows, size, position

    def write_output(self, task: int) -> None:
        """Write the files of the task: rows for sinks, and rows for later stages than the first."""
        partition = task % self._context.log.partitions
        self._output = self._router.outbox.write_files(self._storage, partition, self._attempt, 1)

    def fail(self, error: BaseException) -> None:
        """Let the driver know of an error; nothing else of the task counts."""
        self._progress = []
        self._output = TaskOutput(failure=failure_of(error, self._context.batch))

    def items(self, task: int) -> Iterator[TaskItem]:
        """Return the header and the blobs of the first stage for every partition."""
        stages, times = self._program.stages, self._router.times_read
        by_exchange = {} if self._output.failure is not None else self._router.outbox.blobs
        first_stage = {exchange: parts for exchange, parts in by_exchange.items() if stages[exchange] == 1}
        for partition in range(self._context.log.partitions):
            blobs = [(exchange, blob) for exchange, parts in first_stage.items() for blob in parts.get(partition, ())]
            header = ReadHeader(task, self._attempt.nonce, len(blobs), newest=times.newest, units=times.units)
            if partition == 0:
                header.output, header.progress = self._output, self._progress
            yield partition, header
            for number, (exchange, blob) in enumerate(blobs):
                yield partition, (task, self._attempt.nonce, number, exchange, blob)


def _name_stream(stream: str, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Return the chunks; an error of the source becomes `Unavailable` with the name of the stream."""
    try:
        yield from chunks
    except MillpondError:
        raise
    except (Exception, SystemExit) as error:
        text = f"stream {stream!r}: its source failed while reading: {type(error).__name__}: {error}"
        raise Unavailable(text) from error
