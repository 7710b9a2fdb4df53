"""The row store of windows: those that a batch has read from state or opened, one object each, and their bytes.

    {"kept":{"n":["count",3],"spent":["sum",12]},"pane":1,"shown":true}

Each accumulator is stored under its name with its kind. An aggregation that is new, or of another kind than the
stored accumulator, starts from its initial value and leaves the others unchanged. The values that `collect` and
`distinct` gather grow with every row, so they are stored in separate cells, one for each batch that added some:
`c:<id>/<kind>/<name>/<arrival>` holds a list of pairs, place in the order of arrival and value. A window stores the ids
of its chunks; a session that others were merged into has several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from millpond.aggregations import Aggregation
from millpond.aggregations.gathered import Gathered
from millpond.aggregations.kinds import traits_of
from millpond.codec import Codec
from millpond.log.segment import Change
from millpond.replica import Entry, View
from millpond.steps.state.single import Packed, is_surely_encodable

Stamp = tuple[int, int]  # a row's place in the order of arrival: the batch's arrival number, the row's number in it
Undo = list[Any]  # saved windows and functions that put back what a row has changed, in order

_MISSING: Any = object()


class OpenWindow:
    """One window of one key within a batch."""

    __slots__ = (
        "accs",
        "arrived",
        "cell",
        "chunk_ids",
        "dropped_ids",
        "end",
        "gathered",
        "has_news",
        "is_changed",
        "is_emitted",
        "is_live",
        "key",
        "newest",
        "pane",
        "retractable",
        "start",
        "stored_cell",
        "trigger_state",
    )

    def __init__(self, key: bytes, cell: bytes, start: int | None, end: int | None) -> None:
        self.key, self.cell, self.start, self.end = key, cell, start, end
        self.stored_cell: bytes | None = None  # the cell that it was read from; None if it is new
        self.accs: dict[str, Any] = {}
        self.arrived: tuple[Stamp, Stamp] | None = None  # its first and its last row
        self.chunk_ids: tuple[str, ...] = ()  # of the chunks that hold its collected values
        self.gathered: dict[str, Gathered] = {}  # values collected in this batch, by aggregation
        self.dropped_ids: tuple[str, ...] = ()  # of chunks to delete
        self.pane = 0
        self.has_news = False  # whether anything has changed since the last pane
        self.retractable: tuple[Any, ...] = ()  # panes that the next pane takes back
        self.trigger_state: Any = None
        self.newest: int | None = None  # the newest time of a row; only in windows without an end
        self.is_emitted = False  # its final pane is out; it is kept for the windows after it
        self.is_changed = False
        self.is_live = False

    def drop(self) -> None:
        """Remove the window from the state."""
        self.is_live, self.is_changed = False, True

    def save(self) -> tuple[Any, ...]:
        """Return what `restore_window` needs to undo later changes."""
        return (
            self,
            self.cell,
            self.start,
            self.end,
            self.accs,
            self.arrived,
            self.chunk_ids,
            self.gathered,
            {name: len(found) for name, found in self.gathered.items()} if self.gathered else None,
            self.dropped_ids,
            self.pane,
            self.has_news,
            self.retractable,
            self.trigger_state,
            self.newest,
            self.is_emitted,
            self.is_changed,
            self.is_live,
        )


def restore_window(saved: tuple[Any, ...]) -> None:
    """Undo all changes to a window since it was saved."""
    w: OpenWindow
    (
        w,
        w.cell,
        w.start,
        w.end,
        w.accs,
        w.arrived,
        w.chunk_ids,
        w.gathered,
        lengths,
        w.dropped_ids,
        w.pane,
        w.has_news,
        w.retractable,
        w.trigger_state,
        w.newest,
        w.is_emitted,
        w.is_changed,
        w.is_live,
    ) = saved
    for name, found in w.gathered.items():
        found.truncate(0 if lengths is None else lengths.get(name, 0))


@dataclass
class ReadRange:
    """The range of time whose stored windows of a key a batch has read: it reads around its rows, and nothing twice.

    Both ends are included; None before anything is read.

    >>> read = ReadRange()
    >>> read.extend(10, 20, print)
    10 20
    >>> read.extend(5, 15, print)
    5 10
    >>> read.extend(6, 20, print)
    """

    first: int | None = None
    last: int | None = None

    def extend(self, first: int, last: int, read: Callable[[int, int], None]) -> None:
        """Call `read` for what is between two times and has not been read. If it raises, that counts as not read."""
        if self.first is None or self.last is None:
            read(first, last)
            self.first, self.last = first, last
            return
        if first < self.first:
            read(first, self.first)
            self.first = first
        if last > self.last:
            read(self.last, last)
            self.last = last


class RowWindows:
    """The windows of one batch of one partition, by key and cell."""

    def __init__(self, step: str, view: View, accumulators: Accumulators) -> None:
        self._step, self._view, self._accumulators = step, view, accumulators
        self._by_cell: dict[bytes, dict[bytes, OpenWindow]] = {}
        self._unnamed: list[OpenWindow] = []

    def __iter__(self) -> Iterator[OpenWindow]:
        """Iterate over all windows, those that are no longer live included."""
        for windows in self._by_cell.values():
            yield from windows.values()
        yield from self._unnamed

    def find(self, key: bytes, cell: bytes) -> OpenWindow | None:
        """Return the window of a cell if this batch has read or opened it."""
        windows = self._by_cell.get(key)
        return None if windows is None else windows.get(cell)

    def open(self, key: bytes, cell: bytes, start: int | None, end: int | None, undo: Undo) -> OpenWindow:
        """Return the window of a cell, live: read from state, or new. It is saved to `undo` first."""
        windows = self._by_cell.get(key)
        w = None if windows is None else windows.get(cell)
        if w is None:
            w = self.get(key, cell, start, end)
        undo.append(w.save())
        if not w.is_live:  # new, or closed earlier in this batch
            self._accumulators.clear(w)
            w.pane, w.has_news, w.retractable, w.trigger_state, w.newest = 0, False, (), None, None
            w.is_live = True
        return w

    def get(self, key: bytes, cell: bytes, start: int | None, end: int | None) -> OpenWindow:
        """Return the window of a cell, read from state if need be. A new one is not live yet."""
        windows = self._by_cell.get(key)
        if windows is None:
            windows = self._by_cell[key] = {}
        w = windows.get(cell)
        if w is None:
            data = self._view.get(self._step, key, cell)
            if data is None:
                w = OpenWindow(key, cell, start, end)
            else:
                w = self._accumulators.decode(key, cell, start, end, data)
            windows[cell] = w
        return w

    def load(self, entry: Entry, start: int | None, end: int | None) -> OpenWindow:
        """Add the window of a stored cell."""
        w = self._accumulators.decode(entry.key, entry.cell, start, end, entry.value)
        self.add(w)
        return w

    def add(self, w: OpenWindow) -> None:
        """Add a window under its cell."""
        self._by_cell.setdefault(w.key, {})[w.cell] = w

    def add_unnamed(self, w: OpenWindow) -> None:
        """Add a new window whose cell may still change; `find` does not see it."""
        self._unnamed.append(w)

    def open_between(self, key: bytes, first: bytes, last: bytes) -> list[OpenWindow]:
        """Return the live windows of a key whose cells are between two names, in that order."""
        windows = self._by_cell.get(key, {})
        cells = sorted(cell for cell, w in windows.items() if w.is_live and first <= cell <= last)
        return [windows[cell] for cell in cells]

    def changes(
        self, due_of: Callable[[OpenWindow], int | None], wall_of: Callable[[OpenWindow], int | None]
    ) -> dict[tuple[bytes, bytes], Change]:
        """Return what this batch has changed, by key and cell.

        `due_of` and `wall_of` give the watermark and the time of the clock at which a window has something to do.
        """
        found: dict[tuple[bytes, bytes], Change] = {}
        encode = self._accumulators.encode
        for w in self:
            if not w.is_changed:
                continue
            if w.stored_cell is not None and (not w.is_live or w.stored_cell != w.cell):
                found.setdefault((w.key, w.stored_cell), Change(w.key, w.stored_cell, None))
            if w.is_live:
                found[w.key, w.cell] = Change(w.key, w.cell, encode(w), due_of(w), wall_of(w))
            if w.chunk_ids or w.dropped_ids:
                for cell, value in self._accumulators.chunks(w):
                    found[w.key, cell] = Change(w.key, cell, value)
        return found


class Accumulators:
    """Updates, merges, encodes and decodes the accumulators of one batch's windows."""

    def __init__(
        self, step: str, aggregations: dict[str, Aggregation], view: View, codec: Codec, arrival: int, merging: bool
    ) -> None:
        self._step, self._view, self._codec, self._arrival = step, view, codec, arrival
        self._merging = merging  # whether windows merge; then each stores the arrival of its rows
        self.aggregations = aggregations
        kinds = {name: traits_of(a) for name, a in aggregations.items()}
        self._plan = [(name, a, a.update, kinds[name].is_pure, kinds[name].gathers) for name, a in aggregations.items()]
        self.collects = any(kind.gathers for kind in kinds.values())
        self.needs_time = any(kind.needs_time for kind in kinds.values())
        self._pure_names = {name for name, kind in kinds.items() if kind.is_pure}
        self._own_results = {name for name, kind in kinds.items() if kind.is_own_result}
        self._heads = {name: _encoded_head(codec, name, a.kind) for name, a in aggregations.items()}
        self.heads = list(self._heads.values())
        self._ids = 0
        self._number = 0

    def stamp(self) -> Stamp:
        """Return the place of the next row in the order of arrival."""
        self._number += 1
        return self._arrival, self._number

    # --- update ---

    def add(self, w: OpenWindow, row: Any, time: Any, stamp: Stamp) -> None:
        """Add a row to a window. If it raises, the caller must restore the window."""
        accs = dict(w.accs)
        if self.collects and not w.chunk_ids:
            self._ids += 1
            w.chunk_ids = (f"{self._arrival}.{self._ids}",)
        for name, a, update, is_pure, gathers in self._plan:
            if is_pure:
                old = accs[name] if name in accs else a.initial()
                new = accs[name] = update(old, row, time)
                if new is not old and not _is_encodable(new):
                    self._codec.encode(new)  # a value that cannot be stored must fail here, with its row
            elif gathers is not None:
                gathered = w.gathered.get(name)
                if gathered is None:
                    gathered = w.gathered[name] = gathers()
                for value in gathered.add(a, row, time, stamp[1]):
                    if not is_surely_encodable(value):
                        self._codec.encode(value)
            else:
                old = self._codec.decode(accs[name].data) if name in accs else a.initial()
                accs[name] = Packed(self._codec.encode(update(old, row, time)))
        w.accs = accs
        w.arrived = (stamp, stamp) if w.arrived is None else (w.arrived[0], stamp)
        w.has_news = w.is_changed = True

    def merge(self, into: OpenWindow, other: OpenWindow) -> None:
        """Add all of another window to this one, as if they had been one window from the start."""
        assert into.arrived is not None and other.arrived is not None
        accs: dict[str, Any] = {}
        for name, a, _, is_pure, gathers in self._plan:
            if gathers is not None:
                continue
            x, y = into.accs.get(name, _MISSING), other.accs.get(name, _MISSING)
            if x is _MISSING or y is _MISSING:
                if x is not _MISSING or y is not _MISSING:
                    accs[name] = y if x is _MISSING else x
                continue
            which = 1 if traits_of(a).merges_by_last else 0
            if other.arrived[which] < into.arrived[which]:
                x, y = y, x
            if is_pure:
                accs[name] = a.merge(x, y)
            else:
                both = a.merge(self._codec.decode(x.data), self._codec.decode(y.data))
                accs[name] = Packed(self._codec.encode(both))
        into.accs = accs
        into.gathered = {
            name: _merge_gathered(into.gathered.get(name), other.gathered.get(name))
            for name in {*into.gathered, *other.gathered}
        }
        into.chunk_ids = tuple(dict.fromkeys((*into.chunk_ids, *other.chunk_ids)))
        into.dropped_ids += other.dropped_ids
        into.arrived = (min(into.arrived[0], other.arrived[0]), max(into.arrived[1], other.arrived[1]))
        into.pane = max(into.pane, other.pane)
        into.retractable += other.retractable
        into.has_news = into.has_news or other.has_news
        into.is_changed = True

    def refill(self, w: OpenWindow, other: OpenWindow) -> None:
        """Copy what another window holds into a new one; both go on independently."""
        w.accs, w.arrived = other.accs, other.arrived
        for name, a, _, _, gathers in self._plan:
            if gathers is None:
                continue
            if not w.chunk_ids:
                self._ids += 1
                w.chunk_ids = (f"{self._arrival}.{self._ids}",)
            w.gathered[name] = gathers((self.stamp()[1], value) for value in self._gathered_values(other, name, a))

    def clear(self, w: OpenWindow) -> None:
        """Reset a window to its initial accumulators."""
        w.accs, w.gathered, w.dropped_ids, w.chunk_ids = {}, {}, w.dropped_ids + w.chunk_ids, ()
        w.arrived = None

    # --- results ---

    def results(self, w: OpenWindow) -> dict[str, Any]:
        """Return the aggregates by name; the caller may change them."""
        found = {}
        for name, a, _, _, gathers in self._plan:
            if gathers is not None:
                found[name] = self._gathered_values(w, name, a)
                continue
            acc = w.accs.get(name, _MISSING)
            if acc is _MISSING:
                acc = a.initial()
            elif acc.__class__ is Packed:
                acc = self._codec.decode(acc.data)
            found[name] = acc if acc is not None and name in self._own_results else a.result(acc)
        return found

    def _gathered_values(self, w: OpenWindow, name: str, a: Aggregation) -> list[Any]:
        """Return the result of an aggregation that gathers: of the stored chunks, and of this batch."""
        found: list[tuple[Stamp, Any]] = []
        for one in w.chunk_ids:
            for _, cell, data in self._view.scan(self._step, w.key, _chunk_prefix(one, a.kind, name)):
                arrival = int(cell.rpartition(b"/")[2])
                found.extend(((arrival, number), value) for number, value in self._codec.decode(data))
        if name in w.gathered:
            found.extend(((self._arrival, number), value) for number, value in w.gathered[name].pairs())
        found.sort(key=lambda pair: pair[0])
        gathers = traits_of(a).gathers
        assert gathers is not None
        return gathers.unite(a, [value for _, value in found])

    # --- to bytes and back ---

    def encode(self, w: OpenWindow) -> bytes:
        """Return the bytes of a window's cell."""
        parts = []
        for name, head in self._heads.items():
            acc = w.accs.get(name, _MISSING)
            if acc is not _MISSING:
                parts.append(head % (acc.data if acc.__class__ is Packed else self._codec.encode(acc)))
        more: dict[str, Any] = {}
        if self._merging and w.arrived is not None:
            more["came"] = [list(stamp) for stamp in w.arrived]
        if w.chunk_ids:
            more["ids"] = list(w.chunk_ids)
        if w.pane:
            more["pane"] = w.pane
        if not w.has_news:
            more["shown"] = True
        if w.retractable:
            more["past"] = list(w.retractable)
        if w.trigger_state is not None:
            more["trigger"] = w.trigger_state
        if w.newest is not None:
            more["newest"] = w.newest
        if w.is_emitted:
            more["closed"] = True
        tail = b"," + self._codec.encode(more)[1:-1] if more else b""
        return b'{"kept":{' + b",".join(parts) + b"}" + tail + b"}"

    def decode(self, key: bytes, cell: bytes, start: int | None, end: int | None, data: bytes) -> OpenWindow:
        """Return the window that is stored in a cell."""
        held = self._codec.decode(data)
        w = OpenWindow(key, cell, start, end)
        w.stored_cell, w.is_live = cell, True
        for name, (kind, acc) in held["kept"].items():
            a = self.aggregations.get(name)
            if a is not None and a.kind == kind:
                w.accs[name] = acc if name in self._pure_names else Packed(self._codec.encode(acc))
        came = held.get("came")
        w.arrived = None if came is None else (tuple(came[0]), tuple(came[1]))
        w.chunk_ids, w.pane, w.has_news = tuple(held.get("ids", ())), held.get("pane", 0), not held.get("shown", False)
        w.retractable, w.trigger_state, w.newest = tuple(held.get("past", ())), held.get("trigger"), held.get("newest")
        w.is_emitted = held.get("closed", False)
        return w

    def chunks(self, w: OpenWindow) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the chunk cells to write, with their values, and those to delete, with None."""
        for one in w.dropped_ids if w.is_live else (*w.dropped_ids, *w.chunk_ids):
            for _, cell, _ in self._view.scan(self._step, w.key, b"c:%s/" % one.encode()):
                yield cell, None
        if w.is_live:
            for name, gathered in w.gathered.items():
                if pairs := gathered.pairs():
                    cell = _chunk_prefix(w.chunk_ids[0], self.aggregations[name].kind, name) + b"%012d" % self._arrival
                    yield cell, self._codec.encode([list(pair) for pair in pairs])


def _encoded_head(codec: Codec, name: str, kind: str) -> bytes:
    return codec.encode(name).replace(b"%", b"%%") + b":[" + codec.encode(kind) + b",%b]"


def _chunk_prefix(one: str, kind: str, name: str) -> bytes:
    return f"c:{one}/{kind}/{quote(name, safe='')}/".encode()


def _merge_gathered(one: Gathered | None, other: Gathered | None) -> Gathered:
    if one is None or other is None:
        found = one if other is None else other
        assert found is not None
        return type(found)(found.pairs())
    return one.merge(other)


def _is_encodable(acc: Any) -> bool:
    """Return whether an accumulator can certainly be encoded, as seen without encoding it."""
    return is_surely_encodable(acc) or (acc.__class__ is list and bool(acc) and is_surely_encodable(acc[-1]))
