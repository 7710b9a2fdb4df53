"""An open window within a batch, the accumulators of windows, and the bytes in which a window is stored.

    {"kept":{"n":["count",3],"spent":["sum",12]},"pane":1,"shown":true}

Each accumulator is stored under its name with its kind. An aggregation that is new, or of another kind than the
stored accumulator, starts from its initial value and leaves the others unchanged. The values that `collect` and
`distinct` gather grow with every row, so they are stored in separate cells, one for each batch that added some:
`c:<id>/<kind>/<name>/<arrival>` holds a list of pairs, place in the order of arrival and value. A window stores the ids
of its chunks; a session that others were merged into has several.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

from millpond.aggregations import Aggregation, distinct
from millpond.aggregations.kinds import traits_of
from millpond.codec import Codec
from millpond.replica import View
from millpond.steps.state.single import Packed, is_surely_encodable

Stamp = tuple[int, int]  # a row's place in the order of arrival: the batch's arrival number, the row's number in it
Undo = list[Any]  # saved windows and functions that put back what a row has changed, in order

_MISSING: Any = object()

_values = distinct()


class OpenWindow:
    """One window of one key within a batch."""

    __slots__ = (
        "accs",
        "arrived",
        "cell",
        "chunk_ids",
        "collected",
        "dropped_ids",
        "end",
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
        self.collected: dict[str, Any] = {}  # values collected in this batch, by aggregation
        self.dropped_ids: tuple[str, ...] = ()  # of chunks to delete
        self.pane = 0
        self.has_news = False  # whether anything has changed since the last pane
        self.retractable: tuple[Any, ...] = ()  # panes that the next pane takes back
        self.trigger_state: Any = None
        self.newest: int | None = None  # the newest time of a row; only in windows without an end
        self.is_emitted = False  # its final pane is out; it is kept for the windows after it
        self.is_changed = False
        self.is_live = False

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
            self.collected,
            {name: len(found) for name, found in self.collected.items()} if self.collected else None,
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
        w.collected,
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
    for name, found in w.collected.items():
        length = 0 if lengths is None else lengths.get(name, 0)
        if isinstance(found, list):
            del found[length:]
        else:
            while len(found) > length:
                found.popitem()


class Accumulators:
    """Updates, merges, encodes and decodes the accumulators of one batch's windows."""

    def __init__(
        self, step: str, aggregations: dict[str, Aggregation], view: View, codec: Codec, arrival: int, merging: bool
    ) -> None:
        self._step, self._view, self._codec, self._arrival = step, view, codec, arrival
        self._merging = merging  # whether windows merge; then each stores the arrival of its rows
        self.aggregations = aggregations
        self._plan = [
            (name, a, a.update, traits_of(a).is_pure, traits_of(a).is_collecting) for name, a in aggregations.items()
        ]
        self.collects = any(traits_of(a).is_collecting for a in aggregations.values())
        self.needs_time = any(traits_of(a).needs_time for a in aggregations.values())
        self._pure_names = {name for name, a in aggregations.items() if traits_of(a).is_pure}
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
        for name, a, update, is_pure, is_collecting in self._plan:
            if is_pure:
                old = accs[name] if name in accs else a.initial()
                new = accs[name] = update(old, row, time)
                if new is not old and not _is_encodable(new):
                    self._codec.encode(new)  # a value that cannot be stored must fail here, with its row
            elif is_collecting:
                self._collect(w, name, a, row, time, stamp)
            else:
                old = self._codec.decode(accs[name].data) if name in accs else a.initial()
                accs[name] = Packed(self._codec.encode(update(old, row, time)))
        w.accs = accs
        w.arrived = (stamp, stamp) if w.arrived is None else (w.arrived[0], stamp)
        w.has_news = w.is_changed = True

    def _collect(self, w: OpenWindow, name: str, a: Aggregation, row: Any, time: Any, stamp: Stamp) -> None:
        if a.kind == "collect":
            (value,) = a.update([], row, time)
            if not is_surely_encodable(value):
                self._codec.encode(value)
            w.collected.setdefault(name, []).append((stamp[1], value))
            return
        found = w.collected.setdefault(name, {})
        before = len(found)
        a.update(found, row, time)
        if len(found) > before:
            value = next(reversed(found))
            found[value] = stamp[1]
            if not is_surely_encodable(value):
                self._codec.encode(value)

    def merge(self, into: OpenWindow, other: OpenWindow) -> None:
        """Add all of another window to this one, as if they had been one window from the start."""
        assert into.arrived is not None and other.arrived is not None
        accs: dict[str, Any] = {}
        for name, a, _, is_pure, is_collecting in self._plan:
            if is_collecting:
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
        into.collected = {
            name: _merge_collected(into.collected.get(name), other.collected.get(name))
            for name in {*into.collected, *other.collected}
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
        for name, a in self.aggregations.items():
            if not traits_of(a).is_collecting:
                continue
            if not w.chunk_ids:
                self._ids += 1
                w.chunk_ids = (f"{self._arrival}.{self._ids}",)
            pairs = [(self.stamp()[1], value) for value in self._collected_values(other, name, a.kind)]
            w.collected[name] = pairs if a.kind == "collect" else {value: seq for seq, value in pairs}

    def clear(self, w: OpenWindow) -> None:
        """Reset a window to its initial accumulators."""
        w.accs, w.collected, w.dropped_ids, w.chunk_ids = {}, {}, w.dropped_ids + w.chunk_ids, ()
        w.arrived = None

    # --- results ---

    def results(self, w: OpenWindow) -> dict[str, Any]:
        """Return the aggregates by name; the caller may change them."""
        found = {}
        for name, a, _, _, is_collecting in self._plan:
            if is_collecting:
                found[name] = self._collected_values(w, name, a.kind)
            elif name not in w.accs:
                found[name] = a.result(a.initial())
            else:
                acc = w.accs[name]
                found[name] = a.result(self._codec.decode(acc.data) if acc.__class__ is Packed else acc)
        return found

    def _collected_values(self, w: OpenWindow, name: str, kind: str) -> list[Any]:
        chunks = [
            (cell, value)
            for one in w.chunk_ids
            for _, cell, value in self._view.scan(self._step, w.key, _chunk_prefix(one, kind, name))
        ]
        elements = list(chunk_elements(chunks, self._codec))
        fresh = w.collected.get(name, ())
        pairs = fresh if kind == "collect" else ((seq, value) for value, seq in dict(fresh).items())
        elements.extend(((self._arrival, seq), value) for seq, value in pairs)
        return in_arrival_order(elements, kind)

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
            for name, found in w.collected.items():
                kind = self.aggregations[name].kind
                pairs = found if kind == "collect" else [(seq, value) for value, seq in found.items()]
                if pairs:
                    cell = _chunk_prefix(w.chunk_ids[0], kind, name) + b"%012d" % self._arrival
                    yield cell, self._codec.encode([list(pair) for pair in pairs])


def _encoded_head(codec: Codec, name: str, kind: str) -> bytes:
    return codec.encode(name).replace(b"%", b"%%") + b":[" + codec.encode(kind) + b",%b]"


def _chunk_prefix(one: str, kind: str, name: str) -> bytes:
    return f"c:{one}/{kind}/{quote(name, safe='')}/".encode()


def chunk_elements(chunks: Iterable[tuple[bytes, bytes]], codec: Codec) -> Iterator[tuple[Stamp, Any]]:
    """Yield the values of some chunks, each with its place in the order of arrival."""
    for cell, data in chunks:
        arrival = int(cell.rpartition(b"/")[2])
        for seq, value in codec.decode(data):
            yield (arrival, seq), value


def in_arrival_order(elements: list[tuple[Stamp, Any]], kind: str) -> list[Any]:
    """Return collected values in the order of arrival; for `distinct`, each value once."""
    elements.sort(key=lambda pair: pair[0])
    if kind == "collect":
        return [value for _, value in elements]
    found = _values.initial()
    for _, value in elements:
        found = _values.merge(found, {value: None})
    return list(found)


def _merge_collected(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return (one if other is None else other).copy()
    if isinstance(one, list):
        return sorted(one + other, key=lambda pair: pair[0])
    found: dict[Any, int] = {}
    for value, seq in sorted([*one.items(), *other.items()], key=lambda pair: pair[1]):
        found.setdefault(value, seq)
    return found


def _is_encodable(acc: Any) -> bool:
    """Whether an accumulator can certainly be encoded, as seen without encoding it."""
    return is_surely_encodable(acc) or (acc.__class__ is list and bool(acc) and is_surely_encodable(acc[-1]))
