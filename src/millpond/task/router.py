"""A task at work: rows are pushed through the graph until they reach an exchange or a sink."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import numpy as np

from millpond.clock import Clock
from millpond.codec import Codec, NotEncodable, Unreadable
from millpond.errors import InvalidUse
from millpond.log.record import StreamTime
from millpond.messages import BatchContext, TaskOutput, TooSoon
from millpond.pipeline import graph as g
from millpond.replica import View
from millpond.rows.rows import Rows, rows_of_chunk
from millpond.sources.base import Chunk, JsonLines
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
from millpond.task.keying import keyed
from millpond.task.outbox import Leaving
from millpond.task.readable import readable
from millpond.task.timestamps import Reader as TimeReader
from millpond.timing import Times, Unit, as_time, span, ticks, unit_of
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
        self._chunk: Chunk | None = None  # that is being read
        self._first = 0  # the order of its first row
        self.newest: dict[str, dict[str, int]] = {}  # stream → source partition → newest time
        self.units: dict[str, Unit] = {}
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
                self._saw(clock[0], clock_partition(*clock, self.partition), kept.times)
        return kept

    def _saw(self, clock: str, partition: str, times: Times) -> None:
        """Rows with these times have come: the watermark follows the newest."""
        if len(times):
            if self.units.setdefault(clock, times.unit) != times.unit:
                raise InvalidUse(f"stream {clock!r}: its times are datetimes in some rows and whole numbers in others")
            newest = self.newest.setdefault(clock, {})
            newest[partition] = max(newest.get(partition, -(1 << 62)), int(times.values.max()))

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
        """Rows come from a source, the first of them at place `first`."""
        op = node.op
        assert isinstance(op, g.Read)
        self._chunk, self._first = chunk, first
        for bad in chunk.bad:
            error = BadInput(bad.error, bad.where)
            self.failures.row(node.on_error, op.stream, error, key=None, row=bad.raw, order=first)
        rows = rows_of_chunk(chunk.rows, first)
        rows = readable(rows, self._failed(node, op.stream, rows))
        if rows.form == "json" and not self._may_stay_text(node):
            rows = self._decoded(node, op, rows)
        elif op.type is not None:
            rows = self._typed(node, op, rows)
        if op.timestamp is not None:
            rows = self._timed(node, op, rows)
        if rows.form == "json":
            self._text_to_keys(node, op, rows)
        else:
            self.leave(node.id, rows)

    def _origin(self, order: int) -> str | None:
        """Where the row of an order came from, in words, while its chunk is being read."""
        chunk = self._chunk
        if chunk is None or chunk.where is None:
            return None
        count = len(chunk.rows.lines) if isinstance(chunk.rows, JsonLines) else len(chunk.rows)
        place = int(order) - self._first
        return chunk.where(place) if 0 <= place < count else None

    def _may_stay_text(self, node: g.Node) -> bool:
        op = node.op
        assert isinstance(op, g.Read)
        readers = [self.program.nodes[r].op for r in self.program.consumers[node.id]]
        return (
            op.type is None
            and (op.timestamp is None or TimeReader(op.timestamp).field is not None)
            and all(isinstance(r, g.KeyBy) and all(isinstance(by, str) for by in r.by) for r in readers)
        )

    def _text_to_keys(self, node: g.Node, op: g.Read, rows: Rows) -> None:
        whole = rows
        for reader in self.program.consumers[node.id]:
            key = self.program.nodes[reader]
            assert isinstance(key.op, g.KeyBy)
            try:
                found = keyed(key.op, rows, _raise)
            except Exception:
                if whole is rows:
                    rows = self._decoded(node, op, rows)
                self._take(key, rows, node.id)
            else:
                self._exchange(key, found)

    def _decoded(self, node: g.Node, op: g.Read, rows: Rows) -> Rows:
        decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Any if op.type is None else op.type)
        lines: list[bytes] = rows.data
        try:
            found = decoder.decode_lines(b"\n".join(lines))
            if len(found) == len(lines):
                return rows.with_data(found)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass
        good, data = [], []
        for i, line in enumerate(lines):
            try:
                data.append(decoder.decode(line))
                good.append(i)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                text = line.decode("utf-8", "backslashreplace")
                wanted = "a JSON value" if op.type is None else getattr(op.type, "__name__", str(op.type))
                bad = BadInput(f"expected {wanted}: {error}")
                self.failures.row(node.on_error, op.stream, bad, key=None, row=text, order=rows.order[i])
        return Rows(data, [rows.order[i] for i in good])

    def _typed(self, node: g.Node, op: g.Read, rows: Rows) -> Rows:
        rows = rows.as_objects()
        good, data = [], []
        failed = self._failed(node, op.stream, rows)
        for i, row in enumerate(rows.data):
            try:
                is_it = isinstance(op.type, type) and isinstance(row, op.type)
                data.append(row if is_it else msgspec.convert(row, op.type, strict=False))
                good.append(i)
            except FAULTS as error:  # a __post_init__ may raise what it likes
                wanted = getattr(op.type, "__name__", str(op.type))
                failed(i, row, BadInput(f"expected {wanted}: {error}"))
        picked = rows if len(good) == len(rows) else rows.pick(good)
        return picked.with_data(data)

    def _timed(self, node: g.Node, op: g.Read, rows: Rows) -> Rows:
        """The rows with their times; those without one, or with one that nobody can believe, are left out."""
        reader = TimeReader(op.timestamp)
        times = reader.all(rows)
        known = self.units.get(op.stream) or self.context.event_time.times.get(op.stream, _NO_TIME).unit
        if times is None or (known is not None and times.unit != known):
            if rows.form == "json":
                rows = self._decoded(node, op, rows)
            rows = rows.as_objects()
            good, found = [], []
            failed = self._failed(node, op.stream, rows)
            unit = known
            for i, row in enumerate(rows.data):
                try:
                    time = reader.one(row, unit)
                    unit = time.unit
                    found.append(int(time.values[0]))
                    good.append(i)
                except FAULTS as error:
                    failed(i, row, error)
            rows = rows if len(good) == len(rows) else rows.pick(good)
            times = Times(found, unit or "number")
        rows.times = times
        rows = self._believed(node, op, rows)
        assert rows.times is not None
        self._saw(op.stream, self.partition, rows.times)
        return rows

    def _believed(self, node: g.Node, op: g.Read, rows: Rows) -> Rows:
        """A time far ahead of everything would drive the watermark away for good: such a row is not on time."""
        times, held = rows.times, self.context.event_time.times.get(op.stream, _NO_TIME)
        if (
            times is None
            or len(times) == 0
            or op.ahead is None
            or isinstance(op.ahead, int) is (times.unit == "instant")
        ):
            return rows
        limit = span(op.ahead, times.unit, "ahead")
        seen = [*held.newest.values(), *self.newest.get(op.stream, {}).values()]
        if times.unit == "instant" and self.context.event_time.bound is not None:
            seen.append(self.context.event_time.bound)
        newest = max(seen) if seen else int(times.values[0])
        if int(times.values.max()) <= newest + limit:
            return rows
        if self.context.is_read_ahead:  # the batch before this one may move what is believed
            raise TooSoon(f"stream {op.stream!r}")
        good: list[int] = []
        for i, time in enumerate(times.values.tolist()):
            if time <= newest + limit:
                newest = max(newest, time)
                good.append(i)
        kept = set(good)
        away = rows.pick([i for i in range(len(rows)) if i not in kept])
        judges = [r for r in self.program.consumers[node.id] if self.program.nodes[r].op == g.LateSplit(late=True)]
        self.late[op.stream] = self.late.get(op.stream, 0) + len(away)
        if judges and node.on_error == "stop":
            for judge in judges:
                self.leave(judge, self._copied(node.id, away.as_objects())[1])
        else:
            failed = self._failed(node, op.stream, away)
            for i, row in enumerate(away.objects()):
                assert away.times is not None
                failed(i, row, BadInput(f"timestamp: {away.times[i]} lies more than {op.ahead} ahead (stream(ahead=))"))
        return rows.pick(good)

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


_NO_TIME = StreamTime()


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
