"""The rows of a table as one batch sees them, decoded, and what a process remembers of them between batches.

An entry is a row that several callers share: a dict of immutable values as it is, any other row with mutable parts as
`Nested`, or `MISSING` where the table has no row. `own_row` makes a caller's own row of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, Protocol

from millpond.codec import IMMUTABLE, Codec, Unreadable, copy_value, decode_key, decode_keys, encode_key
from millpond.codec.key_order import SortKey, begins_with, common_beginning, encoded_beginning, sort_key
from millpond.steps.failure import unreadable_state

GENERATION_BYTES = 4 << 20  # of encoded rows that a process keeps decoded; there are two generations of them
GENERATION_ROWS = 50_000
MOST_ORDERED = 20_000  # rows of a table that a process keeps decoded and in order; larger tables are read each time
MOST_POINTS = 1000  # whole numbers in a range that are looked up one by one in a large table
CHUNK = 1000  # rows of a large table that are decoded together

MISSING: Any = object()  # no row of a table
_UNKNOWN: Any = object()  # not in the cache


class Nested:
    """A row with mutable parts, or of a class of the user's."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def own_row(entry: Any) -> Any:
    """Return the row of an entry that is not `MISSING`; changing it changes nothing else."""
    cls = type(entry)
    if cls is dict:
        return entry.copy()
    return copy_value(entry.value) if cls is Nested else copy_value(entry)


class TableRows(Protocol):
    """The rows of a table, with the changes that the batch has made to it so far."""

    def find(self, keys: Sequence[bytes]) -> list[Any]:
        """Return the entries of encoded keys, which may repeat."""
        ...


@dataclass(frozen=True)
class RowDecoder:
    """Decodes the rows of one table."""

    table: str
    codec: Codec

    def entries(self, keys: Sequence[bytes], texts: Sequence[bytes | None]) -> list[Any]:
        """Return the entries of encoded rows; `Incompatible` names the key of a row that cannot be decoded."""
        there = [text for text in texts if text is not None]
        try:
            rows = self.codec.decode_many(there)
        except Unreadable:
            for key, text in zip(keys, texts, strict=True):
                if text is not None:
                    self._decode(key, text)
            raise
        found = iter([row if _is_flat(text) else Nested(row) for row, text in zip(rows, there, strict=True)])
        return [MISSING if text is None else next(found) for text in texts]

    def _decode(self, key: bytes, text: bytes) -> Any:
        try:
            return self.codec.decode(text)
        except Unreadable as error:
            raise unreadable_state(self.table, error, decode_key(key)) from error


def _is_flat(text: bytes) -> bool:
    """Return whether a row is surely a scalar, or a dict of scalars. Text in it may look like a nested value."""
    return b"[" not in text and text.rfind(b"{") <= 0


@dataclass(frozen=True)
class PartitionRows:
    """The rows of a table that are in the partition of the task."""

    decoder: RowDecoder
    read: Callable[[Sequence[bytes]], list[bytes | None]]

    def find(self, keys: Sequence[bytes]) -> list[Any]:
        distinct = sorted(set(keys))
        entries = dict(zip(distinct, self.decoder.entries(distinct, self.read(distinct)), strict=True))
        return [entries[key] for key in keys]


# --- tables that are everywhere ---


class Item(NamedTuple):
    """A row of a table in the order of keys."""

    order: SortKey
    encoded: bytes
    key: Any
    make: Callable[[], Any]  # returns the caller's own row


