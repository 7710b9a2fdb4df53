"""The two kinds of task of a batch, as plain functions: one reads and keys rows, one meets them with state.

They know nothing of who runs them: a loop in a test, or Spark on a cluster. Either may run twice,
anywhere, at the same time; what it writes has a name that no other attempt can have.
"""

from __future__ import annotations

import pickle
import socket
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

from millpond.clock import Clock, SystemClock, elapsed, new_id
from millpond.codec import Unreadable
from millpond.errors import Corrupt, Incompatible, MillpondError, StepFailed, Unavailable
from millpond.log import pointer, segment
from millpond.log.segment import Change, SegmentOrigin
from millpond.messages import (
    BatchContext,
    ExchangePiece,
    Incomplete,
    KeyedResult,
    PlannedSplit,
    ReadHeader,
    ReadProgress,
    SegmentsByStep,
    TaskOutput,
    TooManyRows,
    TooMuch,
)
from millpond.pipeline.graph import Program, Read, StatefulStep
from millpond.replica import View
from millpond.rows.wire import unpack_in_order
from millpond.sources.base import Chunk, JsonLines, Source
from millpond.steps.failure import FAULTS, Stop, stop_for_error, unreadable_state
from millpond.steps.forks import refuse_forks
from millpond.storage import Storage, open_storage
from millpond.task.replicas import Tables, caught_up, laid_over, remember, with_tables
from millpond.task.router import Router
from millpond.timing import MAX_TICKS
from millpond.watermarks import marks, moved

UNLIMITED = 1 << 62  # rows
MOST_BLOB_BYTES = 1 << 30  # Spark cannot move 2 GiB from one task to one partition

# What ends a process, where it was not caught with the row that caused it: Spark would try again, to no purpose.
ENDINGS = tuple(kind for kind in FAULTS if kind is not Exception)
SOMEWHERE = "a function of the program"

Item = tuple[int, Any]  # a partition, and a Header or (task, number, exchange, blob)


@dataclass(frozen=True)
class Tools:
    """What a task works with; a test brings its own."""

    storage: Storage
    clock: Clock

    @classmethod
    def of(cls, context: BatchContext) -> Tools:
        return cls(open_storage(context.state_url), SystemClock())


def read_task(
    program: Program, context: BatchContext, task: int, planned: list[PlannedSplit], tools: Tools | None = None
) -> Iterator[Item]:
    """Read splits, run what comes before `key_by`, and give every partition its blobs and a header."""
    tools = tools or Tools.of(context)
    work = Router(program, context, 0, tools.clock)

    def read() -> list[ReadProgress]:
        found: list[ReadProgress] = []
        left = sum(UNLIMITED if item.share is None else item.share for item in planned)
        for item in planned:
            found.append(_read_split(work, program, item, left))
            left -= found[-1].rows
        return found

    yield from _handed_over(work, task, read, tools.storage)


def read_rows_task(
    program: Program, context: BatchContext, task: int, stream: str, place: int, chunks: Iterable[Chunk]
) -> Iterator[Item]:
    """The same for rows that someone else reads, as a streaming DataFrame does."""
    tools = Tools.of(context)
    work = Router(program, context, 0, tools.clock)

    def read() -> list[ReadProgress]:
        rows, _, _ = _push(work, program, stream, place, chunks)
        return [ReadProgress(stream, "", None, rows)]

    yield from _handed_over(work, task, read, tools.storage)


def _handed_over(work: Router, task: int, read: Callable[[], list[ReadProgress]], storage: Storage) -> Iterator[Item]:
    program, context = work.program, work.context
    nonce, progress = new_id(), []
    refuse_forks()
    try:
        progress = read()
        made = _written(work, storage, task % context.partitions, nonce, 1)
    except Stop as stop:
        made = TaskOutput(failure=_portable(stop.failure))
    except MillpondError as error:
        made = TaskOutput(failure=error)
    except ENDINGS as error:
        made = TaskOutput(failure=stop_for_error(SOMEWHERE, error, context.batch).failure)
    for partition in range(context.partitions):
        blobs: list[tuple[int, bytes]] = []
        if made.failure is None:
            for exchange, parts in work.leaving.blobs.items():
                if program.stages[exchange] == 1:
                    blobs.extend((exchange, blob) for blob in parts.get(partition, ()))
        first = partition == 0
        header = ReadHeader(task, nonce, len(blobs), made if first else None, progress if first else [])
        header.newest, header.units = work.times_read.newest, work.times_read.units
        yield partition, header
        for number, (exchange, blob) in enumerate(blobs):
            yield partition, (task, nonce, number, exchange, blob)


