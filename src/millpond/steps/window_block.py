"""Many windows of one size at once, as columns: what closes, in which order, as text, and what has changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from millpond.codec import Codec, decode_keys
from millpond.log.segment import Change
from millpond.steps.values import make_change

Array = np.ndarray[Any, Any]


class Known:
    """Distinct keys by number. Those that come later are added behind; all are put in order once, when it is needed."""

    def __init__(self, encoded: Sequence[bytes]) -> None:
        self.encoded = list(encoded)
        self._rank: Array | None = None

    def numbers(self, keys: Sequence[bytes]) -> Array:
        """The numbers of keys, new ones where they are not known yet."""
        place = dict(zip(self.encoded, range(len(self.encoded)), strict=True))
        found = np.fromiter((place.setdefault(key, len(place)) for key in keys), np.int64, len(keys))
        if len(place) > len(self.encoded):
            self.encoded, self._rank = list(place), None
        return found

    @property
    def rank(self) -> Array:
        """The place of each key among all, in the order of their bytes."""
        if self._rank is None:
            order = sorted(range(len(self.encoded)), key=self.encoded.__getitem__)
            self._rank = np.empty(len(order), np.int64)
            self._rank[order] = np.arange(len(order))
        return self._rank

    def of(self, numbers: Array) -> list[bytes]:
        encoded = self.encoded
        return [encoded[k] for k in numbers.tolist()]


@dataclass
class Block:
    """Windows as columns."""

    keys: Array  # of each: the number of its key
    windows: Array  # of each: its own number
    columns: list[list[Any]]  # its accumulators, a column for each aggregation
    existed: Array  # of each: whether it was there before this batch

    @classmethod
    def empty(cls, aggregations: int) -> Block:
        none = np.zeros(0, np.int64)
        return cls(none, none, [[] for _ in range(aggregations)], np.zeros(0, bool))

    def __len__(self) -> int:
        return len(self.keys)

    def pick(self, which: Array) -> Block:
        """Some of the windows, in this order."""
        places = which.tolist()
        columns = [[column[i] for i in places] for column in self.columns]
        return Block(self.keys[which], self.windows[which], columns, self.existed[which])

    def and_then(self, other: Block) -> Block:
        if not len(other):
            return self
        return Block(
            np.concatenate([self.keys, other.keys]),
            np.concatenate([self.windows, other.windows]),
            [[*one, *more] for one, more in zip(self.columns, other.columns, strict=True)],
            np.concatenate([self.existed, other.existed]),
        )

    def by_time(self, known: Known) -> Block:
        """The windows in the order in which they close; of those that close together, by key."""
        return self.pick(np.lexsort((known.rank[self.keys], self.windows)))


@dataclass
class Printer:
    """Writes final panes as text, as the codec would write the rows: {key, window_start, …, n, total}."""

    codec: Codec
    key_names: tuple[str, ...]
    names: tuple[str, ...]  # of the aggregations

    def __post_init__(self) -> None:
        all_names = [*self.key_names, "window_start", "window_end", "pane", "final", *self.names]
        is_plain = len(self.key_names) == 1 and len(set(all_names)) == len(all_names)
        self._can = is_plain and not any(name.startswith("$") for name in all_names)
        texts = [self.codec.encode(name).replace(b"%", b"%%") for name in self.names]
        head = self.codec.encode(self.key_names[0]).replace(b"%", b"%%") if self.key_names else b""
        self._pattern = b"{" + head + b":%b%b" + b"".join(b"," + text + b":%b" for text in texts) + b"}"

    def lines(
        self, keys: list[bytes], windows: list[int], extent: Callable[[int], tuple[Any, Any]], results: list[list[Any]]
    ) -> list[bytes] | None:
        """A text for each pane; nothing if they have to be written in another way."""
        if not self._can or any(b"{" in key for key in keys):  # a key that is tagged, or has a name for each part
            return None
        middles = {}
        for number in set(windows):
            start, end = map(self.codec.encode, extent(number))
            middles[number] = b',"window_start":%b,"window_end":%b,"pane":0,"final":true' % (start, end)
        columns = [self.codec.encode_many(column) for column in results]
        return list(map(self._pattern.__mod__, zip(keys, map(middles.__getitem__, windows), *columns, strict=True)))


def changes_of(
    known: Known,
    closed: Block,
    left: Block,
    values: Sequence[bytes],
    cell: Callable[[int], bytes],
    due: Callable[[int], int],
) -> list[Change]:
    """Windows that are gone, and windows with what they hold now, as changes in their order."""
    both = np.concatenate([closed.keys, left.keys])
    windows = np.concatenate([closed.windows, left.windows])
    order = np.lexsort((windows, known.rank[both]))
    numbers = windows[order].tolist()
    cells = {number: cell(number) for number in set(numbers)}
    texts: list[bytes | None] = [*[None] * len(closed), *values]
    times = {number: due(number) for number in cells}
    rows = order.tolist()
    gone = len(closed)
    return [
        make_change((key, cells[n], texts[i], None if i < gone else times[n], None))
        for key, n, i in zip(known.of(both[order]), numbers, rows, strict=True)
    ]


def as_rows(known: Known, block: Block) -> tuple[list[bytes], list[int], list[Any]]:
    """The distinct keys of some windows, for each window which of them, and the keys as the user knows them."""
    used, index = np.unique(block.keys, return_inverse=True)
    encoded = known.of(used)
    return encoded, index.tolist(), decode_keys(encoded)
