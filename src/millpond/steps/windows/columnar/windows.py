"""The columnar store of windows: tumbling and hopping windows that only count, add up and compare.

What is stored for each window is the same as by row, to the byte. A batch whose rows or stored windows do not fit
columns goes on with the row store, and so does a program whose windows change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.aggregations.kinds import traits_of
from millpond.codec import decode_keys
from millpond.log.segment import Change, make_change
from millpond.replica.cell_format import store_key as place_of
from millpond.rows.number_columns import Array, Column, read_columns
from millpond.rows.rows import ENDING, Keys, Rows, Times
from millpond.steps.windows.cell_names import extent_of, window_cell
from millpond.steps.windows.columnar.groups import Groups, group_rows
from millpond.steps.windows.hopping import Grid, HoppingAssigner
from millpond.steps.windows.late_rows import LateRows
from millpond.steps.windows.panes import Bounds, final_pane_columns, final_pane_rows, shown_bounds
from millpond.steps.windows.row_windows import OpenWindow
from millpond.steps.windows.window_batch import WindowBatch

MAX_PLACES = 4_000_000  # rows times windows per row that are added at once
_NO_PAIR = (None, None)
_NO_WINDOWS = (np.zeros(0, np.int64), np.zeros(0, np.int64))


class KeyTable:
    """Encoded keys by number. They are ranked once, when that is needed."""

    def __init__(self, encoded: Sequence[bytes] = ()) -> None:
        self.encoded = list(encoded)
        self._column: pa.BinaryArray | None = None
        self._rank: Array | None = None

    def append(self, keys: Sequence[bytes]) -> Array:
        """Add keys and return their numbers. A key that is there already gets another number, and the same rank."""
        first = len(self.encoded)
        self.encoded = [*self.encoded, *keys]
        self._column = self._rank = None
        return np.arange(first, first + len(keys))

    @property
    def column(self) -> pa.BinaryArray:
        if self._column is None:
            self._column = pa.array(self.encoded, pa.binary())
        return self._column

    @property
    def rank(self) -> Array:
        """The place of each key among all, in the order of their bytes."""
        if self._rank is None:
            keys = self.column
            order = pc.array_sort_indices(keys)
            ordered = keys.take(order)
            is_other = np.asarray(pc.not_equal(ordered[1:], ordered[:-1]))
            self._rank = np.empty(len(keys), np.int64)
            self._rank[order.to_numpy()] = np.concatenate([np.zeros(min(1, len(keys)), np.int64), np.cumsum(is_other)])
        return self._rank

    def pick(self, numbers: Array) -> list[bytes]:
        """Return the keys with these numbers."""
        encoded = self.encoded
        return [encoded[k] for k in numbers.tolist()]


@dataclass
class WindowBlock:
    """Windows as columns."""

    keys: Array  # of each window: the number of its key
    windows: Array  # of each window: its number in the grid
    columns: list[list[Any]]  # the accumulators, one column per aggregation
    existed: Array  # of each window: whether it was stored before this batch

    @classmethod
    def empty(cls, aggregations: int) -> WindowBlock:
        none = np.zeros(0, np.int64)
        return cls(none, none, [[] for _ in range(aggregations)], np.zeros(0, bool))

    def __len__(self) -> int:
        return len(self.keys)

    def pick(self, which: Array) -> WindowBlock:
        """Return some of the windows, in this order."""
        places = which.tolist()
        columns = [[column[i] for i in places] for column in self.columns]
        return WindowBlock(self.keys[which], self.windows[which], columns, self.existed[which])

    def append(self, other: WindowBlock) -> WindowBlock:
        """Return the windows of both blocks."""
        if not len(other):
            return self
        return WindowBlock(
            np.concatenate([self.keys, other.keys]),
            np.concatenate([self.windows, other.windows]),
            [[*one, *more] for one, more in zip(self.columns, other.columns, strict=True)],
            np.concatenate([self.existed, other.existed]),
        )


class ClosedWindows(NamedTuple):
    """The final panes of the windows that a batch has closed, None if there are none."""

    panes: Rows | None
    closed_until: int | None  # how far the end of the input has closed windows


class _StoredWindow(msgspec.Struct, forbid_unknown_fields=True):
    kept: dict[str, Any]


_STORED_WINDOWS = msgspec.json.Decoder(_StoredWindow)


class ColumnarWindows:
    """The windows of one batch of one partition, as columns.

    `add` and `close` either succeed or change nothing. If one of them declines, the caller has to go on with
    `to_open_windows` in the row store.
    """

    def __init__(self, batch: WindowBatch, assigner: HoppingAssigner, late: LateRows) -> None:
        self._batch, self._assigner, self._late = batch, assigner, late
        self._view, self._step, self._codec = batch.context.view, batch.step.name, batch.context.codec
        self._aggregations = list(batch.accumulators.aggregations.items())
        self._kinds = [traits_of(a) for _, a in self._aggregations]
        self._initial = [a.initial() for _, a in self._aggregations]  # shared: no vectorised update changes one
        self._fields = [a.field for _, a in self._aggregations if type(a.field) is str]
        self._names = tuple(batch.accumulators.aggregations)
        self._keys = KeyTable()
        self._block = WindowBlock.empty(len(self._aggregations))
        self._deleted = _NO_WINDOWS  # keys and numbers of stored windows that have closed
        self._places: dict[tuple[bytes, int], int] = {}  # of windows in the block, by key and number; made when needed

    @property
    def _grid(self) -> Grid:
        return self._assigner.grid

    # --- rows ---

    def add(self, rows: Rows) -> Rows | None:
        """Add rows. Return those from the first on that do not fit columns; None if all were added."""
        if rows.times is None:
            return rows
        if rows.form == "columns":
            rows = rows.as_objects()
        # A row of hopping windows has many places: add only so many rows at once that all places fit in memory.
        size = max(1, MAX_PLACES // -(-self._grid.size // self._grid.every))
        for start in range(0, len(rows), size):
            part = rows if len(rows) <= size else rows.pick(range(start, min(start + size, len(rows))))
            if not self._add_part(part):
                return rows if start == 0 else rows.pick(range(start, len(rows)))
        return None

    def _add_part(self, rows: Rows) -> bool:
        assert rows.keys is not None
        columns = read_columns(rows, self._fields)
        if columns is None:
            return False
        groups, late_places = self._group(rows)
        if groups is not None and not self._update(rows.keys.encoded, groups, columns):
            return False
        if len(late_places):
            self._add_late(rows.pick(late_places.tolist()))
        return True

    def _group(self, rows: Rows) -> tuple[Groups | None, Array]:
        """Group the rows by key and window. Return the places of those that have missed a window, too."""
        assert rows.keys is not None and rows.times is not None
        grid, times, keys = self._grid, rows.times.values, rows.keys.array
        numbers = (times - grid.offset) // grid.every
        row, late = None, np.zeros(0, np.int64)
        if grid.every != grid.size:
            per_row = -(-grid.size // grid.every)
            spread = (numbers[:, None] - np.arange(per_row - 1, -1, -1)).ravel()
            row = np.repeat(np.arange(len(times)), per_row)
            is_inside = grid.start_of(spread) + grid.size > times[row]
            numbers, row = spread[is_inside], row[is_inside]
        mark = self._batch.time.start_watermark
        if mark is not None:
            is_open = grid.closing_of(numbers) > mark
            if not is_open.all():
                row = np.arange(len(times)) if row is None else row
                late = np.unique(row[~is_open])
                numbers, row = numbers[is_open], row[is_open]
        if len(numbers) == 0:
            return None, late
        return group_rows(keys if row is None else keys[row], len(rows.keys.encoded), numbers, row), late

    def _update(self, encoded: list[bytes], groups: Groups, columns: dict[str, Column]) -> bool:
        """Add groups of rows to their windows in the block. Windows that are not there are read, or opened."""
        places = self._places_in_block(encoded, groups)
        absent = np.flatnonzero(places < 0)
        stored = self._read_windows(encoded, groups.keys[absent], groups.windows[absent])
        if stored is None:
            return False
        before, existed = stored
        if len(absent) < len(places):
            before = [_combine(places, column, read) for column, read in zip(self._block.columns, before, strict=True)]
        after: list[list[Any]] = []
        for (_, a), kind, accs in zip(self._aggregations, self._kinds, before, strict=True):
            values = groups.values_of(columns[a.field] if isinstance(a.field, str) else None)
            assert kind.update_groups is not None
            found = kind.update_groups(values, accs)
            if found is None:
                return False
            after.append(list(found))
        if not len(self._block):
            self._keys, self._block = KeyTable(encoded), WindowBlock(groups.keys, groups.windows, after, existed)
        else:
            self._put(encoded, WindowBlock(groups.keys, groups.windows, after, existed), places)
        return True

    def _places_in_block(self, encoded: list[bytes], groups: Groups) -> Array:
        """Return the place of each group's window in the block, -1 if it is not there."""
        if not len(self._block):
            return np.full(len(groups.keys), -1)
        if not self._places:
            windows = zip(self._keys.pick(self._block.keys), self._block.windows.tolist(), strict=True)
            self._places = {window: place for place, window in enumerate(windows)}
        find, pairs = self._places.get, zip(groups.keys.tolist(), groups.windows.tolist(), strict=True)
        return np.fromiter((find((encoded[k], number), -1) for k, number in pairs), np.int64, len(groups.keys))

    def _put(self, encoded: list[bytes], groups: WindowBlock, places: Array) -> None:
        """Write the windows of groups to the block, at their places or behind. `existed` is of the new ones only."""
        held, absent = np.flatnonzero(places >= 0), np.flatnonzero(places < 0)
        for column, new in zip(self._block.columns, groups.columns, strict=True):
            for place, i in zip(places[held].tolist(), held.tolist(), strict=True):
                column[place] = new[i]
        keys, windows = groups.keys[absent], groups.windows[absent]
        added = zip([encoded[k] for k in keys.tolist()], windows.tolist(), strict=True)
        self._places.update((window, place) for place, window in enumerate(added, len(self._block)))
        columns = [[column[i] for i in absent.tolist()] for column in groups.columns]
        numbers = self._keys.append(encoded)[keys]
        self._block = self._block.append(WindowBlock(numbers, windows, columns, groups.existed))

    def _add_late(self, rows: Rows) -> None:
        assert rows.keys is not None and rows.times is not None
        for i, row in enumerate(rows.objects()):
            at, key = int(rows.times.values[i]), rows.keys.encoded[rows.keys.index[i]]
            _, missed = self._grid.split(at, self._batch.time.start_watermark)
            self._late.add(int(rows.order[i]), key, at, row, missed)

    # --- stored windows ---

    def _read_windows(self, encoded: list[bytes], keys: Array, windows: Array) -> tuple[list[list[Any]], Array] | None:
        """Return the accumulators of windows by aggregation, and which windows are stored; None if one does not fit."""
        # A window is stored with the time at which something is to happen to it, never before its end: a window
        # that ends after the latest of these times is not stored.
        latest = self._view.latest(self._step)
        ends = self._grid.start_of(windows) + self._grid.size
        old = np.flatnonzero(np.ones(len(windows), bool) if latest is None else ends <= latest)
        cells = {number: self._cell(number) for number in np.unique(windows[old]).tolist()}
        found = self._view.get_cells(
            self._step,
            [encoded[k] for k in keys[old].tolist()],
            [cells[number] for number in windows[old].tolist()],
        )
        is_stored = np.fromiter((data is not None for data in found), bool, len(found))
        columns = self._decode([data for data in found if data is not None], old[is_stored].tolist(), len(windows))
        if columns is None:
            return None
        existed = np.zeros(len(windows), bool)
        existed[old[is_stored]] = True
        return columns, existed

    def _read_due(self, until: int) -> WindowBlock | None:
        """Return the stored windows without rows in this batch that close by `until`; None if one does not fit."""
        block, grid = self._block, self._grid
        known = block.pick(np.flatnonzero(block.existed))
        exclude = set(map(place_of, self._keys.pick(known.keys), map(self._cell, known.windows.tolist())))
        keys, cells, values = self._view.all_due(self._step, until, exclude=exclude)
        if not keys:
            return WindowBlock.empty(len(self._aggregations))
        numbers: dict[bytes, int] = {}
        for cell in set(cells):
            number = self._number(cell)
            if number is None or grid.closing_of(number) > until:
                return None  # the program's size, hop, offset or grace has changed since
            numbers[cell] = number
        columns = self._decode(values, range(len(values)), len(values))
        if columns is None:
            return None
        windows = np.array([numbers[cell] for cell in cells], np.int64)
        return WindowBlock(self._keys.append(keys), windows, columns, np.ones(len(keys), bool))

    def _decode(self, texts: list[bytes], places: Sequence[int], size: int) -> list[list[Any]] | None:
        """Return columns of `size` accumulators, those of stored windows at their places and initial ones elsewhere.

        None if a window holds more than accumulators: it has shown panes, by another trigger.
        """
        text = b"\n".join(texts)
        try:
            if b'"$' not in text:
                stored = [each.kept for each in _STORED_WINDOWS.decode_lines(text)]
            else:
                stored = [msgspec.convert(each, _StoredWindow).kept for each in self._codec.decode_lines(text)]
        except msgspec.MsgspecError:
            return None
        columns: list[list[Any]] = []
        for (name, a), initial in zip(self._aggregations, self._initial, strict=True):
            kind = a.kind  # an accumulator of another kind is not used
            found = [pair[1] if (pair := each.get(name, _NO_PAIR))[0] == kind else initial for each in stored]
            if len(found) < size:
                column: list[Any] = [initial] * size
                for i, acc in zip(places, found, strict=True):
                    column[i] = acc
                found = column
            columns.append(found)
        return columns

    def _number(self, cell: bytes) -> int | None:
        """Return the number of the window that a cell names; None if it is not on the grid."""
        if not cell.startswith(b"w:"):
            return None
        start, end, _ = extent_of(cell)
        return self._grid.number_of(start, end)

    def _cell(self, number: int) -> bytes:
        assert self._batch.unit is not None
        start = self._grid.start_of(number)
        return window_cell(start, start + self._grid.size, self._batch.unit)

    # --- closing ---

    def close(self) -> ClosedWindows | None:
        """Close the windows that the watermark has reached; None if that has to be done row by row."""
        until = self._batch.time.end_watermark
        if until is None:
            return ClosedWindows(None, None)
        if self._batch.unit is None:
            return None
        block, closing = self._block, self._grid.closing_of(self._block.windows)
        due = self._read_due(until)
        if due is None:
            return None
        both = block.append(due)
        now = np.concatenate([np.flatnonzero(closing <= until), np.arange(len(block), len(both))])
        panes, closed_until = None, None
        if len(now):
            closed = both.pick(now[np.lexsort((self._keys.rank[both.keys[now]], both.windows[now]))])
            results = self._results(closed)
            if results is None:
                return None
            panes = self._panes(closed, results)
            if self._batch.time.is_final:
                closed_until = self._grid.closing_of(int(closed.windows[-1]))
        stored = now[both.existed[now]]
        self._deleted = both.keys[stored], both.windows[stored]
        self._block = block.pick(np.flatnonzero(closing > until))
        return ClosedWindows(panes, closed_until)

    def _results(self, closed: WindowBlock) -> list[list[Any]] | None:
        """Return a column of results per aggregation; None if one raises, to be seen row by row which one."""
        try:
            return [
                accs if kind.is_own_result and type(None) not in set(map(type, accs)) else list(map(a.result, accs))
                for kind, (_, a), accs in zip(self._kinds, self._aggregations, closed.columns, strict=True)
            ]
        except Exception:
            return None

    def _panes(self, closed: WindowBlock, results: list[list[Any]]) -> Rows:
        batch, grid = self._batch, self._grid
        order = np.full(len(closed), ENDING, np.int64)

        def bounds(number: int) -> Bounds:
            start = grid.start_of(number)
            return shown_bounds(start, start + grid.size, batch.unit)

        place: dict[bytes, int] = {}
        index = [place.setdefault(key, len(place)) for key in self._keys.pick(closed.keys)]
        encoded = list(place)
        objects = decode_keys(encoded)
        numbers, window = np.unique(closed.windows, return_inverse=True)
        shown = list(map(bounds, numbers.tolist()))
        if batch.context.may_emit_in_parts:  # all consumers are sinks, which need neither keys nor times
            columns = final_pane_columns(
                batch.key_names, self._names, (objects, np.asarray(index)), (shown, window), results
            )
            if columns is not None:
                return Rows(columns, order, form="columns")
        data = final_pane_rows(
            batch.key_names, self._names, [objects[i] for i in index], [shown[i] for i in window.tolist()], results
        )
        assert batch.unit is not None
        times = Times(grid.start_of(closed.windows) + (grid.size - 1), batch.unit)
        return Rows(data, order, times=times, keys=Keys(encoded, index, objects))

    # --- state ---

    def changes(self) -> list[Change]:
        """Return what the batch has changed; called after `close`."""

        def cell_and_due(number: int) -> tuple[bytes, int]:
            return self._cell(number), self._grid.closing_of(number)

        texts = [self._codec.encode_many(column) for column in self._block.columns]
        pattern = b'{"kept":{' + b",".join(self._batch.accumulators.heads) + b"}}"
        values = list(map(pattern.__mod__, zip(*texts, strict=True)))
        return _block_changes(self._keys, self._deleted, self._block, values, cell_and_due)

    def to_open_windows(self) -> list[OpenWindow]:
        """Return the windows of the block for the row store."""
        found = []
        names, size = self._names, self._grid.size if len(self._block) else 0
        windows = zip(
            self._keys.pick(self._block.keys), self._block.windows.tolist(), self._block.existed.tolist(), strict=True
        )
        for (key, number, existed), *accs in zip(windows, *self._block.columns, strict=True):
            start = self._grid.start_of(number)
            w = OpenWindow(key, self._cell(number), start, start + size)
            w.accs = dict(zip(names, accs, strict=True))
            w.stored_cell = w.cell if existed else None
            w.is_live = w.has_news = w.is_changed = True
            found.append(w)
        return found


