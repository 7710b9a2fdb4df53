"""A task at work: rows are pushed through the graph until they reach an exchange or a sink."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from millpond.clock import Clock
from millpond.codec import Codec, NotEncodable, Unreadable
from millpond.messages import BatchContext, TaskOutput
from millpond.pipeline import graph as g
from millpond.replica import View
from millpond.rows.rows import Rows
from millpond.sources.base import Chunk
from millpond.steps.base import BatchTime, Running, StepContext, TableReader, several
from millpond.steps.failure import (
    FAULTS,
    BadInput,
    Failed,
    Failures,
    OnError,
    any_copy,
    is_needed_again,
    own_copy,
    unreadable,
)
from millpond.steps.verbs.external_lookup import ExternalLookup, fetched
from millpond.steps.verbs.map_async import MapAsync, mapped
from millpond.task.decode import ChunkDecoder, TimesRead
from millpond.task.keying import keyed
from millpond.task.outbox import Leaving
from millpond.task.timestamps import Reader as TimeReader
from millpond.timing import Times, as_time, ticks, unit_of
from millpond.watermarks import Mark, at_end, clock_partition, incoming, marks


class Router:
    """The way of some rows through a program, within one task."""

    def __init__(self, program: g.Program, context: BatchContext, stage: int, clock: Clock) -> None:
        self.program, self.context, self.stage = program, context, stage
        self.codec = Codec(program.types)
        self.failures = Failures(context.batch, clock, self._bury, self._origin)
        self.running: dict[int, Running] = {}
        self.leaving = Leaving(program, context, self.codec)
        self.partition = ""  # of the source that is being read
        self._decoders: dict[int, ChunkDecoder] = {}  # node of a stream → what decodes its chunks
        self._reading: ChunkDecoder | None = None  # of the stream that is being read
        self.times_read = TimesRead()
        self.late: dict[str, int] = {}
        self.ended: dict[int, int | None] = {}  # step's node → the watermark that the batch ends with, there
        self._began = marks(program, context.event_time, context.event_time.times)

    # --- rows move ---

    def leave(self, node: int, rows: Rows) -> None:
        """Rows come out of a node: everyone who reads from it gets them, and nobody shares one."""
        if len(rows) == 0:
            return
        readers = [r for r in self.program.consumers[node] if not isinstance(self.program.nodes[r].op, g.SideOutput)]
        changers = [r for r in readers if isinstance(self.program.nodes[r].op, g.MAY_CHANGE)]
        for reader in readers:
            shared = reader in changers[:-1] or (reader in changers and len(changers) < len(readers))
            own = rows
            if shared:
                rows, own = self._copied(node, rows)
            self._take(self.program.nodes[reader], own, node)

    def _copied(self, node: int, rows: Rows) -> tuple[Rows, Rows]:
        """The rows, and copies of them for a reader that may change its own. A row that cannot be copied has failed."""
        try:
            return rows, rows.copy()
        except NotEncodable:
            pass  # what is never stored need not be storable
        good, data = [], []
        made_by = self.program.nodes[node]
        step = made_by.op.step if isinstance(made_by.op, g.StatefulStep) else None
        name = _name_of(made_by.op) if step is None else step.name
        failed = self._failed(made_by, name, rows, None if step is None else step.on_error)
        for i, row in enumerate(rows.data):
            try:
                data.append(any_copy(row))
                good.append(i)
            except NotEncodable as error:
                failed(i, row, error)
        left = rows if len(good) == len(rows) else rows.pick(good)
        return left, left.with_data(data)

    def _put_aside(self, node: int, running: Running) -> None:
        """What a step has put aside goes to its side stream."""
        for rows in running.take_side_rows():
            for reader in self.program.consumers[node]:
                if isinstance(self.program.nodes[reader].op, g.SideOutput):
                    self.leave(reader, rows.copy())

    def _take(self, node: g.Node, rows: Rows, source: int) -> None:
        op = node.op
        if isinstance(op, g.KeyBy):
            self._exchange(node, keyed(op, rows, self._failed(node, f"key_by({', '.join(op.names)})", rows)))
        elif isinstance(op, g.Deliver):
            self._deliver(node, op.name, rows)
        elif isinstance(op, g.StatefulStep):
            running = self.running[node.id]
            try:
                made = running.run(rows, node.inputs.index(source))
                for part in (made,) if isinstance(made, Rows) else made:
                    self.leave(node.id, part)
            except Unreadable as error:
                raise unreadable(op.step.name, error) from error
            self._put_aside(node.id, running)
        elif isinstance(op, g.JoinInput):
            if self.program.stages[node.id] > self.stage:
                self._exchange(node, rows)
            else:
                self.leave(node.id, rows)
        elif isinstance(op, MapAsync):
            failed = self._failed(node, "map_async", rows, op.on_error)
            self.leave(node.id, mapped(op, rows, self.failures.clock, failed))
        elif isinstance(op, ExternalLookup):
            self.leave(node.id, self._fetched(node, op, rows))
        elif isinstance(op, g.LateSplit):
            self.leave(node.id, self._judged(node, op, rows))
        elif isinstance(op, g.Branch):
            self._branch(node, op, rows)
        elif isinstance(op, g.Union):
            self.leave(node.id, Rows(rows.data, rows.order, form=rows.form, times=rows.times))
        elif not isinstance(op, (g.Read, g.DeadLetters, g.Pick)):
            self.leave(node.id, self._each(node, op, rows))

    def _judged(self, node: g.Node, op: g.LateSplit, rows: Rows) -> Rows:
        at = self._began[node.inputs[0]].at
        if rows.times is None or at is None:
            return rows.pick([]) if op.late else rows
        late = rows.times.values < at
        chosen = np.flatnonzero(late if op.late else ~late)
        return rows if len(chosen) == len(rows) else rows.pick(chosen.tolist())

    def _failed(self, node: g.Node, step: str, rows: Rows, policy: OnError | None = None) -> Failed:
        def failed(i: int, row: Any, error: BaseException, again: Callable[[], None] | None = None) -> None:
            key = None if rows.keys is None else rows.keys.of(i)
            on_error = policy or node.on_error
            self.failures.row(on_error, step, error, key=key, row=row, order=rows.order[i], again=again)

        return failed

    def _fetched(self, node: g.Node, op: ExternalLookup, rows: Rows) -> Rows:
        def failing(rows: Rows) -> Failed:
            return self._failed(node, op.name, rows, op.on_error)

        return fetched(op, rows, self.program.caches[node.id], self.context.now, self.failures.clock, failing)

    def _each(self, node: g.Node, op: Any, rows: Rows) -> Rows:
        """The stateless verbs, row by row."""
        rows = rows.as_objects()
        f, data, came = op.f, [], []
        times: list[Any] = []
        clock = self.program.clocks.get(node.id)
        verb = type(op).__name__
        is_kept = is_needed_again(node.on_error)

        def once(i: int) -> None:
            row = own_copy(rows.data[i]) if is_kept else rows.data[i]
            if verb == "FlatMap":
                found = several(f(row))
                data.extend(found)
                came.extend([i] * len(found))
                return
            result = f(row)
            if verb == "Filter" and not result:
                return
            if verb == "WithTime":
                try:
                    time = as_time(result)
                except ValueError as error:
                    raise BadInput(f"with_time: {error}") from error
                if times and unit_of(time) != unit_of(times[0]):
                    raise BadInput(f"with_time: expected a time like those before it, such as {times[0]}, got {time}")
                ticks(time)
                times.append(time)
            data.append(result if verb == "Map" else row)
            came.append(i)

        for i in range(len(rows)):
            try:
                once(i)
            except FAULTS as error:
                key = None if rows.keys is None else rows.keys.of(i)
                self.failures.row(
                    node.on_error,
                    _VERBS[verb],
                    error,
                    key=key,
                    row=rows.data[i],
                    order=rows.order[i],
                    again=lambda i=i: once(i),  # type: ignore[misc]
                )
        if len(came) == len(rows) and verb != "FlatMap":
            kept = rows.with_data(data)
        else:
            kept = rows.pick(came)
            kept.data = data
        if times:
            kept.times = Times([ticks(time) for time in times], unit_of(times[0]))
            if clock is not None:
                self.times_read.add(clock[0], clock_partition(*clock, self.partition), kept.times)
        return kept

    def _branch(self, node: g.Node, op: g.Branch, rows: Rows) -> None:
        rows = rows.as_objects()
        parts: dict[str, list[int]] = {name: [] for name, _ in op.predicates}
        parts["rest"] = []
        failed = self._failed(node, "branch", rows)

        def once(i: int, row: Any) -> None:
            parts[next((name for name, f in op.predicates if f(row)), "rest")].append(i)

        for i, row in enumerate(rows.data):
            try:
                once(i, row)
            except FAULTS as error:
                failed(i, row, error, lambda i=i, row=row: once(i, row))  # type: ignore[misc]
        for reader in self.program.consumers[node.id]:
            pick = self.program.nodes[reader].op
            assert isinstance(pick, g.Pick)
            if parts[pick.branch]:
                self.leave(reader, rows.pick(parts[pick.branch]))

    def _bury(self, letter: dict[str, Any], order: int) -> None:
        node = self.program.dead_letters
        if node is None:
            return
        for part in ("row", "key"):
            try:  # a letter of its own: the row may still be on its way elsewhere
                letter[part] = self.codec.decode(self.codec.encode(letter[part]))
            except Exception:
                letter[part] = repr(letter[part])
        self.leave(node, Rows([letter], [order]))

    # --- rows come in ---

    def arrive(self, exchange: int, rows: Rows) -> None:
        """Rows come out of an exchange."""
        if self.program.nodes[exchange].keyed is None:  # they had no key, and were given one for the way
            rows.keys = None
        self.leave(exchange, rows)

    def read(self, node: g.Node, chunk: Chunk, first: int) -> None:
        """Decode rows of a source, the first of them at place `first`, and send them on their way."""
        decoder = self._reading = self._decoder(node)
        rows, too_early = decoder.decode(chunk, first, self.partition)
        if too_early is not None:
            self._leave_too_early(node, decoder, too_early)
        if rows.form == "json":
            self._text_to_keys(node, decoder, rows)
        else:
            self.leave(node.id, rows)

    def _decoder(self, node: g.Node) -> ChunkDecoder:
        found = self._decoders.get(node.id)
        if found is None:
            keeps_text = self._may_stay_text(node)
            found = ChunkDecoder(node, self.context, self.failures, self.times_read, keeps_text)
            self._decoders[node.id] = found
        return found

    def _leave_too_early(self, node: g.Node, decoder: ChunkDecoder, rows: Rows) -> None:
        """Send rows whose time is too far in the future to the stream of late rows, if there is one; else they fail."""
        assert isinstance(node.op, g.Read)
        judges = [r for r in self.program.consumers[node.id] if self.program.nodes[r].op == g.LateSplit(late=True)]
        self.late[node.op.stream] = self.late.get(node.op.stream, 0) + len(rows)
        if judges and node.on_error == "stop":
            for judge in judges:
                self.leave(judge, self._copied(node.id, rows.as_objects())[1])
        else:
            decoder.fail_too_early(rows)

    def _origin(self, order: int) -> str | None:
        """Return where the row of an order came from, in words, while its chunk is being read."""
        return None if self._reading is None else self._reading.locate(order)

    def _may_stay_text(self, node: g.Node) -> bool:
        op = node.op
        assert isinstance(op, g.Read)
        readers = [self.program.nodes[r].op for r in self.program.consumers[node.id]]
        return (
            op.type is None
            and (op.timestamp is None or TimeReader(op.timestamp).field is not None)
            and all(isinstance(r, g.KeyBy) and all(isinstance(by, str) for by in r.by) for r in readers)
        )

    def _text_to_keys(self, node: g.Node, decoder: ChunkDecoder, rows: Rows) -> None:
        whole = rows
        for reader in self.program.consumers[node.id]:
            key = self.program.nodes[reader]
            assert isinstance(key.op, g.KeyBy)
            try:
                found = keyed(key.op, rows, _raise)
            except Exception:
                if whole is rows:
                    rows = decoder.decode_json(rows)
                self._take(key, rows, node.id)
            else:
                self._exchange(key, found)

    # --- rows go out ---

    def _exchange(self, node: g.Node, rows: Rows) -> None:
        step, policy = "key_by", node.on_error
        if isinstance(node.op, g.JoinInput):  # the step that it is a side of stands for it
            op = self.program.nodes[self.program.consumers[node.id][0]].op
            assert isinstance(op, g.StatefulStep)
            step, policy = op.step.name, op.step.on_error
        self.leaving.exchange(node.id, rows, lambda: self._failed(node, step, rows, policy))

    def _deliver(self, node: g.Node, sink: str, rows: Rows) -> None:
        self.leaving.deliver(sink, rows, lambda: self._failed(node, sink, rows))

    def begin(self, view: View, ends: list[Mark], tables: Callable[[str], TableReader]) -> None:
        """Start the steps of this stage; `ends` are the marks of all nodes as the batch ends.

        `tables` gives what reads a table of an earlier stage.
        """
        context, event_time = self.context, self.context.event_time
        for node in self.program.nodes:
            if isinstance(node.op, g.StatefulStep) and self.program.stages[node.id] == self.stage:
                step = node.op.step
                began = incoming(self.program, event_time, self._began, node.id)
                end = incoming(self.program, event_time, ends, node.id)
                time = BatchTime(
                    now=context.now,
                    unit=end.unit,
                    start_watermark=began.at,
                    end_watermark=at_end(end, event_time.final),
                    expiry_watermark=end.at,
                    is_final=event_time.final,
                )
                step_context = StepContext(
                    view=view,
                    codec=self.codec,
                    failures=self.failures,
                    time=time,
                    arrival=context.arrival,
                    previous_detail=event_time.details.get(step.name),
                    count_late=partial(self._count_late, step.name),
                    read_table=None if node.op.table is None else self._reader(node.op.table, tables),
                    may_emit_in_parts=node.id in self.program.leading_out,
                )
                self.ended[node.id] = end.at
                self.running[node.id] = step.start(step_context)

    def _count_late(self, step: str, count: int) -> None:
        self.late[step] = self.late.get(step, 0) + count

    def _reader(self, table: int, tables: Callable[[str], TableReader]) -> TableReader:
        running, op = self.running.get(table), self.program.nodes[table].op
        assert isinstance(op, g.StatefulStep)
        return tables(op.step.name) if running is None else running.read_rows

    def end(self) -> None:
        """All rows have come: every step does what is due, one after the other as their rows flow."""
        for node in sorted(self.running):
            try:
                made = self.running[node].end()
            except Unreadable as error:
                op = self.program.nodes[node].op
                raise unreadable(op.step.name if isinstance(op, g.StatefulStep) else "", error) from error
            for rows in made if isinstance(made, list) else [made]:
                if rows is not None:
                    self.leave(node, rows)
            self._put_aside(node, self.running[node])

    def made(self) -> TaskOutput:
        return TaskOutput(skipped=dict(self.failures.skipped), late=dict(self.late))


def _raise(i: int, row: Any, error: BaseException, again: Callable[[], None] | None = None) -> None:
    raise error


def _name_of(op: g.Op) -> str:
    """What an operation that keeps no state is called in errors."""
    if isinstance(op, g.Read):
        return op.stream
    return getattr(op, "name", None) or _VERBS.get(type(op).__name__, type(op).__name__.lower())


_VERBS = {
    "Map": "map",
    "Filter": "filter",
    "FlatMap": "flat_map",
    "Inspect": "inspect",
    "WithTime": "with_time",
    "MapAsync": "map_async",
}