class CommittedTable(Protocol):
    """What was committed of a whole table, before the batch."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the encoded rows of encoded keys, None where there is none; fastest if these are in order."""
        ...

    def scan(self, beginning: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return encoded keys that begin with these bytes, and their rows, in no certain order."""
        ...

    def count(self) -> int:
        """Return the number of rows, or a little more."""
        ...


@dataclass
class Overlay:
    """The changes that a batch has made to a table before the stage that reads it."""

    files: tuple[str, ...] = ()  # the segments that they are in
    changes: Mapping[bytes, bytes | None] = field(default_factory=dict)  # encoded key → encoded row
    items: list[Item] | None = None  # all rows of the table with these changes


@dataclass
class RowCache:
    """What one process remembers of a table between batches: rows of one committed version, and one overlay.

    One task uses it at a time.
    """

    version: tuple[str, int, str] | None = None  # folder of the replica, number and checksum of the record
    items: list[Item] | None = None  # all rows, in order
    overlay: Overlay = field(default_factory=Overlay)
    _young: dict[bytes, Any] = field(default_factory=dict)  # encoded key → entry
    _old: dict[bytes, Any] = field(default_factory=dict)  # the generation before
    _bytes: int = 0  # of the young ones, encoded

    @property
    def is_empty(self) -> bool:
        return not self._young and not self._old and self.items is None

    def clear(self) -> None:
        """Forget all rows."""
        self._young, self._old, self._bytes, self.items, self.overlay = {}, {}, 0, None, Overlay()

    def advance(self, changes: Mapping[bytes, bytes | None], decoder: RowDecoder) -> None:
        """Let the rows be those of a later version, which differs by these changes."""
        for rows in (self._young, self._old):
            for key in changes.keys() & rows.keys():
                del rows[key]
        if changes:
            self.overlay.items = None
            self.items = None if self.items is None else change_items(self.items, changes, decoder)

    def find(
        self, keys: Sequence[bytes], read: Callable[[Sequence[bytes]], list[bytes | None]], decoder: RowDecoder
    ) -> list[Any]:
        """Return the entries of keys; `read` returns the encoded rows of those that are not known."""
        found = list(map(self._young.get, keys, repeat(_UNKNOWN)))
        places = [i for i, entry in enumerate(found) if entry is _UNKNOWN]
        if not places:
            return found
        fresh: dict[bytes, Any] = {}
        known = self._old.get
        for i in places:
            fresh[keys[i]] = known(keys[i], _UNKNOWN)
        missing = sorted(key for key, entry in fresh.items() if entry is _UNKNOWN)
        texts = read(missing)
        fresh.update(zip(missing, decoder.entries(missing, texts), strict=True))
        for i in places:
            found[i] = fresh[keys[i]]
        self._keep(fresh, sum(len(text) for text in texts if text is not None) + 32 * len(fresh))
        return found

    def _keep(self, entries: dict[bytes, Any], size: int) -> None:
        """Remember entries. If there are too many, those that were not asked for since the last time are forgotten."""
        if self._bytes + size > GENERATION_BYTES or len(self._young) + len(entries) > GENERATION_ROWS:
            self._old, self._young, self._bytes = self._young, {}, 0
            if size > GENERATION_BYTES or len(entries) > GENERATION_ROWS:
                return  # more than it can hold: most of them will not be asked for again
        self._young.update(entries)
        self._bytes += size


def change_items(items: list[Item], changes: Mapping[bytes, bytes | None], decoder: RowDecoder) -> list[Item] | None:
    """Return the rows of a table after some changes, in order; None if there are too many to keep."""
    keys = list(changes)
    held = {item.encoded: item for item in items if item.encoded not in changes}
    for item in make_items(keys, decoder.entries(keys, list(changes.values()))):
        held[item.encoded] = item
    return sorted(held.values()) if len(held) <= 2 * MOST_ORDERED else None


def make_items(keys: Sequence[bytes], entries: Sequence[Any]) -> Iterator[Item]:
    """Yield the rows of encoded keys that are there."""
    for encoded, key, entry in zip(keys, decode_keys(keys), entries, strict=True):
        if entry is not MISSING:
            yield Item(sort_key(key), encoded, key, _maker(entry))


def _maker(entry: Any) -> Callable[[], Any]:
    if type(entry) is dict:
        return entry.copy
    return repeat(entry).__next__ if type(entry) in IMMUTABLE else partial(own_row, entry)


class WholeRows:
    """All rows of a table that is everywhere, as one batch sees them."""

    def __init__(
        self,
        decoder: RowDecoder,
        batch: int,
        committed: CommittedTable,
        cache: RowCache,
        read_overlay: Callable[[], Overlay],
    ) -> None:
        self.table, self.batch = decoder.table, batch
        self._decoder, self._committed, self._cache, self._read_overlay = decoder, committed, cache, read_overlay
        self._read: Overlay | None = None

    @property
    def _overlay(self) -> Overlay:
        if self._read is None:
            self._read = self._read_overlay()
        return self._read

    def find(self, keys: Sequence[bytes]) -> list[Any]:
        changes = self._overlay.changes
        if not changes or changes.keys().isdisjoint(keys):
            return self._cache.find(keys, self._committed.get_many, self._decoder)
        changed = [key for key in dict.fromkeys(keys) if key in changes]
        fresh = dict(zip(changed, self._decoder.entries(changed, [changes[key] for key in changed]), strict=True))
        others = [key for key in keys if key not in changes]
        committed = iter(self._cache.find(others, self._committed.get_many, self._decoder))
        return [fresh[key] if key in fresh else next(committed) for key in keys]

    # --- in order ---

    def items(self) -> Iterator[Item]:
        """Return all rows in the order of their keys."""
        items = self._items()
        return self._scan(b"", lambda encoded: True) if items is None else iter(items)

    def prefix(self, beginning: str | tuple[Any, ...]) -> Iterator[Item]:
        """Return the rows whose keys begin with a text, or with some parts, in order."""
        start, is_tuple = encoded_beginning(beginning), isinstance(beginning, tuple)
        items = self._items()
        if items is None:
            return self._scan(start, lambda encoded: begins_with(encoded, start, is_tuple))
        return _following(items, sort_key(beginning), lambda item: begins_with(item.encoded, start, is_tuple))

    def range(self, first: Any, last: Any) -> Iterator[Item]:
        """Return the rows whose keys are from the first to the last, both included, in order."""
        low, high = sort_key(first), sort_key(last)
        items = self._items()
        if items is not None:
            return _following(items, low, lambda item: item.order <= high)
        if type(first) is int and last - first < MOST_POINTS:
            keys = [encode_key(number) for number in range(first, last + 1)]
            return make_items(keys, self.find(keys))
        return self._scan(common_beginning(first, last), lambda encoded: low <= sort_key(decode_key(encoded)) <= high)

    def _items(self) -> list[Item] | None:
        """Return all rows in order; None if there are too many to keep."""
        cache, overlay = self._cache, self._overlay
        if cache.items is None:
            if self._committed.count() + len(overlay.changes) > MOST_ORDERED:
                return None
            keys, texts = _columns(self._committed.scan(b""))
            cache.items = sorted(make_items(keys, self._decoder.entries(keys, texts)))
        if not overlay.changes:
            return cache.items
        if len(cache.items) + len(overlay.changes) > 2 * MOST_ORDERED:
            return None
        if overlay.items is None:
            overlay.items = change_items(cache.items, overlay.changes, self._decoder)
        return overlay.items

    def _scan(self, beginning: bytes, is_wanted: Callable[[bytes], bool]) -> Iterator[Item]:
        """Yield the wanted rows of a large table in order. Keys are held together, rows a few at a time."""
        changes = self._overlay.changes
        found = {key for key, _ in self._committed.scan(beginning) if is_wanted(key)}
        found.update(key for key in changes if key.startswith(beginning) and is_wanted(key))
        ordered = [key for _, key in sorted((sort_key(decode_key(key)), key) for key in found)]
        for start in range(0, len(ordered), CHUNK):
            keys = ordered[start : start + CHUNK]
            committed = iter(self._committed.get_many([key for key in keys if key not in changes]))
            texts = [changes[key] if key in changes else next(committed) for key in keys]
            yield from make_items(keys, self._decoder.entries(keys, texts))


def _following(items: list[Item], low: SortKey, goes_on: Callable[[Item], bool]) -> Iterator[Item]:
    """Yield the rows from a place in the order on, as long as they are wanted."""
    for place in range(bisect_left(items, low, key=lambda item: item.order), len(items)):
        if not goes_on(items[place]):
            return
        yield items[place]


def _columns(pairs: Iterable[tuple[bytes, bytes]]) -> tuple[list[bytes], list[bytes | None]]:
    keys: list[bytes] = []
    texts: list[bytes | None] = []
    for key, text in pairs:
        keys.append(key)
        texts.append(text)
    return keys, texts