def _read_split(work: Router, program: Program, item: PlannedSplit, most: int) -> ReadProgress:
    node = program.reads[item.stream]
    assert isinstance(node.op, Read)
    source: Source = node.op.source
    work.partition = item.split.partition
    chunks = source.read(item.split)
    rows, size, position = _push(work, program, item.stream, item.place, chunks, most, item.is_last)
    found = item.split.start if position is _NOWHERE else position
    return ReadProgress(item.stream, item.split.place, found, rows, size)


_NOWHERE = object()


def _push(
    work: Router,
    program: Program,
    stream: str,
    place: int,
    chunks: Iterable[Chunk],
    most: int = UNLIMITED,
    may_stop: bool = False,
) -> tuple[int, int, Any]:
    """Send the rows of some chunks on their way; how many there were, their bytes, and the position after them.

    At most so many are taken. What is left over stays for the next batch, if reading `may_stop` before the end.
    """
    node = program.reads[stream]
    rows, size, position = 0, 0, _NOWHERE
    for chunk in _reading(stream, chunks):
        data = chunk.rows
        if isinstance(data, JsonLines):
            count, length = len(data.lines), sum(map(len, data.lines)) + len(data.lines)
        else:
            count, length = len(data), getattr(data, "nbytes", 0)
        count += len(chunk.bad)
        if rows + count > most:
            if may_stop and position is not _NOWHERE:
                break
            raise TooManyRows(stream, rows + count, size + length)
        work.read(node, chunk, (place << 32) + rows)
        rows, size, position = rows + count, size + length, chunk.position
        if work.leaving.blob_bytes > MOST_BLOB_BYTES:
            raise TooMuch(
                f"stream {stream!r}: a task made {work.leaving.blob_bytes} bytes of the rows that it read, and the "
                f"most is {MOST_BLOB_BYTES}. Make rows smaller, or let a batch of the stream have fewer of them."
            )
    return rows, size, position


