"""Tumbling and hopping windows that only count, add up and compare: columns instead of rows, tuples instead of windows.

What each window keeps is the same as everywhere; so rows that cannot be taken as columns are done one by one, and a
program whose windows become of this sort, or are no longer, goes on with what it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from millpond.aggregations import Aggregation
from millpond.codec import decode_keys
from millpond.log.segment import Change
from millpond.replica.cell_format import place as place_of
from millpond.rows.rows import ENDING, Keys, Rows
from millpond.steps.base import StepContext
from millpond.steps.state.single import make_change
from millpond.steps.windows.assigner import closing
from millpond.steps.windows.cell_names import extent_of, window_cell
from millpond.steps.windows.columnar.block import Block, Known, Printer, as_rows, changes_of
from millpond.steps.windows.columnar.groups import Array, Column, Groups, Refused, Totals, can_read, column_of, grouped
from millpond.steps.windows.hopping import Hops
from millpond.steps.windows.open_window import Window
from millpond.steps.windows.step import Saved
from millpond.timing import Times

if TYPE_CHECKING:
    from millpond.steps.windows.window_step import WindowStep

Place = tuple[bytes, bytes]  # a key and a cell
MOST_PLACES = 4_000_000
_Closing = tuple[int, Place, tuple[Any, ...]]  # when, which, and what it holds


def hops(step: WindowStep, context: StepContext) -> Hops:
    """A step of tumbling or hopping windows, of the sort that does it best."""
    return Hops(step, context) if step.fields_read is None else BulkHops(step, context)


def fields_read(step: WindowStep) -> tuple[str, ...] | None:
    """The fields that windows read as columns; None if they have to look at rows."""
    aggregations = step.aggregations
    is_plain = not step.trigger.causes and step.clock == "stream" and not step.takes_back and can_read(aggregations)
    fields = {a.field: None for a in aggregations.values() if isinstance(a.field, str)}
    return tuple(fields) if is_plain else None


class _Kept(msgspec.Struct, forbid_unknown_fields=True):
    kept: dict[str, Any]


_KEPT = msgspec.json.Decoder(_Kept)


class BulkHops(Hops):
    """Windows as columns, in a block, as long as all rows of a batch come at once.

    Where they come in several pieces, the windows become entries: the accumulators of each as a tuple, the last of
    which says whether the window was there before. Where they have to be looked at one by one, they become windows.
    """

    def __init__(self, step: WindowStep, context: StepContext) -> None:
        super().__init__(step, context)
        self._known = Known(())
        self._block: Block | None = None
        self._gone: tuple[Array, Array] | None = None  # keys and windows that are closed, and were there before
        self._bulk: dict[Place, tuple[Any, ...]] = {}
        self._closed: list[Place] = []  # that were there before
        self._aggregations = list(self.accumulators.aggregations.items())
        names = tuple(self.accumulators.aggregations)
        self._make = _maker(self.key_names, names)
        self._printer = Printer(context.codec, self.key_names, names)

    # --- rows come ---

    def work(self, rows: Rows) -> None:
        if len(rows) == 0:
            return
        if rows.form == "json":
            rows = rows.as_objects()
        # A row of hopping windows stands in many places: so many rows at a time that they have room.
        most = len(rows) if self.unit is None else max(1, MOST_PLACES // -(-self.size // self.every))
        for begin in range(0, len(rows), most):
            part = rows if len(rows) <= most else rows.pick(range(begin, min(begin + most, len(rows))))
            try:
                self._columns(part)
            except Refused:
                self._spill()
                super().work(part)

    def _spill(self) -> None:
        """Give up the block."""
        block, self._block = self._block, None
        if block is not None:
            places = zip(self._known.of(block.keys), map(self._cell, block.windows.tolist()), strict=True)
            self._bulk.update(zip(places, zip(*block.columns, block.existed.tolist(), strict=True), strict=True))

    def _cell(self, number: int) -> bytes:
        assert self.unit is not None
        start = number * self.every + self.offset
        return window_cell(start, start + self.size, self.unit)

    def _columns(self, rows: Rows) -> None:
        if rows.times is None or self._met:
            raise Refused  # without a time, or where windows were opened one by one in this batch
        fields = {a.field for _, a in self._aggregations if type(a.field) is str}
        columns = {field: column_of(rows, field) for field in fields}
        groups, missed = self._assigned(rows)
        if groups is not None:
            if self._block is None and not self._bulk:
                self._lay(rows, groups, columns)
            else:
                self._spill()
                self._bring_up(rows, groups, columns)
        if len(missed):
            self._miss(rows, missed)

    def _assigned(self, rows: Rows) -> tuple[Groups | None, Any]:
        """The rows by key and window, and the places of those that missed one."""
        assert rows.keys is not None and rows.times is not None
        times = rows.times.values
        keys = np.asarray(rows.keys.index, dtype=np.int64)
        numbers = (times - self.offset) // self.every
        row = None
        if self.every != self.size:
            many = -(-self.size // self.every)
            spread = (numbers[:, None] - np.arange(many - 1, -1, -1)).ravel()
            row = np.repeat(np.arange(len(times)), many)
            inside = spread * self.every + self.offset + self.size > times[row]
            numbers, row = spread[inside], row[inside]
        mark = self.context.time.start_watermark
        missed: Any = ()
        if mark is not None:
            is_open = numbers * self.every + self.offset + self.size + self.grace > mark
            if not is_open.all():
                row = np.arange(len(times)) if row is None else row
                missed = np.unique(row[~is_open])
                numbers, row = numbers[is_open], row[is_open]
        if len(numbers) == 0:
            return None, missed
        return grouped(keys if row is None else keys[row], len(rows.keys.encoded), numbers, row), missed

    def _lay(self, rows: Rows, groups: Groups, columns: dict[Any, Column]) -> None:
        """Make a block of the rows, and of what their windows hold already."""
        assert rows.keys is not None
        encoded, latest = rows.keys.encoded, self.context.view.latest(self.step.name)
        size = len(groups.keys)
        # A window is kept with the time at which something is to happen to it, never before its end: what ends
        # after the latest of these times cannot be there.
        ends = groups.windows * self.every + self.offset + self.size
        is_new = np.zeros(size, bool) if latest is None else ends > latest
        old = np.flatnonzero(~is_new)
        names = {number: self._cell(number) for number in np.unique(groups.windows[old]).tolist()}
        keys = [encoded[k] for k in groups.keys[old].tolist()]
        found = self.context.view.get_cells(self.step.name, keys, [names[n] for n in groups.windows[old].tolist()])
        there = np.fromiter((data is not None for data in found), bool, len(found))
        kept = self._decoded([data for data in found if data is not None])
        existed = np.zeros(size, bool)
        existed[old[there]] = True
        before = self._accumulators(kept, old[there].tolist(), size)
        totals = Totals(groups)
        after = [
            list(totals.bring_up(a, columns.get(a.field), accs))
            for (_, a), accs in zip(self._aggregations, before, strict=True)
        ]
        self._known, self._block = Known(encoded), Block(groups.keys, groups.windows, after, existed)

    def _bring_up(self, rows: Rows, groups: Groups, columns: dict[Any, Column]) -> None:
        assert rows.keys is not None and self.unit is not None
        encoded = rows.keys.encoded
        names = {number: self._cell(number) for number in np.unique(groups.windows).tolist()}
        keys = [encoded[k] for k in groups.keys.tolist()]
        cells = [names[n] for n in groups.windows.tolist()]
        before, existed = self._before(keys, cells)
        totals = Totals(groups)
        after = [
            totals.bring_up(a, columns.get(a.field), old)
            for (_, a), old in zip(self._aggregations, before, strict=True)
        ]
        self._bulk.update(zip(zip(keys, cells, strict=True), zip(*after, existed, strict=True), strict=True))

    def _before(self, keys: list[bytes], cells: list[bytes]) -> tuple[list[list[Any]], list[bool]]:
        """The accumulators of windows as they are, by aggregation, and whether the windows were there before."""
        if self._bulk:
            held = list(map(self._bulk.get, zip(keys, cells, strict=True)))
            lacking = [i for i, found in enumerate(held) if found is None]
            rest, existed = self._stored([keys[i] for i in lacking], [cells[i] for i in lacking])
            for i, *accs in zip(lacking, *rest, existed, strict=True):
                held[i] = tuple(accs)
            *columns, existed_all = (list(column) for column in zip(*held, strict=True))
            return columns, existed_all
        return self._stored(keys, cells)

    def _stored(self, keys: list[bytes], cells: list[bytes]) -> tuple[list[list[Any]], list[bool]]:
        found = self.context.view.get_cells(self.step.name, keys, cells)
        places = [i for i, data in enumerate(found) if data is not None]
        kept = self._decoded([data for data in found if data is not None])
        existed = [data is not None for data in found]
        return self._accumulators(kept, places, len(keys)), existed

    def _accumulators(self, kept: list[dict[str, Any]], places: Sequence[int], size: int) -> list[list[Any]]:
        """The accumulators by aggregation, each at its place; those that are new, or of another kind, begin anew."""
        columns: list[list[Any]] = []
        for name, a in self._aggregations:
            new, kind = a.initial(), a.kind  # which nobody changes
            found = [pair[1] if (pair := each.get(name, _NONE))[0] == kind else new for each in kept]
            if len(found) < size:
                column: list[Any] = [new] * size
                for i, acc in zip(places, found, strict=True):
                    column[i] = acc
                found = column
            columns.append(found)
        return columns

    def _decoded(self, texts: list[bytes]) -> list[dict[str, Any]]:
        text = b"\n".join(texts)
        try:
            if b'"$' not in text:
                return [each.kept for each in _KEPT.decode_lines(text)]
            return [msgspec.convert(each, _Kept).kept for each in self.context.codec.decode_lines(text)]
        except msgspec.MsgspecError:  # it has shown panes, of another trigger
            raise Refused from None

    def _miss(self, rows: Rows, missed: Any) -> None:
        assert rows.keys is not None and rows.times is not None
        mark = self.context.time.start_watermark
        assert mark is not None
        late = rows.pick(missed.tolist())
        assert late.keys is not None and late.times is not None
        for i, row in enumerate(late.objects()):
            at, key = int(late.times.values[i]), late.keys.encoded[late.keys.index[i]]
            extents = [(s, s + self.size) for s in self.starts(at) if closing(s + self.size, self.grace) <= mark]
            self.miss(int(late.order[i]), key, at, row, extents)

    # --- one by one ---

    def find(self, key: bytes, cell: bytes, start: int | None, end: int | None, saved: Saved) -> Window:
        if self._bulk and (held := self._bulk.pop((key, cell), None)) is not None:
            self._window(key, cell, held)
        return super().find(key, cell, start, end, saved)

    def _window(self, key: bytes, cell: bytes, held: tuple[Any, ...]) -> Window:
        start, end, _ = extent_of(cell)
        w = self._met.setdefault(key, {})[cell] = Window(key, cell, start, end)
        *accs, existed = held
        w.accs = {name: acc for (name, _), acc in zip(self._aggregations, accs, strict=True)}
        w.origin = cell if existed else None
        w.alive = w.news = w.changed = True
        return w

    # --- windows close ---

    def end(self) -> Rows | None:
        upto = self.context.time.end_watermark
        try:
            if upto is None or self._met:  # where some were opened one by one, all are closed so
                raise Refused
            return self._end_of_entries(upto) if self._bulk else self._end_of_block(upto)
        except Refused:
            self._spill()
            for (key, cell), held in self._bulk.items():
                self._window(key, cell, held)
            self._bulk = {}
            return super().end()

    def _end_of_entries(self, upto: int) -> Rows | None:
        found = sorted([*self._own_due(upto), *self._stored_due(upto)], key=_by_time)
        rows = self._shown(found)  # nothing has changed before all results are there
        for _, place, held in found:
            self._bulk.pop(place, None)
            if held[-1]:
                self._closed.append(place)
        self._put_late()
        return rows

    def _end_of_block(self, upto: int) -> Rows | None:
        block = self._block or Block.empty(len(self._aggregations))
        closes = block.windows * self.every + self.offset + closing(self.size, self.grace)
        stored = self._unmet(block, upto)
        both = block.and_then(stored)
        own = np.flatnonzero(closes <= upto)
        now = np.concatenate([own, np.arange(len(block), len(both))])
        rows: Rows | None = None
        if len(now):
            closed = both.pick(now[np.lexsort((self._known.rank[both.keys[now]], both.windows[now]))])
            rows = self._panes(closed)  # nothing has changed before all results are there
            if self.context.time.is_final:
                self.closed_until = closing(self._extent(int(closed.windows[-1]))[1], self.grace)
        self._block = block.pick(np.flatnonzero(closes > upto))
        self._gone = (both.keys[gone], both.windows[gone]) if len(gone := now[both.existed[now]]) else _NO_WINDOWS
        self._put_late()
        return rows

    def _extent(self, number: int) -> tuple[int, int]:
        start = number * self.every + self.offset
        return start, start + self.size

    def _unmet(self, block: Block, upto: int) -> Block:
        """Windows of earlier batches, of which this one has seen no row, whose time has come; or `Refused`."""
        met = block.pick(np.flatnonzero(block.existed))
        places = set(map(place_of, self._known.of(met.keys), map(self._cell, met.windows.tolist())))
        keys, cells, values = self.context.view.all_due(self.step.name, upto, exclude=places)
        if not keys:
            return Block.empty(len(self._aggregations))
        numbers = {cell: self._number(cell, upto) for cell in set(cells)}
        kept = self._decoded(values)
        columns = self._accumulators(kept, range(len(kept)), len(kept))
        windows = np.array([numbers[cell] for cell in cells], np.int64)
        return Block(self._known.and_then(keys), windows, columns, np.ones(len(keys), bool))

    def _number(self, cell: bytes, upto: int) -> int:
        """The number of a window that closes now."""
        if not cell.startswith(b"w:"):
            raise Refused
        start, end = self.extent(cell)
        assert start is not None and end is not None
        number, beside = divmod(start - self.offset, self.every)
        if beside or end - start != self.size or closing(end, self.grace) > upto:
            raise Refused  # the size has changed, or the grace has grown, since
        return number

    def _panes(self, closed: Block) -> Rows:
        """The final panes of windows, as rows."""
        assert self.unit is not None
        numbers = closed.windows.tolist()

        def shown(number: int) -> tuple[Any, Any]:
            start, end = self._extent(number)
            return self.shown(start), self.shown(end)

        results = [_results(a, column) for (_, a), column in zip(self._aggregations, closed.columns, strict=True)]
        order = np.full(len(numbers), ENDING, np.int64)
        if self.context.may_emit_in_parts:  # nobody needs more than their text
            texts = self._printer.column(self._known, closed, shown, results)
            if texts is not None:
                return Rows(texts, order, form="coded")
        encoded, index, objects = as_rows(self._known, closed)
        extents = {number: shown(number) for number in set(numbers)}
        data = self._make([objects[i] for i in index], [extents[number] for number in numbers], *results)
        times = Times(closed.windows * self.every + self.offset + self.size - 1, self.unit)
        return Rows(data, order, times=times, keys=Keys(encoded, index, objects))

    def _closes_at(self, cell: bytes) -> int:
        _, end = self.extent(cell)
        assert end is not None
        return closing(end, self.grace)

    def _own_due(self, upto: int) -> list[_Closing]:
        cells = {cell for _, cell in self._bulk}
        due = {cell: at for cell in cells if (at := self._closes_at(cell)) <= upto}
        if not due:
            return []
        return [(due[place[1]], place, held) for place, held in self._bulk.items() if place[1] in due]

    def _stored_due(self, upto: int) -> list[_Closing]:
        """Windows of earlier batches, which this one has not met, whose time has come; or `Refused`."""
        met = self._bulk
        entries = [e for e in self.context.view.due(self.step.name, upto) if not met or (e.key, e.cell) not in met]
        closes = {cell: self._closes_at(cell) for cell in {entry.cell for entry in entries}}
        if any(at > upto for at in closes.values()):
            raise Refused  # the grace has grown since
        kept = self._decoded([entry.value for entry in entries])
        columns = self._accumulators(kept, range(len(kept)), len(kept))
        places = [(entry.key, entry.cell) for entry in entries]
        held = zip(*columns, repeat(True), strict=False)
        return [(closes[place[1]], place, accs) for place, accs in zip(places, held, strict=True)]

    def _shown(self, closing_now: list[_Closing]) -> Rows | None:
        """The final panes of windows, as rows."""
        if not closing_now:
            return None
        assert self.unit is not None
        keys, cells = zip(*(place for _, place, _ in closing_now), strict=True)
        *columns, _ = zip(*(held for _, _, held in closing_now), strict=True)
        encoded = list(dict.fromkeys(keys))
        index = dict(zip(encoded, range(len(encoded)), strict=True))
        known = Keys(encoded, [index[key] for key in keys], decode_keys(encoded))
        objects = known.objects
        extents = {cell: self.extent(cell) for cell in set(cells)}
        times = {cell: (self.shown(start), self.shown(end)) for cell, (start, end) in extents.items()}
        data = self._make(
            [objects[i] for i in known.index],
            [times[cell] for cell in cells],
            *(_results(a, list(column)) for (_, a), column in zip(self._aggregations, columns, strict=True)),
        )
        if self.context.time.is_final:
            self.closed_until = closing_now[-1][0]
        ends = {cell: end - 1 for cell, (_, end) in extents.items() if end is not None}
        at = Times([ends[cell] for cell in cells], self.unit)
        return Rows(data, [ENDING] * len(data), times=at, keys=known)

    # --- what has changed ---

    def changes(self) -> list[Change]:
        if self._gone is not None and self._block is not None:
            return changes_of(
                self._known,
                self._gone,
                self._block,
                self._texts(self._block.columns),
                self._cell,
                lambda number: closing(self._extent(number)[1], self.grace),
            )
        found = [] if not self._met else super().changes()
        found += map(make_change, ((key, cell, None, None, None) for key, cell in self._closed))
        if self._bulk:
            found += self._encoded()
        found.sort(key=_by_place)
        return found

    def _encoded(self) -> list[Change]:
        places = list(self._bulk)
        *columns, _ = zip(*self._bulk.values(), strict=True)
        values = self._texts(columns)
        due = {cell: self._closes_at(cell) for cell in {cell for _, cell in places}}
        return [make_change((key, cell, v, due[cell], None)) for (key, cell), v in zip(places, values, strict=True)]

    def _texts(self, columns: Sequence[Sequence[Any]]) -> list[bytes]:
        """What windows hold, as it is kept."""
        texts = [self.context.codec.encode_many(column) for column in columns]
        pattern = b'{"kept":{' + b",".join(self.accumulators.heads) + b"}}"
        return list(map(pattern.__mod__, zip(*texts, strict=True)))


def _results(a: Aggregation, accs: list[Any]) -> list[Any]:
    """What accumulators come to; or `Refused`, where one of them has no result: one by one it is seen which."""
    is_itself = a.kind == "count" or (a.kind == "sum" and type(None) not in set(map(type, accs)))
    try:
        return accs if is_itself else list(map(a.result, accs))
    except Exception:
        raise Refused from None


_NONE = (None, None)
_NO_WINDOWS = (np.zeros(0, np.int64), np.zeros(0, np.int64))
_by_time = itemgetter(0, 1)
_by_place = itemgetter(0, 1)


@cache
def _maker(key_names: tuple[str, ...], names: tuple[str, ...]) -> Any:
    """A function of keys, extents and columns of results that makes output rows, about as fast as Python can."""
    values = [f"v{i}" for i in range(len(names))]
    key = [(name, f"k[{i}]" if len(key_names) > 1 else "k") for i, name in enumerate(key_names)]
    fields = [*key, ("window_start", "w[0]"), ("window_end", "w[1]"), ("pane", "0"), ("final", "True")]
    items = ", ".join(f"{name!r}: {value}" for name, value in [*fields, *zip(names, values, strict=True)])
    return eval(f"lambda *columns: [{{{items}}} for k, w, {', '.join(values)}, in zip(*columns)]")
