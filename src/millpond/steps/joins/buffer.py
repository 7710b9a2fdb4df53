"""The rows that a join stores until no partner can come: their cells, the rows of a batch, and the changes to both.

A row is stored in a cell of its key that is named by side, time and arrival, so that the rows near a time are
neighbours and those of one time are in the order of arrival:

    l:09223372036854775818:000000000042:000000003      left, at 10, the batch's arrival and the place in it
    {"matched":false,"row":{"order":7}}                 `matched` is there if unmatched rows of the side are emitted
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from millpond.codec import Codec
from millpond.errors import InvalidUse
from millpond.log.segment import Change
from millpond.replica import Entry
from millpond.rows.rows import Keys, Rows, Times
from millpond.steps.base import StepContext
from millpond.steps.failure import BadInput, FailedRow, own_copy
from millpond.steps.joins.time_bounds import SIDES
from millpond.steps.kind import Step
from millpond.timing import MAX_TICKS, Unit, difference

_STORED = -1  # the order of a row of an earlier batch
_LETTERS = (b"l:", b"r:")
_MIDDLE = 1 << 63  # added to a time, so that negative ones sort first
_UNMATCHED, _MATCHED, _PLAIN = b'{"matched":false,"row":', b'{"matched":true,"row":', b'{"row":'


def first_cell(side: int, at: int) -> bytes:
    """Return a name that sorts before the cells of all rows at a time or later."""
    return b"%b%020d" % (_LETTERS[side], max(at + _MIDDLE, 0))


def last_cell(side: int, at: int) -> bytes:
    """Return a name that sorts after the cells of all rows at a time or earlier."""
    return b"%b%020d;" % (_LETTERS[side], min(at + _MIDDLE, (1 << 64) - 1))


class JoinRow:
    """A row of one side, new in this batch or stored by an earlier one."""

    __slots__ = ("_codec", "_row", "at", "cell", "data", "is_unmatched", "is_watched", "key", "order", "side")

    def __init__(self, key: bytes, side: int, at: int, data: bytes, codec: Codec, row: Any = None) -> None:
        self.key, self.side, self.at = key, side, at
        self.cell = b""  # set when the row is stored, or was read
        self.data = data  # the row alone, encoded
        self.is_watched = False  # unmatched rows of its side are emitted, so it is stored whether it is one
        self.is_unmatched = False  # it is watched, and has no partner yet
        self.order = _STORED  # of a row of this batch: the order of the input row
        self._codec, self._row = codec, row

    @property
    def row(self) -> Any:
        """The row. It is shared: copy it before you change it."""
        if self._row is None:
            self._row = self._codec.decode(self.data)
        return self._row

    @property
    def is_new(self) -> bool:
        return self.order != _STORED

    def change(self, due: int) -> Change:
        """Return the change that stores the row until a watermark."""
        head = (_UNMATCHED if self.is_unmatched else _MATCHED) if self.is_watched else _PLAIN
        return Change(self.key, self.cell, b"%b%b}" % (head, self.data), min(due, MAX_TICKS))

    def deletion(self) -> Change:
        return Change(self.key, self.cell, None)


def stored_row(entry: Entry, codec: Codec) -> JoinRow:
    """Return the row that is stored in a cell."""
    side, at = _LETTERS.index(entry.cell[:2]), int(entry.cell[2:22]) - _MIDDLE
    head = next(head for head in (_PLAIN, _UNMATCHED, _MATCHED) if entry.value.startswith(head))
    found = JoinRow(entry.key, side, at, entry.value[len(head) : -1], codec)
    found.cell, found.is_watched, found.is_unmatched = entry.cell, head is not _PLAIN, head is _UNMATCHED
    return found


def rows_by_side(cells: Iterable[tuple[bytes, bytes]], codec: Codec) -> dict[str, list[Any]]:
    """Return the rows in a key's cells by side, in order of time: a join's state as `app.state` shows it."""
    found: dict[str, list[Any]] = {name: [] for name in SIDES}
    for cell, value in sorted(cells):
        if cell[:2] in _LETTERS:
            found[SIDES[_LETTERS.index(cell[:2])]].append(codec.decode(value)["row"])
    return found


class Arrivals:
    """Collects the rows of a batch from both sides; they are matched when all have come.

    So the order of the sides, and the pieces in which rows come, make no difference.
    """

    def __init__(self, step: Step, context: StepContext, emits_unmatched: Sequence[bool] = (False, False)) -> None:
        self._step, self._context, self._emits_unmatched = step, context, emits_unmatched
        self._rows: tuple[list[JoinRow], list[JoinRow]] = ([], [])
        self.unit: Unit | None = context.time.unit
        self._late_rows: list[Rows] = []

    def add_since(self, oldest: int | None, rows: Rows, side: int) -> None:
        """Add rows of one side; those before a time are late."""
        assert rows.times is not None
        if oldest is None or not len(late := np.flatnonzero(rows.times.values < oldest)):
            self.add(rows, side)
            return
        self.add(rows.pick(np.flatnonzero(rows.times.values >= oldest).tolist()), side)
        self.add_late(rows.pick(late.tolist()), side)

    def add(self, rows: Rows, side: int) -> None:
        """Add rows of one side that are not late."""
        keys, codec = rows.keys, self._context.codec
        assert keys is not None and rows.times is not None
        self._check_unit(rows.times.unit, side)
        is_watched, found = self._emits_unmatched[side], self._rows[side]
        times, order, index = rows.times.values.tolist(), rows.order, keys.index
        for i, data in enumerate(self._encode_rows(rows)):
            if data is not None:
                row = JoinRow(keys.encoded[index[i]], side, times[i], data, codec, rows.data[i])
                row.order, row.is_watched, row.is_unmatched = int(order[i]), is_watched, is_watched
                found.append(row)

    def take_late_rows(self) -> list[Rows]:
        """Return the rows that came too late since the last call."""
        late, self._late_rows = self._late_rows, []
        return late

    def add_late(self, rows: Rows, side: int, **more: Sequence[Any]) -> None:
        """Add rows that came too late for the watermark with which the batch began, for the side stream.

        Each keeps its key and time; `more` adds fields, with a value per row.
        """
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

    def check_times(self, rows: Rows, side: int) -> Rows | None:
        """Return the rows as objects if they have times. If not, each of them fails, and None is returned."""
        if rows.times is not None:
            return rows.as_objects()
        for i, row in enumerate(rows.objects()):
            self._fail(rows, i, row, BadInput(_TIMELESS.format(verb=self._step.kind, side=SIDES[side])))
        return None

    def by_key(self) -> dict[bytes, tuple[list[JoinRow], list[JoinRow]]]:
        """Return the rows by key and side, in order of time, after naming the cell of each; keys are sorted."""
        found: dict[bytes, tuple[list[JoinRow], list[JoinRow]]] = {}
        for side, rows in enumerate(self._rows):
            rows.sort(key=lambda row: row.order)
            for n, row in enumerate(rows):
                row.cell = b"%b%020d:%012d:%09d" % (_LETTERS[side], row.at + _MIDDLE, self._context.arrival, n)
                found.setdefault(row.key, ([], []))[side].append(row)
        for sides in found.values():
            for rows in sides:
                rows.sort(key=lambda row: row.cell)
        return dict(sorted(found.items()))

    def _check_unit(self, unit: Unit, side: int) -> None:
        if self.unit is None:
            self.unit = unit
        elif unit != self.unit:
            theirs, ours = _UNITS[unit], _UNITS[self.unit]
            raise InvalidUse(
                f"{self._step.kind}({self._step.name!r}): expected times of one kind on both sides, got {theirs} on "
                f"the {SIDES[side]} where {ours} came before. Make both alike with timestamp= or with_time()"
            )

    def _encode_rows(self, rows: Rows) -> list[bytes | None]:
        """Return the rows encoded. A row that cannot be encoded fails, before it meets a partner, and is None."""
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


def no_rows(unit: Unit | None) -> Rows:
    """Return rows without any."""
    return Rows([], [], times=None if unit is None else Times([], unit), keys=Keys([], []))


class RowChanges:
    """What a batch changes of the rows that a join stores. A later change of a cell replaces an earlier one."""

    def __init__(self) -> None:
        self._changes: dict[tuple[bytes, bytes], Change] = {}

    def add(self, change: Change) -> None:
        self._changes[change.key, change.cell] = change

    def in_order(self) -> list[Change]:
        return [self._changes[at] for at in sorted(self._changes)]


def read_stored_rows(
    context: StepContext, step: str, key: bytes, side: int, ranges: Iterable[tuple[int, int]]
) -> Iterator[JoinRow]:
    """Yield the stored rows of a key and side in ranges of time, in the order of the ranges."""
    for first, last in ranges:
        for entry in context.view.range(step, key, first_cell(side, first), last_cell(side, last)):
            yield stored_row(entry, context.codec)
