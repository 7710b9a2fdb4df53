"""A task at work: rows are pushed through the graph until they reach an exchange or a sink."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

import msgspec

from millpond.clock import Clock
from millpond.codec import Codec
from millpond.flow import Chunk
from millpond.log.segment import Origin, pack_outputs
from millpond.pipeline import graph as g
from millpond.pipeline.stream import read_field
from millpond.rows import Rows, pack_rows, shaped
from millpond.run.context import Context, Made, Piece
from millpond.run.keying import Failed, keyed, parted
from millpond.steps.base import Running, Turn
from millpond.steps.failure import BadInput, Failures, is_needed_again, own_copy
from millpond.timing import as_time


class Work:
    """The way of some rows through a program, within one task."""

    def __init__(self, program: g.Program, context: Context, stage: int, clock: Clock) -> None:
        self.program, self.context, self.stage = program, context, stage
        self.codec = Codec(program.types)
        self.failures = Failures(context.batch, clock, self._bury)
        self.running: dict[int, Running] = {}
        self.blobs: dict[int, dict[int, list[bytes]]] = {}  # exchange → partition → blobs
        self.blob_bytes = 0
        self._outputs: dict[str, tuple[list[int], list[bytes]]] = {}

    # --- rows move ---

    def leave(self, node: int, rows: Rows) -> None:
        """Rows come out of a node: everyone who reads from it gets them, and nobody shares one."""
        if len(rows) == 0:
            return
        readers = self.program.consumers[node]
        changers = [r for r in readers if isinstance(self.program.nodes[r].op, g.MAY_CHANGE)]
        for reader in readers:
            shared = reader in changers[:-1] or (reader in changers and len(changers) < len(readers))
            self._take(self.program.nodes[reader], rows.copied() if shared else rows)

    def _take(self, node: g.Node, rows: Rows) -> None:
        op = node.op
        if isinstance(op, g.Key):
            self._exchange(node, keyed(op, rows, self._failed(node, f"key_by({', '.join(op.names)})", rows)))
        elif isinstance(op, g.Deliver):
            self._deliver(node, op.name, rows)
        elif isinstance(op, g.Keep):
            self.leave(node.id, self.running[node.id].run(rows))
        elif isinstance(op, g.Branch):
            self._branch(node, op, rows)
        elif isinstance(op, g.Union):
            self.leave(node.id, Rows(rows.data, rows.order, form=rows.form, times=rows.times))
        elif not isinstance(op, (g.Read, g.DeadLetters, g.Pick)):
            self.leave(node.id, self._each(node, op, rows))

    def _failed(self, node: g.Node, step: str, rows: Rows) -> Failed:
        def failed(i: int, row: Any, error: Exception, again: Callable[[], None] | None = None) -> None:
            if isinstance(error, LookupError) and type(error) is LookupError:
                error = BadInput(str(error))
            key = None if rows.keys is None else rows.keys.of(i)
            self.failures.row(node.on_error, step, error, key=key, row=row, order=rows.order[i], again=again)

        return failed

    def _each(self, node: g.Node, op: Any, rows: Rows) -> Rows:
        """The stateless verbs, row by row."""
        rows = rows.as_objects()
        f, data, came = op.f, [], []
        times: list[Any] | None = [] if isinstance(op, g.WithTime) else None
        verb = type(op).__name__
        is_kept = is_needed_again(node.on_error)

        def once(i: int) -> None:
            row = own_copy(rows.data[i]) if is_kept else rows.data[i]
            if verb == "FlatMap":
                found = list(f(row))
                data.extend(found)
                came.extend([i] * len(found))
                return
            result = f(row)
            if verb == "Filter" and not result:
                return
            if times is not None:
                times.append(as_time(result))
            data.append(result if verb == "Map" else row)
            came.append(i)

        for i in range(len(rows)):
            try:
                once(i)
            except Exception as error:
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
        if times is not None:
            kept.times = times
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
            except Exception as error:
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

    def read(self, node: g.Node, chunk: Chunk, first: int) -> None:
        """Rows come from a source, the first of them at place `first`."""
        op = node.op
        assert isinstance(op, g.Read)
        for bad in chunk.bad:
            self.failures.row(
                node.on_error,
                op.stream,
                BadInput(f"{bad.where}: {bad.error}"),
                key=None,
                row=bad.raw,
                order=first,
            )
        rows = shaped(chunk.rows, first)
        if rows.form == "json" and not self._may_stay_text(node):
            rows = self._decoded(node, op, chunk, rows)
        elif op.type is not None:
            rows = self._typed(node, op, rows)
        if op.timestamp is not None:
            rows = self._timed(node, op, rows)
        if rows.form == "json":
            self._text_to_keys(node, op, chunk, rows)
        else:
            self.leave(node.id, rows)

    def _may_stay_text(self, node: g.Node) -> bool:
        op = node.op
        assert isinstance(op, g.Read)
        readers = [self.program.nodes[r].op for r in self.program.consumers[node.id]]
        return (
            op.type is None
            and op.timestamp is None
            and all(isinstance(r, g.Key) and all(isinstance(by, str) for by in r.by) for r in readers)
        )

    def _text_to_keys(self, node: g.Node, op: g.Read, chunk: Chunk, rows: Rows) -> None:
        whole = rows
        for reader in self.program.consumers[node.id]:
            key = self.program.nodes[reader]
            assert isinstance(key.op, g.Key)
            try:
                found = keyed(key.op, rows, _raise)
            except Exception:
                if whole is rows:
                    rows = self._decoded(node, op, chunk, rows)
                self._take(key, rows)
            else:
                self._exchange(key, found)

    def _decoded(self, node: g.Node, op: g.Read, chunk: Chunk, rows: Rows) -> Rows:
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
                where = chunk.where(i) if chunk.where is not None else f"row {i}"
                text = line.decode("utf-8", "backslashreplace")
                wanted = "a JSON value" if op.type is None else getattr(op.type, "__name__", str(op.type))
                bad = BadInput(f"{where}: expected {wanted}: {error}")
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
            except Exception as error:  # a __post_init__ may raise what it likes
                wanted = getattr(op.type, "__name__", str(op.type))
                failed(i, row, BadInput(f"expected {wanted}: {error}"))
        picked = rows if len(good) == len(rows) else rows.pick(good)
        return picked.with_data(data)

    def _timed(self, node: g.Node, op: g.Read, rows: Rows) -> Rows:
        rows = rows.as_objects()
        good, times = [], []
        failed = self._failed(node, op.stream, rows)
        for i, row in enumerate(rows.data):
            try:
                value = op.timestamp(row) if callable(op.timestamp) else read_field(row, op.timestamp or "")
                times.append(as_time(value))
                good.append(i)
            except Exception as error:
                text = str(error) if isinstance(error, (LookupError, ValueError)) else repr(error)
                failed(i, row, BadInput(f"timestamp: {text}"))
        rows = rows if len(good) == len(rows) else rows.pick(good)
        rows.times = times
        return rows

    # --- rows go out ---

    def _exchange(self, node: g.Node, rows: Rows) -> None:
        blobs = self.blobs.setdefault(node.id, {})
        try:
            packed = {p: pack_rows(part, self.codec) for p, part in parted(rows, self.context.partitions).items()}
        except Exception:
            rows = self._encodable(node, "key_by", rows)
            packed = {p: pack_rows(part, self.codec) for p, part in parted(rows, self.context.partitions).items()}
        for partition, blob in packed.items():
            blobs.setdefault(partition, []).append(blob)
            self.blob_bytes += len(blob)

    def _deliver(self, node: g.Node, sink: str, rows: Rows) -> None:
        rows = rows.as_objects()
        try:
            encoded = self.codec.encode_many(rows.data)
        except Exception:
            rows = self._encodable(node, sink, rows)
            encoded = self.codec.encode_many(rows.data)
        orders, texts = self._outputs.setdefault(sink, ([], []))
        orders.extend(rows.order)
        texts.extend(encoded)

    def _encodable(self, node: g.Node, step: str, rows: Rows) -> Rows:
        """The rows that can be written down; the others have failed."""
        good: list[int] = []
        failed = self._failed(node, step, rows)
        for i, row in enumerate(rows.objects()):
            try:
                self.codec.encode(row)
                good.append(i)
            except Exception as error:
                failed(i, row, error)
        return rows.pick(good)

    def outputs(self, partition: int) -> Iterator[tuple[str, memoryview, int]]:
        """The output segment of each sink that has any: its name, its bytes, its rows."""
        for sink, (orders, texts) in self._outputs.items():
            origin = Origin(self.context.app, sink, partition, self.context.batch)
            yield sink, pack_outputs(orders, texts, origin), len(texts)

    def carry(self, path: str, later_than: int) -> tuple[bytes, dict[int, dict[int, list[Piece]]]]:
        """The blobs for stages after the next, as one file, and where in it each lies."""
        data = bytearray()
        carried: dict[int, dict[int, list[Piece]]] = {}
        for exchange, partitions in self.blobs.items():
            if self.program.stages[exchange] > later_than:
                for partition, blobs in partitions.items():
                    pieces = carried.setdefault(exchange, {}).setdefault(partition, [])
                    for blob in blobs:
                        pieces.append(Piece(path, len(data), len(blob), crc32(blob)))
                        data += blob
        return bytes(data), carried

    def begin(self, turn: Turn) -> None:
        """Start the steps of this stage."""
        for node in self.program.nodes:
            if isinstance(node.op, g.Keep) and self.program.stages[node.id] == self.stage:
                self.running[node.id] = node.op.step.start(turn)

    def made(self) -> Made:
        return Made(skipped=dict(self.failures.skipped))


def _raise(i: int, row: Any, error: Exception, again: Callable[[], None] | None = None) -> None:
    raise error


_VERBS = {
    "Map": "map",
    "Filter": "filter",
    "FlatMap": "flat_map",
    "Inspect": "inspect",
    "WithTime": "with_time",
}
