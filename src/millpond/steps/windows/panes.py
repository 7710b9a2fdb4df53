"""Output rows of windows: one pane as a dict, and many final panes at once as dicts or as columns.

`pane_row` defines what a pane looks like. `final_pane_rows` and `final_pane_columns` make the same rows; the tests hold
them equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pyarrow as pa

from millpond.rows.number_columns import Array
from millpond.rows.rows import key_fields
from millpond.rows.typed_columns import Columns, TypedColumn, columns_of_arrays, typed_column
from millpond.timing import Time, Unit, as_user

Bounds = tuple[Time | None, Time | None]  # a window's start and end as the user knows them

PANE_FIELDS = ("window_start", "window_end", "pane", "final")
RETRACTED = "retracted"  # only on rows that take an earlier pane back


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


def final_pane_columns(
    key_names: tuple[str, ...],
    names: tuple[str, ...],
    keys: tuple[Sequence[Any], Array],
    bounds: tuple[Sequence[Bounds], Array],
    results: Sequence[Sequence[Any]],
) -> Columns | None:
    """The same rows as columns; None if they are not uniform, a name occurs twice, or they are too much text.

    `keys` and `bounds` are distinct ones, with their places in the rows.

    >>> import numpy as np
    >>> keys, bounds = (["ann"], np.array([0])), ([(0, 10)], np.array([0]))
    >>> final_pane_columns(("who",), ("n",), keys, bounds, [[2]]).table.to_pylist()
    [{'who': 'ann', 'window_start': 0, 'window_end': 10, 'pane': 0, 'final': True, 'n': 2}]
    """
    all_names = (*key_names, *PANE_FIELDS, *names)
    if len(set(all_names)) < len(all_names):
        return None
    key_parts = [keys[0]] if len(key_names) == 1 else list(zip(*keys[0], strict=True))
    try:
        found = [_repeat_values(part, keys[1]) for part in key_parts]
        found += [_repeat_values(times, bounds[1]) for times in zip(*bounds[0], strict=True)]
        found += [TypedColumn("int", pa.repeat(0, len(keys[1]))), TypedColumn("bool", pa.repeat(True, len(keys[1])))]
        found += [typed_column(column) for column in results]
    except (pa.ArrowInvalid, pa.ArrowCapacityError):  # more than an array of strings can hold
        return None
    columns = [column for column in found if column is not None]
    return columns_of_arrays(all_names, columns) if len(columns) == len(found) else None


def _repeat_values(values: Sequence[Any], places: Array) -> TypedColumn | None:
    """Return a column that has these values at these places of theirs."""
    column = typed_column(values)
    return None if column is None else TypedColumn(column.kind, column.values.take(pa.array(places)))
