"""Accumulators that grow: a batch stores what it adds to them, not the whole value.

    ""               {"n": ["count", 3], "all": ["collect", [1, 2, 3]]}         the accumulators as they once were
    d:000000000042   {"n": ["count", 5], "all": ["collect", [4, 5], "+"]}       what a later batch changed, by arrival

An entry of three is a list of changes that are applied one after the other; one of two takes the place of what was.
One of four has changes of an aggregation that is not in the program, which nothing can apply, beside its value.

Once the changes of a key take as many bytes as its accumulators, the accumulators are written again and the changes are
deleted. So a row costs about what it adds, and reading costs about what is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from millpond.aggregations import Aggregation, aggregation_of
from millpond.aggregations.base import NO_CHANGE
from millpond.codec import Codec
from millpond.errors import Incompatible
from millpond.log.segment import Change
from millpond.replica import View

BASE = b""
FIRST_CHANGE, LAST_CHANGE = b"d:", b"d:~"
CHANGES = "+"  # marks an entry that is a list of changes
SMALLEST_FOLD = 1_000  # bytes of changes below which they are left as they are
MOST_DECODED_BYTES = 64 << 20  # of accumulators that a batch holds as objects; others are decoded again when needed

Accumulators = dict[str, Any]  # name → [kind, accumulator]


def are_changes(cell: bytes) -> bool:
    """Return whether a cell holds what one batch changed."""
    return cell.startswith(FIRST_CHANGE)


def fold_cells(
    cells: Iterable[tuple[bytes, bytes]], codec: Codec, aggregations: Mapping[str, Aggregation], where: str
) -> Accumulators:
    """Return the accumulators of a key from its cells, which must come in order.

    Changes of a user's own aggregation can be applied only by the program that has it. Otherwise they are kept beside
    the accumulator, as `[kind, accumulator, "+", changes]`. `Incompatible` if the program, in the step `where`, has the
    aggregation without its `change=`.
    """
    found: Accumulators = {}
    for _, data in cells:
        for name, entry in codec.decode(data).items():
            changes = []
            if len(entry) == 3:
                changes = entry[1]
                entry = found[name]
            elif len(entry) == 4:
                changes = entry[3]
                entry = entry[:2]
            found[name] = (
                _with_changes(entry, changes, aggregations.get(name), f"{where}, {name}=") if changes else entry
            )
    return found


def _with_changes(entry: list[Any], changes: list[Any], own: Aggregation | None, where: str) -> list[Any]:
    """Return an accumulator after some changes, or with these changes beside it if nothing can apply them."""
    kind, accumulator = entry[0], entry[1]
    is_own = own is not None and own.kind == kind
    apply = own.apply if own is not None and is_own else aggregation_of(kind).apply
    if apply is None and is_own:
        raise Incompatible(
            f"{where}: the state holds changes that the aggregation must apply, and it has no change= any more. Put "
            "change= and its update= back, or give the aggregation another name, with which it starts from its initial "
            "value. Nothing was changed."
        )
    if apply is None:
        return [kind, accumulator, CHANGES, [*(entry[3] if len(entry) == 4 else []), *changes]]
    for change in changes:
        accumulator = apply(accumulator, change)
    return [kind, accumulator]


@dataclass
class _Key:
    """The accumulators of one key in one batch: as they are stored, and what the batch has changed."""

    base: bytes | None
    stored: list[tuple[bytes, bytes]]  # cells of changes
    accumulators: Accumulators | None = None  # as they are now; None: to be made from the rest
    replaced: bytes | None = None  # those that do not grow, after the last row that succeeded
    was_replaced: bytes | None = None  # the same as the batch began
    fresh: set[str] = field(default_factory=set)  # those that grow and started from their initial value in this batch
    added: dict[str, list[bytes]] = field(default_factory=dict)  # name → changes

    @property
    def is_changed(self) -> bool:
        return bool(self.added or self.fresh) or self.replaced != self.was_replaced

    @property
    def size(self) -> int:
        return len(self.base or b"") + sum(len(data) for _, data in self.stored)


class GrowingAccumulators:
    """The accumulators of a step within one batch. A key is decoded once, whatever the number of its rows."""

    def __init__(self, step: str, aggregations: dict[str, Aggregation], view: View, codec: Codec, arrival: int) -> None:
        self._step, self._aggregations, self._view, self._codec = step, aggregations, view, codec
        self._cell = b"%b%012d" % (FIRST_CHANGE, arrival)
        self._keys: dict[bytes, _Key] = {}
        self._decoded: dict[bytes, int] = {}  # keys that are held as objects, the oldest first → their bytes
        self._decoded_bytes = 0

    def load(self, keys: Sequence[bytes]) -> None:
        """Read what is stored of some keys."""
        fresh = [key for key in keys if key not in self._keys]
        for key, base in zip(fresh, self._view.get_many(self._step, fresh), strict=True):
            entries = () if base is None else self._view.range(self._step, key, FIRST_CHANGE, LAST_CHANGE)
            self._keys[key] = _Key(base, [(entry.cell, entry.value) for entry in entries])

    def add(self, key: bytes, row: Any, time: Any) -> dict[str, Any]:
        """Add a row to a key that was loaded, and return the results by name. If it raises, nothing has changed."""
        held = self._keys[key]
        accumulators = self._current(key, held)
        results, added, fresh = {}, {}, set()
        try:
            for name, a in self._aggregations.items():
                kind, accumulator = accumulators.get(name, (None, None))[:2]
                if kind != a.kind:
                    accumulator = a.initial()
                    if a.change is not None:
                        fresh.add(name)
                if a.change is None:
                    accumulator = a.update(accumulator, row, time)
                elif (change := a.change(accumulator, row, time)) is not NO_CHANGE:
                    added[name] = self._codec.encode(change)  # as it is stored: the row may change later
                    accumulator = a.apply(accumulator, self._codec.decode(added[name]))  # type: ignore[misc]
                accumulators[name] = [a.kind, accumulator]
                results[name] = a.result(accumulator)
            replaced = self._encode_replaced(accumulators)
        except BaseException:
            held.accumulators = None  # a function may have changed them half-way
            raise
        held.replaced = replaced
        for name in fresh:
            held.fresh.add(name)
            held.added.pop(name, None)
        for name, data in added.items():
            held.added.setdefault(name, []).append(data)
        return results

    def _encode_replaced(self, accumulators: Accumulators) -> bytes:
        plain = [name for name, a in self._aggregations.items() if a.change is None and name in accumulators]
        return self._codec.encode({name: accumulators[name] for name in plain})

    def _current(self, key: bytes, held: _Key) -> Accumulators:
        if held.accumulators is None:
            held.accumulators = self._fold(held)
            if held.was_replaced is None:
                held.was_replaced = held.replaced = self._encode_replaced(held.accumulators)
            self._limit_decoded(key, held.size)
        return held.accumulators

    def _fold(self, held: _Key) -> Accumulators:
        """Return the accumulators of a key from what is stored, and from what the batch has changed so far."""
        cells = [*([] if held.base is None else [(BASE, held.base)]), *held.stored]
        found = fold_cells(cells, self._codec, self._aggregations, f"step {self._step!r}")
        for name in held.fresh:
            a = self._aggregations[name]
            found[name] = [a.kind, a.initial()]
        for name, changes in held.added.items():
            a, accumulator = self._aggregations[name], found[name][1]
            for data in changes:
                accumulator = a.apply(accumulator, self._codec.decode(data))  # type: ignore[misc]
            found[name] = [a.kind, accumulator]
        if held.replaced is not None:
            found.update(self._codec.decode(held.replaced))
        return found

    def _limit_decoded(self, key: bytes, size: int) -> None:
        """Let go of the objects of other keys, if they are too many. They can be made again."""
        self._decoded_bytes += size - self._decoded.pop(key, 0)
        self._decoded[key] = size
        while self._decoded_bytes > MOST_DECODED_BYTES and len(self._decoded) > 1:
            oldest = next(iter(self._decoded))
            self._decoded_bytes -= self._decoded.pop(oldest)
            self._keys[oldest].accumulators = None

    def changes(self) -> list[Change]:
        """Return what this batch has changed, sorted by key and cell."""
        found: list[Change] = []
        for key, held in sorted(self._keys.items()):
            if held.is_changed:
                found += self._changes_of(key, held)
        return found

    def _changes_of(self, key: bytes, held: _Key) -> list[Change]:
        if held.base is not None:
            data = self._codec.encode(self._delta(key, held))
            size = len(data) + sum(len(stored) for _, stored in held.stored)
            if size < max(SMALLEST_FOLD, len(held.base)):
                return [Change(key, self._cell, data)]
        current = self._current(key, held)
        in_order = {name: current[name] for name in self._aggregations if name in current}
        base = self._codec.encode({**in_order, **current})
        return [Change(key, BASE, base), *(Change(key, cell, None) for cell, _ in held.stored)]

    def _delta(self, key: bytes, held: _Key) -> Accumulators:
        found: Accumulators = {} if held.replaced is None else self._codec.decode(held.replaced)
        for name in held.fresh:
            found[name] = self._current(key, held)[name]
        for name, changes in held.added.items():
            if name not in held.fresh:
                found[name] = [self._aggregations[name].kind, [self._codec.decode(data) for data in changes], CHANGES]
        return found


def folded_keys(
    step: str, aggregations: Mapping[str, Aggregation], view: View, codec: Codec
) -> list[tuple[bytes, Accumulators, list[bytes]]]:
    """Return every key that has cells of changes: its accumulators, and these cells. Reads all state of a step.

    It is called once, when a program begins to store this step in another way.
    """
    found = []
    for key, entries in groupby(view.entries(step), lambda entry: entry.key):
        cells = sorted((e.cell, e.value) for e in entries if e.cell == BASE or are_changes(e.cell))
        changes = [cell for cell, _ in cells if are_changes(cell)]
        if changes:
            found.append((key, fold_cells(cells, codec, aggregations, f"step {step!r}"), changes))
    return found
