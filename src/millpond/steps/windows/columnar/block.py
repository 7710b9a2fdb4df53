"""Many windows of one size at once, as columns: what closes, in which order, as text, and what has changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.codec import Codec, decode_keys
from millpond.log.segment import Change, text_column
from millpond.steps.state.single import make_change

Array = np.ndarray[Any, Any]

_SMALL = 1 << 63  # larger numbers are not for columns


class Known:
    """Keys by number. Those that come later are added behind; all are put in order once, when it is needed."""

    def __init__(self, encoded: Sequence[bytes]) -> None:
        self.encoded = list(encoded)
        self._column: pa.BinaryArray | None = None
        self._rank: Array | None = None

    def and_then(self, keys: Sequence[bytes]) -> Array:
        """The numbers of more keys; one that is known already gets another number, and the same rank."""
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

    @property
    def are_plain(self) -> bool:
        """Whether their bytes are just what the codec makes of them as values: no key has a tag, or a brace."""
        return not pc.any(pc.match_substring(self.column, "{")).as_py()

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

    def column(
        self, known: Known, closed: Block, extent: Callable[[int], tuple[Any, Any]], results: list[list[Any]]
    ) -> pa.StringArray | None:
        """A text for each pane; nothing if they have to be written in another way."""
        if not self._can or not known.are_plain:
            return None
        try:
            return self._column(known, closed, extent, results)
        except (pa.ArrowInvalid, pa.ArrowCapacityError):  # more than an array of strings can hold
            return None

    def _column(
        self, known: Known, closed: Block, extent: Callable[[int], tuple[Any, Any]], results: list[list[Any]]
    ) -> pa.StringArray:
        name_of, numbers = self.codec.encode, np.unique(closed.windows)
        windows = []
        for number in numbers.tolist():
            start, end = map(self.codec.encode, extent(number))
            windows.append(b',"window_start":%b,"window_end":%b,"pane":0,"final":true' % (start, end))
        parts: list[Any] = [
            b"{" + name_of(self.key_names[0]) + b":",
            known.column.take(pa.array(closed.keys)),
            pa.array(windows, pa.binary()).take(pa.array(np.searchsorted(numbers, closed.windows))),
        ]
        for name, column in zip(self.names, results, strict=True):
            parts += [b"," + name_of(name) + b":", self._texts(column)]
        columns = [pa.scalar(part, pa.binary()) if isinstance(part, bytes) else part for part in parts]
        return pc.binary_join_element_wise(*columns, pa.scalar(b"}"), pa.scalar(b"")).view(pa.string())

    def _texts(self, values: list[Any]) -> pa.BinaryArray:
        if set(map(type, values)) == {int} and min(values) > -_SMALL and max(values) < _SMALL:
            return pa.array(values, pa.int64()).cast(pa.string()).view(pa.binary())
        return text_column(self.codec.encode_lines(values)).view(pa.binary())


def changes_of(
    known: Known,
    closed: tuple[Array, Array],
    left: Block,
    values: Sequence[bytes],
    cell: Callable[[int], bytes],
    due: Callable[[int], int],
) -> list[Change]:
    """Windows that are gone, and windows with what they hold now, as changes in their order."""
    both = np.concatenate([closed[0], left.keys])
    windows = np.concatenate([closed[1], left.windows])
    gone = [None] * len(closed[0])
    order = np.lexsort((windows, known.rank[both]))
    numbers, places = windows[order].tolist(), order.tolist()
    cells = {number: cell(number) for number in set(numbers)}
    times = {number: due(number) for number in cells}
    texts: list[bytes | None] = [*gone, *values]
    dues: list[int | None] = [*gone, *map(times.__getitem__, left.windows.tolist())]
    columns = (
        known.of(both[order]),
        map(cells.__getitem__, numbers),
        map(texts.__getitem__, places),
        map(dues.__getitem__, places),
        repeat(None),
    )
    return list(map(make_change, zip(*columns, strict=False)))


def as_rows(known: Known, block: Block) -> tuple[list[bytes], list[int], list[Any]]:
    """The distinct keys of some windows, for each window which of them, and the keys as the user knows them."""
    place: dict[bytes, int] = {}
    index = [place.setdefault(key, len(place)) for key in known.of(block.keys)]
    encoded = list(place)
    return encoded, index, decode_keys(encoded)
