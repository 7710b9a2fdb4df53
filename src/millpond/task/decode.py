"""Decoding: the chunks of a stream become rows with their types and event times."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from millpond.errors import InvalidUse
from millpond.log.record import StreamTime
from millpond.messages import BatchContext, TooSoon
from millpond.pipeline.graph import Node, Read
from millpond.rows.arrow_objects import raw_row, unreadable_rows
from millpond.rows.rows import BadInput, Rows, Times
from millpond.sources.base import Chunk, JsonLines
from millpond.steps.failure import FAULTS, FailedRow, Failures
from millpond.task.timestamps import TimeReader
from millpond.timing import RANGE, Unit, span

_NO_TIME = StreamTime()


@dataclass
class TimesRead:
    """The event times that one task has read. The driver moves the watermarks by them."""

    newest: dict[str, dict[str, int]] = field(default_factory=dict)  # stream → source partition → newest time
    units: dict[str, Unit] = field(default_factory=dict)

    def add(self, stream: str, partition: str, times: Times) -> None:
        if len(times):
            if self.units.setdefault(stream, times.unit) != times.unit:
                raise InvalidUse(f"stream {stream!r}: its times are datetimes in some rows and whole numbers in others")
            newest = self.newest.setdefault(stream, {})
            newest[partition] = max(newest.get(partition, -(1 << 62)), int(times.values.max()))


class DecodedChunk(NamedTuple):
    """The rows of a chunk."""

    rows: Rows
    too_early: Rows | None = None  # those whose time is too far in the future; they are not in `rows`


class ChunkDecoder:
    """Decodes the chunks of one stream within one task. Rows that cannot be decoded are reported as failures.

    With `keeps_text`, lines of JSON stay text, because all consumers read only some fields of them.
    """

    def __init__(
        self, node: Node, context: BatchContext, failures: Failures, times_read: TimesRead, keeps_text: bool
    ) -> None:
        assert isinstance(node.op, Read)
        self._op, self._on_error, self._failures = node.op, node.on_error, failures
        self._event_time, self._is_read_ahead = context.event_time, context.is_read_ahead
        self._times_read, self._keeps_text = times_read, keeps_text
        self._json: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Any if node.op.type is None else node.op.type)
        self._wanted = getattr(node.op.type, "__name__", str(node.op.type))
        self._time_reader = None if node.op.timestamp is None else TimeReader(node.op.timestamp)
        self._chunk: Chunk | None = None  # the chunk that was decoded last
        self._first_order = 0  # the order of its first row

    def decode(self, chunk: Chunk, first_order: int, partition: str) -> DecodedChunk:
        """Decode a chunk that was read from a source partition; its first row has the order `first_order`."""
        self._chunk, self._first_order = chunk, first_order
        for bad in chunk.bad:
            error = BadInput(bad.error, bad.where)
            self._failures.handle(
                self._on_error, self._op.stream, error, FailedRow(key=None, row=bad.raw, order=first_order)
            )
        rows = rows_of_chunk(chunk.rows, first_order)
        if rows.form == "arrow":
            rows = self._drop_unreadable(rows)
        if rows.form == "json" and not self._keeps_text:
            rows = self.decode_json(rows)
        elif self._op.type is not None:
            rows = self._convert(rows)
        if self._time_reader is None:
            return DecodedChunk(rows)
        return self._split_by_limit(self._set_times(self._time_reader, rows), partition)

    def locate(self, order: int) -> str | None:
        """Return where the row of an order came from, in words; None unless it is in the chunk that came last."""
        chunk = self._chunk
        if chunk is None or chunk.where is None:
            return None
        count = len(chunk.rows.lines) if isinstance(chunk.rows, JsonLines) else len(chunk.rows)
        place = int(order) - self._first_order
        return chunk.where(place) if 0 <= place < count else None

    def decode_json(self, rows: Rows) -> Rows:
        """Decode lines of JSON to objects of the stream's type."""
        lines: list[bytes] = rows.data
        try:
            found = self._json.decode_lines(b"\n".join(lines))
            if len(found) == len(lines):
                return rows.with_data(found)
        except FAULTS:  # a __post_init__ may raise anything, a line be no UTF-8 or nested too deep
            pass  # the loop below finds the lines that are wrong
        good, data = [], []
        for i, line in enumerate(lines):
            try:
                data.append(self._json.decode(line))
                good.append(i)
            except FAULTS as error:
                wanted = "a JSON value" if self._op.type is None else self._wanted
                text = line.decode("utf-8", "backslashreplace")
                self._fail(rows, i, text, BadInput(f"expected {wanted}: {error}"))
        return Rows(data, [rows.order[i] for i in good])

    def _drop_unreadable(self, rows: Rows) -> Rows:
        """Drop rows of which no Python objects can be made. They fail here, not in some later step."""
        reasons = unreadable_rows(rows.data)
        if not reasons:
            return rows
        for i, why in sorted(reasons.items()):
            self._fail(rows, i, raw_row(rows.data, i), BadInput(why))
        return rows.pick([i for i in range(len(rows)) if i not in reasons])

    def _convert(self, rows: Rows) -> Rows:
        """Convert rows to the stream's type."""
        rows, kind = rows.as_objects(), self._op.type
        good, data = [], []
        for i, row in enumerate(rows.data):
            try:
                is_it = isinstance(kind, type) and isinstance(row, kind)
                data.append(row if is_it else msgspec.convert(row, kind, strict=False))
                good.append(i)
            except FAULTS as error:  # a __post_init__ may raise anything
                self._fail(rows, i, row, BadInput(f"expected {self._wanted}: {error}"))
        picked = rows if len(good) == len(rows) else rows.pick(good)
        return picked.with_data(data)

    def _set_times(self, reader: TimeReader, rows: Rows) -> Rows:
        """Set the event times of rows, and drop the rows that have none."""
        if reader.is_of_message:
            return self._set_message_times(rows)
        times, stream = reader.all(rows), self._op.stream
        known = self._times_read.units.get(stream) or self._event_time.times.get(stream, _NO_TIME).unit
        if times is None or (known is not None and times.unit != known):
            if rows.form == "json":
                rows = self.decode_json(rows)
            rows = rows.as_objects()
            good, found = [], []
            unit = known
            for i, row in enumerate(rows.data):
                try:
                    time = reader.one(row, unit)
                    unit = time.unit
                    found.append(int(time.values[0]))
                    good.append(i)
                except FAULTS as error:
                    self._fail(rows, i, row, error)
            rows = rows if len(good) == len(rows) else rows.pick(good)
            times = Times(found, unit or "number")
        rows.times = times
        return rows

    def _set_message_times(self, rows: Rows) -> Rows:
        """Set the event times of rows to those of their messages, and drop the rows without a time that can be used."""
        assert self._chunk is not None
        found, first = () if self._chunk.times is None else self._chunk.times(), self._first_order

        def times_of(rows: Rows) -> list[int | None]:
            return [found[order - first] if found else None for order in np.asarray(rows.order).tolist()]

        given = times_of(rows)
        known = [time for time in given if time is not None]
        if len(known) < len(given) or not all(map(_is_usable, (min(known, default=0), max(known, default=0)))):
            rows = self.decode_json(rows) if rows.form == "json" else rows.as_objects()
            good: list[int] = []
            for i, time in enumerate(times_of(rows)):
                if _is_usable(time):
                    good.append(i)
                    continue
                is_far = "" if time is None else f" that can be used: {time} microseconds since 1970 are out of range"
                self._fail(rows, i, rows.data[i], BadInput(f"timestamp: the message has no time{is_far}"))
            rows = rows.pick(good)
            given = times_of(rows)
        rows.times = Times(given, "instant")
        return rows

    def _split_by_limit(self, rows: Rows, partition: str) -> DecodedChunk:
        """Take out the rows whose time is too far in the future, and report the times of the others.

        One such time would move the watermark past all rows that are still to come, for good.
        """
        times, too_early = rows.times, None
        assert times is not None
        ahead = self._op.ahead
        if len(times) and ahead is not None and isinstance(ahead, int) is not (times.unit == "instant"):
            limit, newest = span(ahead, times.unit, "ahead"), self._newest_time(times)
            if int(times.values.max()) > newest + limit:
                if self._is_read_ahead:  # the batch before this one may move the limit
                    raise TooSoon(f"stream {self._op.stream!r}")
                good: list[int] = []
                for i, time in enumerate(times.values.tolist()):
                    if time <= newest + limit:
                        newest = max(newest, time)
                        good.append(i)
                kept = set(good)
                too_early = rows.pick([i for i in range(len(rows)) if i not in kept])
                rows, times = rows.pick(good), times.pick(good)
        self._times_read.add(self._op.stream, partition, times)
        return DecodedChunk(rows, too_early)

    def _newest_time(self, times: Times) -> int:
        """Return the newest of the times before these and of the clock, or the first of these if there are none."""
        stream = self._op.stream
        seen = [
            *self._event_time.times.get(stream, _NO_TIME).newest.values(),
            *self._times_read.newest.get(stream, {}).values(),
        ]
        if times.unit == "instant" and self._event_time.bound is not None:
            seen.append(self._event_time.bound)
        return max(seen) if seen else int(times.values[0])

    def fail_too_early(self, rows: Rows) -> None:
        """Report rows whose time is too far in the future as failures."""
        for i, row in enumerate(rows.objects()):
            assert rows.times is not None
            text = f"timestamp: {rows.times[i]} is more than {self._op.ahead} ahead (stream(ahead=))"
            self._fail(rows, i, row, BadInput(text))

    def _fail(self, rows: Rows, i: int, row: Any, error: BaseException) -> None:
        self._failures.handle(self._on_error, self._op.stream, error, FailedRow(key=None, row=row, order=rows.order[i]))


def _is_usable(time: int | None) -> bool:
    return time is not None and -RANGE < time < RANGE


def rows_of_chunk(rows: pa.Table | JsonLines | list[Any], first: int) -> Rows:
    """Return the rows of a source's chunk, numbered from `first`."""
    if isinstance(rows, JsonLines):
        return Rows(rows.lines, np.arange(first, first + len(rows.lines)), form="json")
    order = np.arange(first, first + len(rows))
    return Rows(rows, order, form="arrow" if isinstance(rows, pa.Table) else "objects")
