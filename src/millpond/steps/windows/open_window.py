"""An open window: its accumulators, what it has shown, and how both are kept.

    {"kept":{"n":["count",3],"spent":["sum",12]},"pane":1,"shown":true}

Accumulators stand by name, each beside the kind that it belongs to: one that is new, or of another kind than the
one that kept the accumulator, begins anew and leaves the others alone. What a window collects grows with every
row, so it lies in cells of its own, one for each batch that added to it: `c:<id>/<kind>/<name>/<arrival>`, a list of
places in the order of arrival and values. A window knows the ids of what it has collected, several where
sessions have joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

from millpond.aggregations import Aggregation, distinct
from millpond.codec import Codec
from millpond.replica import View
from millpond.steps.state.single import Packed, is_surely_encodable

Stamp = tuple[int, int]  # a row's place in the order of arrival: that of the batch, and its number there

# Their `update` and `merge` change nothing that they are given; all others but the collecting ones may.
PURE = frozenset({"count", "sum", "mean", "min", "max", "first", "last", "earliest", "latest"})
COLLECTING = frozenset({"collect", "distinct"})
_NOTHING: Any = object()

_values = distinct()


class Window:
    """One window of one key, as it is within a batch."""

    __slots__ = (
        "accs",
        "alive",
        "came",
        "cell",
        "changed",
        "closed",
        "end",
        "fresh",
        "gone",
        "ids",
        "key",
        "newest",
        "news",
        "origin",
        "pane",
        "past",
        "start",
        "trigger",
    )

    def __init__(self, key: bytes, cell: bytes, start: int | None, end: int | None) -> None:
        self.key, self.cell, self.start, self.end = key, cell, start, end
        self.origin: bytes | None = None  # the cell that it was read from
        self.accs: dict[str, Any] = {}
        self.came: tuple[Stamp, Stamp] | None = None  # its first and its last row, by arrival
        self.ids: tuple[str, ...] = ()  # of what it has collected
        self.fresh: dict[str, Any] = {}  # what it has collected in this batch
        self.gone: tuple[str, ...] = ()  # ids of what it has collected and let go
        self.pane = 0
        self.news = False  # whether anything has changed since the last pane
        self.past: tuple[Any, ...] = ()  # what has been shown and is to be taken back
        self.trigger: Any = None
        self.newest: int | None = None  # the newest time of a row, where the window has no end of its own
        self.closed = False  # only the rows are kept, for windows that come after it
        self.changed = False
        self.alive = False

    def save(self) -> tuple[Any, ...]:
        """What `restore` needs to make the window what it was."""
        return (
            self,
            self.cell,
            self.start,
            self.end,
            self.accs,
            self.came,
            self.ids,
            self.fresh,
            {name: len(found) for name, found in self.fresh.items()} if self.fresh else None,
            self.gone,
            self.pane,
            self.news,
            self.past,
            self.trigger,
            self.newest,
            self.closed,
            self.changed,
            self.alive,
        )


def restore(saved: tuple[Any, ...]) -> None:
    """Make a window what it was when it was saved."""
    w: Window
    (
        w,
        w.cell,
        w.start,
        w.end,
        w.accs,
        w.came,
        w.ids,
        w.fresh,
        lengths,
        w.gone,
        w.pane,
        w.news,
        w.past,
        w.trigger,
        w.newest,
        w.closed,
        w.changed,
        w.alive,
    ) = saved
    for name, found in w.fresh.items():
        length = 0 if lengths is None else lengths.get(name, 0)
        if isinstance(found, list):
            del found[length:]
        else:
            while len(found) > length:
                found.popitem()


class Accumulators:
    """The aggregations of a step at work on the windows of one batch."""

    def __init__(
        self, step: str, aggregations: dict[str, Aggregation], view: View, codec: Codec, arrival: int, merging: bool
    ) -> None:
        self._step, self._view, self._codec, self._arrival = step, view, codec, arrival
        self._merging = merging  # whether windows join, and so have to know which came earlier
        self.aggregations = aggregations
        self._plan = [(name, a, a.kind, a.update) for name, a in aggregations.items()]
        self.collects = any(a.kind in COLLECTING for a in aggregations.values())
        self.needs_time = any(a.kind in ("earliest", "latest") for a in aggregations.values())
        self._heads = {name: _head(codec, name, a.kind) for name, a in aggregations.items()}
        self.heads = list(self._heads.values())
        self._ids = 0
        self._number = 0

    def stamp(self) -> Stamp:
        """The place of the row that comes next."""
        self._number += 1
        return self._arrival, self._number

    # --- one row more ---

    def add(self, w: Window, row: Any, time: Any, stamp: Stamp) -> None:
        """Count a row in a window. If it raises, the window must be restored."""
        accs = dict(w.accs)
        if self.collects and not w.ids:
            self._ids += 1
            w.ids = (f"{self._arrival}.{self._ids}",)
        for name, a, kind, update in self._plan:
            if kind in PURE:
                old = accs[name] if name in accs else a.initial()
                new = accs[name] = update(old, row, time)
                if new is not old and not _is_sure(new):
                    self._codec.encode(new)  # what cannot be stored fails here, with its row
            elif kind in COLLECTING:
                self._collect(w, name, a, row, time, stamp)
            else:
                old = self._codec.decode(accs[name].data) if name in accs else a.initial()
                accs[name] = Packed(self._codec.encode(update(old, row, time)))
        w.accs = accs
        w.came = (stamp, stamp) if w.came is None else (w.came[0], stamp)
        w.news = w.changed = True

    def _collect(self, w: Window, name: str, a: Aggregation, row: Any, time: Any, stamp: Stamp) -> None:
        if a.kind == "collect":
            (value,) = a.update([], row, time)
            if not is_surely_encodable(value):
                self._codec.encode(value)
            w.fresh.setdefault(name, []).append((stamp[1], value))
            return
        found = w.fresh.setdefault(name, {})
        before = len(found)
        a.update(found, row, time)
        if len(found) > before:
            value = next(reversed(found))
            found[value] = stamp[1]
            if not is_surely_encodable(value):
                self._codec.encode(value)

    def merge(self, into: Window, other: Window) -> None:
        """Count everything of another window in this one, as if both had been one from the beginning."""
        assert into.came is not None and other.came is not None
        accs: dict[str, Any] = {}
        for name, a, kind, _ in self._plan:
            if kind in COLLECTING:
                continue
            x, y = into.accs.get(name, _NOTHING), other.accs.get(name, _NOTHING)
            if x is _NOTHING or y is _NOTHING:
                if x is not _NOTHING or y is not _NOTHING:
                    accs[name] = y if x is _NOTHING else x
                continue
            which = 1 if kind == "last" else 0  # the other accumulators go by what came first
            if other.came[which] < into.came[which]:
                x, y = y, x
            if kind in PURE:
                accs[name] = a.merge(x, y)
            else:
                both = a.merge(self._codec.decode(x.data), self._codec.decode(y.data))
                accs[name] = Packed(self._codec.encode(both))
        into.accs = accs
        into.fresh = {
            name: _joined(into.fresh.get(name), other.fresh.get(name)) for name in {*into.fresh, *other.fresh}
        }
        into.ids = tuple(dict.fromkeys((*into.ids, *other.ids)))
        into.gone += other.gone
        into.came = (min(into.came[0], other.came[0]), max(into.came[1], other.came[1]))
        into.pane = max(into.pane, other.pane)
        into.past += other.past
        into.news = into.news or other.news
        into.changed = True

    def refill(self, w: Window, other: Window) -> None:
        """Let a new window hold all that another one does, which goes on by itself."""
        w.accs, w.came = other.accs, other.came
        for name, a in self.aggregations.items():
            if a.kind not in COLLECTING:
                continue
            if not w.ids:
                self._ids += 1
                w.ids = (f"{self._arrival}.{self._ids}",)
            pairs = [(self.stamp()[1], value) for value in self._collected(other, name, a.kind)]
            w.fresh[name] = pairs if a.kind == "collect" else {value: seq for seq, value in pairs}

    def clear(self, w: Window) -> None:
        """Forget what a window holds; it begins anew."""
        w.accs, w.fresh, w.gone, w.ids = {}, {}, w.gone + w.ids, ()
        w.came = None

    # --- what it comes to ---

    def results(self, w: Window) -> dict[str, Any]:
        """The aggregates by name, the caller's own."""
        found = {}
        for name, a, kind, _ in self._plan:
            if kind in COLLECTING:
                found[name] = self._collected(w, name, kind)
            elif name not in w.accs:
                found[name] = a.result(a.initial())
            else:
                acc = w.accs[name]
                found[name] = a.result(self._codec.decode(acc.data) if acc.__class__ is Packed else acc)
        return found

    def _collected(self, w: Window, name: str, kind: str) -> list[Any]:
        chunks = [
            (cell, value)
            for one in w.ids
            for _, cell, value in self._view.scan(self._step, w.key, _chunks(one, kind, name))
        ]
        elements = list(elements_of(chunks, self._codec))
        fresh = w.fresh.get(name, ())
        pairs = fresh if kind == "collect" else ((seq, value) for value, seq in dict(fresh).items())
        elements.extend(((self._arrival, seq), value) for seq, value in pairs)
        return in_arrival(elements, kind)

    # --- to bytes and back ---

    def encode(self, w: Window) -> bytes:
        """A window's cell."""
        parts = []
        for name, head in self._heads.items():
            acc = w.accs.get(name, _NOTHING)
            if acc is not _NOTHING:
                parts.append(head % (acc.data if acc.__class__ is Packed else self._codec.encode(acc)))
        more: dict[str, Any] = {}
        if self._merging and w.came is not None:
            more["came"] = [list(stamp) for stamp in w.came]
        if w.ids:
            more["ids"] = list(w.ids)
        if w.pane:
            more["pane"] = w.pane
        if not w.news:
            more["shown"] = True
        if w.past:
            more["past"] = list(w.past)
        if w.trigger is not None:
            more["trigger"] = w.trigger
        if w.newest is not None:
            more["newest"] = w.newest
        if w.closed:
            more["closed"] = True
        tail = b"," + self._codec.encode(more)[1:-1] if more else b""
        return b'{"kept":{' + b",".join(parts) + b"}" + tail + b"}"

    def decode(self, key: bytes, cell: bytes, start: int | None, end: int | None, data: bytes) -> Window:
        """The window that a cell holds."""
        held = self._codec.decode(data)
        w = Window(key, cell, start, end)
        w.origin, w.alive = cell, True
        for name, (kind, acc) in held["kept"].items():
            a = self.aggregations.get(name)
            if a is not None and a.kind == kind:
                w.accs[name] = acc if kind in PURE else Packed(self._codec.encode(acc))
        came = held.get("came")
        w.came = None if came is None else (tuple(came[0]), tuple(came[1]))
        w.ids, w.pane, w.news = tuple(held.get("ids", ())), held.get("pane", 0), not held.get("shown", False)
        w.past, w.trigger, w.newest = tuple(held.get("past", ())), held.get("trigger"), held.get("newest")
        w.closed = held.get("closed", False)
        return w

    def chunks(self, w: Window) -> Iterator[tuple[bytes, bytes | None]]:
        """The cells of what a window has collected in this batch, and of what it has let go."""
        for one in w.gone if w.alive else (*w.gone, *w.ids):
            for _, cell, _ in self._view.scan(self._step, w.key, b"c:%s/" % one.encode()):
                yield cell, None
        if w.alive:
            for name, found in w.fresh.items():
                kind = self.aggregations[name].kind
                pairs = found if kind == "collect" else [(seq, value) for value, seq in found.items()]
                if pairs:
                    cell = _chunks(w.ids[0], kind, name) + b"%012d" % self._arrival
                    yield cell, self._codec.encode([list(pair) for pair in pairs])


