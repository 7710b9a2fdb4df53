"""Output rows of windows: one pane as a dict, and many final panes at once as dicts or as text.

`pane_row` defines what a pane looks like. `final_pane_rows` and `PaneTexts` make the same rows from columns; the tests
hold them equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.codec import Codec
from millpond.log.segment import text_column
from millpond.rows.number_columns import Array
from millpond.rows.rows import key_fields
from millpond.timing import Time, Unit, as_user

Bounds = tuple[Time | None, Time | None]  # a window's start and end as the user knows them

PANE_FIELDS = ("window_start", "window_end", "pane", "final")
RETRACTED = "retracted"  # only on rows that take an earlier pane back
_INT64_LIMIT = 1 << 63


def shown_bounds(start: int | None, end: int | None, unit: Unit | None) -> Bounds:
    """Return a window's start and end as the user knows them; of windows that go by no time, the unit is None.

    >>> shown_bounds(0, 1_000_000, "instant")[1].isoformat()
    '1970-01-01T00:00:01+00:00'
    """
    if unit != "instant":
        return start, end
    return None if start is None else as_user(start, unit), None if end is None else as_user(end, unit)


def pane_row(
    key_names: tuple[str, ...], key: Any, bounds: Bounds, number: int, is_final: bool, results: dict[str, Any]
) -> dict[str, Any]:
    """Return the output row of one pane: the key's fields, the window, the pane's number, and the aggregates by name.

    >>> pane_row(("who",), "ann", (0, 10), 0, True, {"n": 2})
    {'who': 'ann', 'window_start': 0, 'window_end': 10, 'pane': 0, 'final': True, 'n': 2}
    """
    return {
        **key_fields(key_names, key),
        "window_start": bounds[0],
        "window_end": bounds[1],
        "pane": number,
        "final": is_final,
        **results,
    }


def final_pane_rows(
    key_names: tuple[str, ...],
    names: tuple[str, ...],
    keys: Sequence[Any],
    bounds: Sequence[Bounds],
    results: Sequence[Sequence[Any]],
) -> list[dict[str, Any]]:
    """`pane_row` of many windows that close with their first pane; `results` has a column per aggregation.

    >>> final_pane_rows(("who",), ("n",), ["ann"], [(0, 10)], [[2]]) == [
    ...     pane_row(("who",), "ann", (0, 10), 0, True, {"n": 2})
    ... ]
    True
    """
    rows: list[dict[str, Any]] = _compiled_rows(key_names, names)(keys, bounds, *results)
    return rows


@cache
def _compiled_rows(key_names: tuple[str, ...], names: tuple[str, ...]) -> Callable[..., list[dict[str, Any]]]:
    # A dict display of constant names is about three times as fast as `pane_row`, which merges two dicts per row.
    values = [f"v{i}" for i in range(len(names))]
    key = [(name, f"k[{i}]" if len(key_names) > 1 else "k") for i, name in enumerate(key_names)]
    fields = [*key, *zip(PANE_FIELDS, ("w[0]", "w[1]", "0", "True"), strict=True), *zip(names, values, strict=True)]
    items = ", ".join(f"{name!r}: {value}" for name, value in fields)
    compiled: Callable[..., list[dict[str, Any]]] = eval(
        f"lambda *columns: [{{{items}}} for k, w, {', '.join(values)}, in zip(*columns)]"
    )
    return compiled


class PaneTexts:
    """Final panes as JSON text, byte for byte what the codec makes of `pane_row`."""

    def __init__(self, codec: Codec, key_names: tuple[str, ...], names: tuple[str, ...]) -> None:
        self._codec, self._key_names, self._names = codec, key_names, names
        all_names = [*key_names, *PANE_FIELDS, *names]
        is_plain = len(key_names) == 1 and len(set(all_names)) == len(all_names)
        self._can_write = is_plain and not any(name.startswith("$") for name in all_names)

    def write(
        self, keys: pa.BinaryArray, windows: Array, bounds: Callable[[int], Bounds], results: Sequence[list[Any]]
    ) -> pa.StringArray | None:
        """Return a text per pane, or None if these panes have to be encoded as objects.

        `keys` and `windows` hold each pane's encoded key and window number; `bounds` maps a window number to its times.
        """
        # The bytes of a key are its JSON text unless it has a tag, and only a key with a tag has a brace.
        if not self._can_write or pc.any(pc.match_substring(keys, "{")).as_py():
            return None
        try:
            return self._join(keys, windows, bounds, results)
        except (pa.ArrowInvalid, pa.ArrowCapacityError):  # more than an array of strings can hold
            return None

    def _join(
        self, keys: pa.BinaryArray, windows: Array, bounds: Callable[[int], Bounds], results: Sequence[list[Any]]
    ) -> pa.StringArray:
        encode, numbers = self._codec.encode, np.unique(windows)
        middles = []
        for number in numbers.tolist():
            start, end = map(encode, bounds(number))
            middles.append(b',"window_start":%b,"window_end":%b,"pane":0,"final":true' % (start, end))
        parts: list[Any] = [
            b"{" + encode(self._key_names[0]) + b":",
            keys,
            pa.array(middles, pa.binary()).take(pa.array(np.searchsorted(numbers, windows))),
        ]
        for name, column in zip(self._names, results, strict=True):
            parts += [b"," + encode(name) + b":", self._value_texts(column)]
        columns = [pa.scalar(part, pa.binary()) if isinstance(part, bytes) else part for part in parts]
        return pc.binary_join_element_wise(*columns, pa.scalar(b"}"), pa.scalar(b"")).view(pa.string())

    def _value_texts(self, values: list[Any]) -> pa.BinaryArray:
        if set(map(type, values)) == {int} and min(values) > -_INT64_LIMIT and max(values) < _INT64_LIMIT:
            return pa.array(values, pa.int64()).cast(pa.string()).view(pa.binary())
        return text_column(self._codec.encode_lines(values)).view(pa.binary())