def _reading(stream: str, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    try:
        yield from chunks
    except MillpondError:
        raise
    except (Exception, SystemExit) as error:
        text = f"stream {stream!r}: its source failed while reading: {type(error).__name__}: {error}"
        raise Unavailable(text) from error


def keyed_task(
    program: Program,
    context: BatchContext,
    stage: int,
    partition: int,
    items: list[Any],
    carried: dict[int, list[ExchangePiece]],
    *,
    tools: Tools | None = None,
    rebuild: bool = False,
) -> KeyedResult:
    """Catch the replica up, run the stage's steps over the rows, write segments, return pointers."""
    refuse_forks()
    began = elapsed()
    headers = [item for item in items if isinstance(item, ReadHeader)]
    blobs = sorted(item for item in items if not isinstance(item, ReadHeader))
    result = KeyedResult(partition, nonces={h.task: h.nonce for h in headers}, host=socket.gethostname())
    if partition == 0:
        result.headers = sorted(headers, key=lambda header: header.task)
    try:
        _all_of_one_attempt(headers, blobs)
        tools = tools or Tools.of(context)
        return _keyed(program, context, stage, result, headers, blobs, carried, tools, rebuild)
    except Incomplete as error:
        result.incomplete = str(error)
    except Stop as stop:
        result.output = TaskOutput(failure=_portable(stop.failure))
    except MillpondError as error:
        result.output = TaskOutput(failure=error)
    except ENDINGS as error:
        result.output = TaskOutput(failure=stop_for_error(SOMEWHERE, error, context.batch).failure)
    finally:
        result.seconds = elapsed() - began
    return result


def _keyed(
    program: Program,
    context: BatchContext,
    stage: int,
    result: KeyedResult,
    headers: list[ReadHeader],
    blobs: list[Any],
    carried: dict[int, list[ExchangePiece]],
    tools: Tools,
    rebuild: bool,
) -> KeyedResult:
    partition, storage = result.partition, tools.storage
    if any(h.output is not None and h.output.failure is not None for h in headers):
        return result
    arrived: dict[int, list[bytes]] = {}
    for _, _, _, exchange, blob in blobs:
        arrived.setdefault(exchange, []).append(blob)
    for exchange, pieces in carried.items():
        arrived.setdefault(exchange, []).extend(_fetched(storage, piece) for piece in pieces)

    if context.event_time.ends is None:  # every reading task has told how far time has come
        context = replace(
            context, event_time=replace(context.event_time, ends=moved(program, context.event_time, headers))
        )

    def work_on(tables: Tables) -> KeyedResult:
        def with_these(view: View) -> KeyedResult:
            return _with_state(program, context, stage, partition, arrived, view, tables, tools, result)

        return caught_up(storage, context, partition, with_these, anew=rebuild)

    return with_tables(storage, program, context, program.tables_everywhere(stage), work_on)


def _fetched(storage: Storage, piece: ExchangePiece) -> bytes:
    blob = storage.get_range(piece.path, piece.start, piece.length)
    if blob is None or crc32(blob) != piece.checksum:
        raise Incomplete(f"{piece.path} is {'gone' if blob is None else 'damaged'}")
    return blob


def _with_state(
    program: Program,
    context: BatchContext,
    stage: int,
    partition: int,
    arrived: dict[int, list[bytes]],
    view: View,
    tables: Tables,
    tools: Tools,
    result: KeyedResult,
) -> KeyedResult:
    work, storage = Router(program, context, stage, tools.clock), tools.storage
    if view.position != context.base:
        raise Incomplete(f"replica at record {view.position}, batch {context.batch} builds on {context.base}")
    ends = context.event_time.ends or {}
    laid = laid_over(storage, program, context, partition, view)
    work.begin(view, marks(program, context.event_time, ends), lambda step: tables.get(step) or laid(step))
    for exchange, blobs in arrived.items():
        for rows in unpack_in_order(blobs, work.codec):
            work.arrive(exchange, rows)
    work.end()
    changed = _changes(program, work)
    result.due = _due_next(program, work, view, changed)
    nonce = new_id()
    segments: SegmentsByStep = {}
    for step, changes in changed.items():
        origin = SegmentOrigin(context.app, step, partition, context.batch)
        path = context.paths.state(step, partition, context.attempt(nonce))
        segments[step] = [pointer.write_file(storage, path, segment.pack_state(changes, origin), len(changes))]
        remember(path, changes, origin)
    made = _written(work, storage, partition, nonce, stage)
    result.segments, result.output, result.ends = segments, made, ends
    for node, running in work.running.items():
        op, closed = program.nodes[node].op, running.closed_until
        if isinstance(op, StatefulStep) and closed is not None:
            result.closed[op.step.name] = closed
    return result


def _due_next(
    program: Program, work: Router, view: View, changed: dict[str, list[Change]]
) -> dict[str, tuple[int | None, int | None]]:
    """When something is to happen next to each step's state, by event time and by the clock."""
    found = {}
    for node in work.running:
        op = program.nodes[node].op
        assert isinstance(op, StatefulStep)
        changes = changed.get(op.step.name, [])
        if not view.has_times(op.step.name) and not any(c[3] is not None or c[4] is not None for c in changes):
            continue
        event = [change.due for change in changes if change.due is not None and change.value is not None]
        wall = [change.wall for change in changes if change.wall is not None and change.value is not None]
        now = round(work.context.now * 1_000_000)
        # What was due by now has been seen to by the step itself.
        for times, by_clock, after in ((event, False, work.ended[node]), (wall, True, now)):
            soonest = min(times, default=MAX_TICKS)
            for entry in view.due(op.step.name, soonest, wall=by_clock, after=after):
                place = bisect_left(changes, (entry.key, entry.cell))
                if place == len(changes) or changes[place][:2] != (entry.key, entry.cell):
                    time = entry.wall if by_clock else entry.due
                    assert time is not None
                    times.append(time)
                    break
        if event or wall:
            found[op.step.name] = (min(event, default=None), min(wall, default=None))
    return found


def _changes(program: Program, work: Router) -> dict[str, list[Change]]:
    found = {}
    for node, running in work.running.items():
        op = program.nodes[node].op
        assert isinstance(op, StatefulStep)
        try:
            changes = running.changes()
        except Unreadable as error:
            raise unreadable_state(op.step.name, error) from error
        except (Incompatible, Corrupt):
            raise
        except MillpondError as error:
            failed = StepFailed(op.step.name, batch=work.context.batch, error=str(error))
            raise Stop(failed) from error
        if changes:
            found[op.step.name] = changes
    return found


def _written(work: Router, storage: Storage, partition: int, nonce: str, stage: int) -> TaskOutput:
    context, made = work.context, work.made()
    for sink, data, rows in work.leaving.outputs(partition):
        path = context.paths.output(sink, partition, context.attempt(nonce))
        made.outputs[sink] = [pointer.write_file(storage, path, data, rows)]
    path = context.paths.exchange(context.attempt(nonce))
    data_carried, made.carried = work.leaving.carry(path, stage)
    if data_carried:
        storage.put(path, data_carried)
    return made


def _all_of_one_attempt(headers: list[ReadHeader], blobs: list[Any]) -> None:
    expected = {(h.task, h.nonce, number) for h in headers for number in range(h.blobs)}
    found = {(task, nonce, number) for task, nonce, number, _, _ in blobs}
    if expected != found or len({h.task for h in headers}) != len(headers):
        raise Incomplete("blobs of different attempts of a reading task")


def _portable(failure: StepFailed) -> StepFailed:
    """A failure that can be sent to the driver, whatever its row is made of."""
    try:
        pickle.loads(pickle.dumps(failure))
    except Exception:
        failure = StepFailed(
            failure.step,
            key=repr(failure.key),
            row=repr(failure.row),
            batch=failure.batch,
            error=failure.error,
            traceback=failure.traceback,
            where=failure.where,
            is_input=failure.is_input,
        )
    return failure