def _head(codec: Codec, name: str, kind: str) -> bytes:
    return codec.encode(name).replace(b"%", b"%%") + b":[" + codec.encode(kind) + b",%b]"


def _chunks(one: str, kind: str, name: str) -> bytes:
    return f"c:{one}/{kind}/{quote(name, safe='')}/".encode()


def elements_of(chunks: Iterable[tuple[bytes, bytes]], codec: Codec) -> Iterator[tuple[Stamp, Any]]:
    """What some cells have collected, each with its place in the order of arrival."""
    for cell, data in chunks:
        arrival = int(cell.rpartition(b"/")[2])
        for seq, value in codec.decode(data):
            yield (arrival, seq), value


def in_arrival(elements: list[tuple[Stamp, Any]], kind: str) -> list[Any]:
    """Collected values in the order of arrival, each once where they are to be distinct."""
    elements.sort(key=lambda pair: pair[0])
    if kind == "collect":
        return [value for _, value in elements]
    found = _values.initial()
    for _, value in elements:
        found = _values.merge(found, {value: None})
    return list(found)


def _joined(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return (one if other is None else other).copy()
    if isinstance(one, list):
        return sorted(one + other, key=lambda pair: pair[0])
    found: dict[Any, int] = {}
    for value, seq in sorted([*one.items(), *other.items()], key=lambda pair: pair[1]):
        found.setdefault(value, seq)
    return found


def _is_sure(acc: Any) -> bool:
    """Whether an accumulator can be encoded for sure."""
    return is_surely_encodable(acc) or (acc.__class__ is list and bool(acc) and is_surely_encodable(acc[-1]))