def _block_changes(
    keys: KeyTable,
    deleted: tuple[Array, Array],
    block: WindowBlock,
    values: Sequence[bytes],
    cell_and_due: Callable[[int], tuple[bytes, int]],
) -> list[Change]:
    """Return the deletions of windows, given by keys and numbers, and the windows of a block, as sorted changes.

    `values` holds the encoded windows of the block; `cell_and_due` maps a window number to its cell and closing time.
    """
    both = np.concatenate([deleted[0], block.keys])
    windows = np.concatenate([deleted[1], block.windows])
    none = [None] * len(deleted[0])
    order = np.lexsort((windows, keys.rank[both]))
    numbers, places = windows[order].tolist(), order.tolist()
    named = {number: cell_and_due(number) for number in set(numbers)}
    cells = {number: cell for number, (cell, _) in named.items()}
    times = {number: due for number, (_, due) in named.items()}
    texts: list[bytes | None] = [*none, *values]
    dues: list[int | None] = [*none, *map(times.__getitem__, block.windows.tolist())]
    columns = (
        keys.pick(both[order]),
        map(cells.__getitem__, numbers),
        map(texts.__getitem__, places),
        map(dues.__getitem__, places),
        repeat(None),
    )
    return list(map(make_change, zip(*columns, strict=False)))


def _combine(places: Array, held: list[Any], read: list[Any]) -> list[Any]:
    """Return an accumulator per group: the one at its place among those held, or the next of those read."""
    rest = iter(read)
    return [held[place] if place >= 0 else next(rest) for place in places.tolist()]
