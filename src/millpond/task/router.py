"""The router of a task: it gives the rows that leave a node to the operators that consume them.

What an operator does to rows is in `steps/`. The router starts each operator once per task, copies rows for consumers
that may change them, and puts what leaves the task into the outbox.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from millpond.clock import Clock
from millpond.codec import NotEncodable, Unreadable
from millpond.errors import Corrupt, Incompatible, MillpondError, StepFailed
from millpond.log.segment import Change
from millpond.messages import BatchContext, ReadHeader, TaskOutput
from millpond.pipeline import graph as g
from millpond.replica import View
from millpond.rows.rows import Rows, Times
from millpond.rows.wire import Blob, unpack_in_order
from millpond.sources.base import Chunk
from millpond.steps.base import Running, StepContext
from millpond.steps.failure import Failures, Stop, any_copy, unreadable_state
from millpond.steps.operator import OperatorContext, RunningOperator
from millpond.steps.state.lazy_migration import UNMARKED
from millpond.steps.state.table_rows import PartitionRows, RowDecoder, TableRows
from millpond.steps.verbs.key_by import KeyBy, assign_keys
from millpond.steps.verbs.late_split import LateSplit
from millpond.task.changelog import Changelog, ReadGiven
from millpond.task.decode import ChunkDecoder, TimesRead
from millpond.task.outbox import Outbox
from millpond.task.timestamps import TimeReader
from millpond.watermarks import BatchTimes, batch_times, clock_partition


class Router:
    """Moves rows through a program within one task, which may own a partition. One thread uses it."""

    def __init__(
        self,
        program: g.Program,
        context: BatchContext,
        stage: int,
        clock: Clock,
        headers: Sequence[ReadHeader] = (),
        owned: int | None = None,
    ) -> None:
        self.program, self.context, self.stage = program, context, stage
        self._headers = headers  # of the reading tasks, in the first stage
        self.codec = program.codec
        self.failures = Failures(context.batch, clock, self._bury, self._origin, partition=owned)
        self._operators: dict[int, RunningOperator] = {}  # node → its operator, once it is started
        self.running: dict[int, Running] = {}  # those of them that have state
        self.step_names: dict[int, str] = {}  # node → the name of its step, for those
        self.changes: dict[str, Sequence[Change]] = {}  # step → what has changed in its state; there after `run`
        self.partition = ""  # of the source that is being read
        self._decoders: dict[int, ChunkDecoder] = {}  # node of a stream → what decodes its chunks
        self._reading: ChunkDecoder | None = None  # of the stream that is being read
        self.times_read = TimesRead()
        self._late: dict[str, int] = {}  # step or stream → rows that came too late
        output = TaskOutput(skipped=self.failures.skipped, late=self._late)
        self.outbox = Outbox(program, context, self.codec, output)

    @cached_property
    def times(self) -> BatchTimes:
        """The event time of the batch."""
        return batch_times(self.program, self.context.event_time, self.context.now, self._headers)

    # --- from node to node ---

    def emit(self, node: int, rows: Rows) -> None:
        """Send the output of a node to its consumers, or to another stage.

        Each consumer that may change rows gets its own: a copy, unless no other consumer needs the original.
        """
        if len(rows.order) == 0:
            return
        if self.stage < self.program.exchange_stages[node]:
            self._exchange(self.program.nodes[node], rows)
            return
        for route in self.program.routes[node]:
            own = rows
            if route.needs_copy:
                rows, own = self._copy_rows(node, rows)
            if route.is_sink:
                self._deliver(self.program.nodes[route.consumer], own)
                continue
            operator = self._operators.get(route.consumer) or self._start(route.consumer)
            try:
                output = operator.run(own, route.side)
                for part in (output,) if isinstance(output, Rows) else output:
                    self.emit(route.consumer, part)
            except Unreadable as error:
                if not route.has_state:
                    raise
                raise unreadable_state(self.program.nodes[route.consumer].name, error) from error
            if route.has_state:
                self._emit_side_rows(route.consumer)

    def _start(self, node: int) -> RunningOperator:
        """Start the operator of a node. Steps are started by `_begin`."""
        at, op = self.program.nodes[node], self.program.nodes[node].op
        clock = self.program.clocks.get(node)
        context = OperatorContext(
            name=at.name,
            on_error=at.policy,
            failures=self.failures,
            clock=self.failures.clock,
            now=self.context.now,
            watermark=self.times.began[at.inputs[0]].at,
            cache=self.program.caches.get(node),
            report_times=None if clock is None else partial(self._report_times, *clock),
            emit=partial(self._emit_port, node),
        )
        self._operators[node] = operator = op.start(context)
        return operator

    def _emit_port(self, node: int, port: str, rows: Rows) -> None:
        """Send rows to the consumers of a named output."""
        for stand_in in self.program.ports.get((node, port), ()):
            self.emit(stand_in, rows)

    def _emit_side_rows(self, node: int) -> None:
        """Send what a step has put aside to the consumers of its side output."""
        running = self.running[node]
        for rows in running.take_side_rows() if running.has_side_rows else ():
            for stand_in in self.program.ports.get((node, g.ASIDE), ()):
                self.emit(stand_in, rows.copy())

    def _copy_rows(self, node: int, rows: Rows) -> tuple[Rows, Rows]:
        """Return the rows, and copies of them. A row that cannot be copied has failed and is in neither."""
        try:
            return rows, rows.copy()
        except NotEncodable:
            pass  # a row that is never stored need not be storable
        good, data = [], []
        made_by = self.program.nodes[node]
        policy = made_by.policy if made_by.op.has_state else made_by.on_error
        failed = self.failures.reporter(policy, made_by.name, rows)
        for i, row in enumerate(rows.data):
            try:
                data.append(any_copy(row))
                good.append(i)
            except NotEncodable as error:
                failed(i, row, error)
        left = rows if len(good) == len(rows) else rows.pick(good)
        return left, left.with_data(data)

    def _report_times(self, clock: str, read: g.Read, times: Times) -> None:
        self.times_read.add(clock, clock_partition(clock, read, self.partition), times)

    def _bury(self, letter: dict[str, Any], order: int) -> None:
        """Send a dead letter to the consumers of `app.dead_letters`, if there are any."""
        node = self.program.dead_letters
        if node is None:
            return
        for part in ("row", "key"):
            try:  # the letter gets a copy: the row may still be on its way elsewhere
                letter[part] = self.codec.decode(self.codec.encode(letter[part]))
            except Exception:
                letter[part] = repr(letter[part])
        self.emit(node, Rows([letter], [order]))

    # --- rows come in ---

    def arrive(self, exchange: int, rows: Rows) -> None:
        """Take rows that a task of an earlier stage has sent to an exchange."""
        if self.program.nodes[exchange].keyed is None:  # they have keys only to spread them over the partitions
            rows.keys = None
        self.emit(exchange, rows)

    def read(self, node: g.Node, chunk: Chunk, first: int) -> None:
        """Decode rows of a source, the first of them at place `first`, and send them on their way."""
        decoder = self._reading = self._decoder(node)
        rows, too_early = decoder.decode(chunk, first, self.partition)
        if too_early is not None:
            self._emit_too_early(node, decoder, too_early)
        if rows.form == "json":
            self._emit_text(node, decoder, rows)
        else:
            self.emit(node.id, rows)

    def _decoder(self, node: g.Node) -> ChunkDecoder:
        found = self._decoders.get(node.id)
        if found is None:
            keeps_text = self._may_stay_text(node)
            found = ChunkDecoder(node, self.context, self.failures, self.times_read, keeps_text)
            self._decoders[node.id] = found
        return found

    def _emit_too_early(self, node: g.Node, decoder: ChunkDecoder, rows: Rows) -> None:
        """Send rows whose time is too far in the future to the stream of late rows, if there is one; else they fail."""
        assert isinstance(node.op, g.Read)
        splits = [r for r in self.program.consumers[node.id] if self.program.nodes[r].op == LateSplit(late=True)]
        self._count_late(node.op.stream, len(rows))
        if splits and node.on_error == "stop":
            for split in splits:
                self.emit(split, self._copy_rows(node.id, rows.as_objects())[1])
        else:
            decoder.fail_too_early(rows)

    def _origin(self, order: int) -> str | None:
        """Return where the row of an order came from, in words, while its chunk is being read."""
        return None if self._reading is None else self._reading.locate(order)

    def _may_stay_text(self, node: g.Node) -> bool:
        """Return whether the JSON lines of a stream need not be decoded in this task: all consumers can do without."""
        op = node.op
        assert isinstance(op, g.Read)
        return (
            op.type is None
            and (op.timestamp is None or TimeReader(op.timestamp).field is not None)
            and self.program.consumers_read_text[node.id]
        )

    def _emit_text(self, node: g.Node, decoder: ChunkDecoder, rows: Rows) -> None:
        """Send JSON lines to `key_by`. If a line is not as expected, all of them are decoded to find out which."""
        whole = rows
        for reader in self.program.consumers[node.id]:
            key = self.program.nodes[reader]
            assert isinstance(key.op, KeyBy)
            try:
                keyed_rows = assign_keys(key.op, rows, _raise)
            except Exception:
                if whole is rows:
                    rows = decoder.decode_json(rows)
                keyed_rows = assign_keys(key.op, rows, self.failures.reporter(key.policy, key.name, rows))
            self.emit(reader, keyed_rows)

    # --- rows go out ---

    def _exchange(self, node: g.Node, rows: Rows) -> None:
        self.outbox.exchange(
            node.id, rows, lambda rows: self.failures.reporter(node.policy, node.op.exchange_name, rows)
        )

    def _deliver(self, node: g.Node, rows: Rows) -> None:
        self.outbox.deliver(node.name, rows, partial(self.failures.reporter, node.policy, node.name))

    # --- steps with state ---

    def run(
        self,
        view: View,
        tables: Callable[[str], TableRows],
        read_given: ReadGiven,
        arrived: Mapping[int, Sequence[Blob]],
    ) -> None:
        """Run the steps of this stage over the rows that arrived at each exchange, and let them do what is due.

        `tables(step)` returns the rows of a table that a task of an earlier stage has changed. `read_given` returns
        the state that the readers of a stream of changes have been given.
        """
        self._begin(view, tables)
        for exchange, blobs in arrived.items():
            for rows in unpack_in_order(blobs, self.codec):
                self.arrive(exchange, rows)
        self._end(view, read_given)

    def _begin(self, view: View, tables: Callable[[str], TableRows]) -> None:
        """Start the steps of this stage."""
        context, event_time = self.context, self.context.event_time
        for node in self.program.nodes:
            if isinstance(node.op, g.StatefulStep) and self.program.stages[node.id] == self.stage:
                step = node.op.step
                step_context = StepContext(
                    view=view,
                    codec=self.codec,
                    failures=self.failures,
                    time=self.times.steps[node.id],
                    arrival=context.batch + context.arrivals,
                    previous_detail=event_time.details.get(step.name),
                    count_late=partial(self._count_late, step.name),
                    tables={self.program.nodes[i].name: self._table_rows(i, tables) for i in node.op.tables},
                    may_emit_in_parts=node.id in self.program.leading_out,
                )
                self._operators[node.id] = self.running[node.id] = step.start(step_context)
                self.step_names[node.id] = step.name

    def _count_late(self, step: str, count: int) -> None:
        self._late[step] = self._late.get(step, 0) + count

    def _table_rows(self, table: int, tables: Callable[[str], TableRows]) -> TableRows:
        name, running = self.program.nodes[table].name, self.running.get(table)
        return tables(name) if running is None else PartitionRows(RowDecoder(name, self.codec), running.read_rows)

    def _end(self, view: View, read_given: ReadGiven) -> None:
        """Let every step do what is due, once all rows have come; in the order in which rows flow."""
        for node in sorted(self.running):
            try:
                running = self.running[node]
                output = running.end() if running.acts_at_end else None
            except Unreadable as error:
                raise unreadable_state(self.program.nodes[node].name, error) from error
            for rows in output if isinstance(output, list) else [output]:
                if rows is not None:
                    self.emit(node, rows)
            self._emit_side_rows(node)
            self._emit_changes(node, view, read_given)
        for node, running in self.running.items():
            name = self.step_names[node]
            if name not in self.changes:
                self.changes[name] = self._take_changes(name, running)

    def _take_changes(self, name: str, running: Running) -> Sequence[Change]:
        """Return what has changed in the state of a step. Called once, when all of its rows have come."""
        try:
            return running.changes()
        except Unreadable as error:
            raise unreadable_state(name, error) from error
        except (Incompatible, Corrupt):
            raise
        except MillpondError as error:
            raise Stop(StepFailed(name, batch=self.context.batch, error=str(error), is_raised=False)) from error

    def _emit_changes(self, node: int, view: View, read_given: ReadGiven) -> None:
        """Send the changes of a step's state to the streams of `app.changes`, if there are any."""
        streams = self.program.ports.get((node, g.CHANGES), ())
        if not streams:
            return
        op, context = self.program.nodes[node].op, self.context
        assert isinstance(op, g.StatefulStep)
        oldest = context.event_time.details.get(op.step.name, {}).get(UNMARKED)
        changes = self.changes[op.step.name] = self._take_changes(op.step.name, self.running[node])
        log = Changelog(op.step, changes, view, self.codec, context.batch, context.now, oldest)
        for stream in streams:
            try:
                for rows in log.rows(context.backlogs.get(stream), read_given):
                    self.emit(stream, rows)
            except Unreadable as error:
                raise unreadable_state(op.step.name, error) from error


def _raise(i: int, row: Any, error: BaseException, again: Callable[[], None] | None = None) -> None:
    raise error
