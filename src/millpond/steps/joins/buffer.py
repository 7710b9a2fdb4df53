"""The rows that a join keeps: where each lies in the state, what a batch adds to them, and what is dropped.

A row lies in a cell of its key that is named by side, time and arrival, so that the rows near a time lie
together and those of one time in the order in which they came:

    l:09223372036854775818:000000000042:000000003      left, at 10, the batch's arrival and the place in it
    {"matched":false,"row":{"order":7}}                 a side whose unmatched rows come out says what it has met
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from millpond.codec import Codec
from millpond.errors import InvalidUse
from millpond.log.segment import Change
from millpond.replica import Entry
from millpond.rows.rows import Keys, Rows
from millpond.steps.base import StepContext
from millpond.steps.failure import BadInput, FailedRow, own_copy
from millpond.steps.joins.time_bounds import SIDES
from millpond.steps.kind import Step
from millpond.timing import MAX_TICKS, Times, Unit, difference

NEW = -1  # no place yet
_LETTERS = (b"l:", b"r:")
_MIDDLE = 1 << 63  # added to a time, so that earlier ones sort first
_ALONE, _MET, _PLAIN = b'{"matched":false,"row":', b'{"matched":true,"row":', b'{"row":'


def first_cell(side: int, at: int) -> bytes:
    """Not after the cells of the rows at a time or later."""
    return b"%b%020d" % (_LETTERS[side], max(at + _MIDDLE, 0))


def last_cell(side: int, at: int) -> bytes:
    """After the cells of the rows at a time or earlier."""
    return b"%b%020d;" % (_LETTERS[side], min(at + _MIDDLE, (1 << 64) - 1))


class Row:
    """A row of one side, new in this batch or kept from an earlier one."""

    __slots__ = ("_codec", "_row", "at", "cell", "data", "is_open", "key", "order", "side", "watched")

    def __init__(self, key: bytes, side: int, at: int, cell: bytes, data: bytes, codec: Codec, row: Any = None) -> None:
        self.key, self.side, self.at, self.cell = key, side, at, cell
        self.data = data  # the row alone, encoded
        self.watched = False  # whether its side's unmatched rows come out, so that it matters what it has met
        self.is_open = False  # it is watched, and has met no partner
        self.order = NEW  # of a row of this batch: the place of the input row that caused it
        self._codec, self._row = codec, row

    @property
    def row(self) -> Any:
        """The row, which is shared: whoever may change it takes a copy."""
        if self._row is None:
            self._row = self._codec.decode(self.data)
        return self._row

    @property
    def is_new(self) -> bool:
        return self.order != NEW

    def change(self, due: int) -> Change:
        """The row as it is to lie in the state, until then."""
        head = (_ALONE if self.is_open else _MET) if self.watched else _PLAIN
        return Change(self.key, self.cell, b"%b%b}" % (head, self.data), min(due, MAX_TICKS))

    def gone(self) -> Change:
        return Change(self.key, self.cell, None)


def kept(entry: Entry, codec: Codec) -> Row:
    """The row that lies in a cell."""
    side, at = _LETTERS.index(entry.cell[:2]), int(entry.cell[2:22]) - _MIDDLE
    head = next(head for head in (_PLAIN, _ALONE, _MET) if entry.value.startswith(head))
    found = Row(entry.key, side, at, entry.cell, entry.value[len(head) : -1], codec)
    found.watched, found.is_open = head is not _PLAIN, head is _ALONE
    return found


def shown(cells: Iterable[tuple[bytes, bytes]], codec: Codec) -> dict[str, list[Any]]:
    """The rows that a key's cells hold, by side and in order of time: a join's state as a person reads it."""
    found: dict[str, list[Any]] = {name: [] for name in SIDES}
    for cell, value in sorted(cells):
        if cell[:2] in _LETTERS:
            found[SIDES[_LETTERS.index(cell[:2])]].append(codec.decode(value)["row"])
    return found


class Arrivals:
    """The rows of a batch, both sides, until all of them are there: only then is it seen what meets what.

    Which side is pushed first, and in how many pieces, makes no difference.
    """

    def __init__(self, step: Step, context: StepContext, watched: Sequence[bool] = (False, False)) -> None:
        self._step, self._context, self._watched = step, context, watched
        self._rows: tuple[list[Row], list[Row]] = ([], [])
        self.unit: Unit | None = context.time.unit
        self._late_rows: list[Rows] = []

    def take_since(self, oldest: int | None, rows: Rows, side: int) -> None:
        """Rows of one side; those that are older than that go aside."""
        assert rows.times is not None
        if oldest is None or not len(late := np.flatnonzero(rows.times.values < oldest)):
            self.take(rows, side)
            return
        self.take(rows.pick(np.flatnonzero(rows.times.values >= oldest).tolist()), side)
        self.put_aside(rows.pick(late.tolist()), side)

    def take(self, rows: Rows, side: int) -> None:
        """Rows of one side that are not late."""
        keys, codec = rows.keys, self._context.codec
        assert keys is not None and rows.times is not None
        self._agree(rows.times.unit, side)
        watched, found = self._watched[side], self._rows[side]
        times, order, index = rows.times.values.tolist(), rows.order, keys.index
        for i, data in enumerate(self._encoded(rows)):
            if data is not None:
                row = Row(keys.encoded[index[i]], side, times[i], b"", data, codec, rows.data[i])
                row.order, row.watched, row.is_open = int(order[i]), watched, watched
                found.append(row)

    def take_late_rows(self) -> list[Rows]:
        """Return the rows that came too late since the last call."""
        taken, self._late_rows = self._late_rows, []
        return taken

    def put_aside(self, rows: Rows, side: int, **more: Sequence[Any]) -> None:
        """Rows that came too late for the watermark with which the batch began go to the side stream, each with its
        own key and time."""
        began = self._context.time.start_watermark
        assert rows.keys is not None and rows.times is not None and began is not None
        times, unit = rows.times.values.tolist(), rows.times.unit
        found = [
            {
                "row": own_copy(row),
                "key": rows.keys.of(i),
                "late_by": difference(began - times[i], unit),
                "side": SIDES[side],
                **{name: values[i] for name, values in more.items()},
            }
            for i, row in enumerate(rows.data)
        ]
        self._late_rows.append(rows.with_data(found))
        self._context.count_late(len(found))

    def timed(self, rows: Rows, side: int) -> Rows | None:
        """The rows as objects, if they have times; if not, each of them has failed."""
        if rows.times is not None:
            return rows.as_objects()
        for i, row in enumerate(rows.objects()):
            self._fail(rows, i, row, BadInput(_TIMELESS.format(verb=self._step.kind, side=SIDES[side])))
        return None

    def by_key(self) -> dict[bytes, tuple[list[Row], list[Row]]]:
        """What has come, by key and side, in order of time; the order of the keys is their own."""
        found: dict[bytes, tuple[list[Row], list[Row]]] = {}
        for side, rows in enumerate(self._rows):
            rows.sort(key=lambda row: row.order)
            for n, row in enumerate(rows):
                row.cell = b"%b%020d:%012d:%09d" % (_LETTERS[side], row.at + _MIDDLE, self._context.arrival, n)
                found.setdefault(row.key, ([], []))[side].append(row)
        for sides in found.values():
            for rows in sides:
                rows.sort(key=lambda row: row.cell)
        return dict(sorted(found.items()))

    def _agree(self, unit: Unit, side: int) -> None:
        if self.unit is None:
            self.unit = unit
        elif unit != self.unit:
            theirs, ours = _UNITS[unit], _UNITS[self.unit]
            raise InvalidUse(
                f"{self._step.kind}({self._step.name!r}): expected times of one kind on both sides, got {theirs} on "
                f"the {SIDES[side]} where {ours} came before. Make both alike with timestamp= or with_time()"
            )

    def _encoded(self, rows: Rows) -> list[bytes | None]:
        """The rows as they are kept; one that cannot be has failed, before it meets anything."""
        encode = self._context.codec.encode
        try:
            return list(self._context.codec.encode_many(rows.data))
        except Exception:
            found: list[bytes | None] = []
            for i, row in enumerate(rows.data):
                try:
                    found.append(encode(row))
                except Exception as error:
                    found.append(None)
                    self._fail(rows, i, row, error)
            return found

    def _fail(self, rows: Rows, i: int, row: Any, error: BaseException) -> None:
        assert rows.keys is not None
        self._context.failures.handle(
            self._step.on_error,
            self._step.name,
            error,
            FailedRow(key=rows.keys.of(i), row=row, order=int(rows.order[i])),
        )


_UNITS: dict[Unit, str] = {"instant": "datetimes", "number": "whole numbers"}
_TIMELESS = (
    "{verb} goes by event time, and this row of the {side} side has none. Say what its time is with "
    "app.stream(timestamp=…) or with_time()"
)


def nothing(unit: Unit | None) -> Rows:
    """No rows."""
    return Rows([], [], times=None if unit is None else Times([], unit), keys=Keys([], []))


class Changes:
    """What a batch changes of the rows that a join keeps."""

    def __init__(self) -> None:
        self._changes: dict[tuple[bytes, bytes], Change] = {}

    def add(self, change: Change) -> None:
        self._changes[change.key, change.cell] = change

    def sorted(self) -> list[Change]:
        return [self._changes[at] for at in sorted(self._changes)]


def read(context: StepContext, step: str, key: bytes, side: int, ranges: Iterable[tuple[int, int]]) -> Iterator[Row]:
    """The rows of a key that are kept and lie in these ranges of time, in order where the ranges are."""
    for first, last in ranges:
        for entry in context.view.range(step, key, first_cell(side, first), last_cell(side, last)):
            yield kept(entry, context.codec)
