"""The open windows of a key as output rows, for the view of state from outside: with the program or without it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from millpond.aggregations import Aggregation, aggregation_of
from millpond.codec import Codec
from millpond.steps.windows.cell_names import GLOBAL, extent_of, time_of
from millpond.steps.windows.panes import pane_row, shown_bounds
from millpond.steps.windows.row_windows import Accumulators, OpenWindow
from millpond.steps.windows.sliding import merge_windows
from millpond.timing import Unit

Cells = list[tuple[bytes, bytes]]


class _KeyCells:
    """The cells of one key with the part of a view's interface that accumulators need."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells

    def scan(self, step: str, key: bytes | None = None, cell: bytes = b"") -> Iterator[tuple[bytes, bytes, bytes]]:
        return ((b"", name, value) for name, value in self._cells if name.startswith(cell))


def open_window_rows(
    key: Any, cells: Cells, codec: Codec, detail: dict[str, Any], aggregations: dict[str, Aggregation] | None
) -> list[Any]:
    """Return the open windows of a key as the rows that would go out now, oldest first.

    `detail` is the step's entry in the ledger; `aggregations` are the program's, None if there is no program.
    """
    if aggregations is None:
        aggregations = {name: aggregation_of(kind) for name, kind in detail["aggregations"].items()}
    view: Any = _KeyCells(cells)
    accumulators = Accumulators("", aggregations, view, codec, 0, merging=True)
    found: list[tuple[OpenWindow, Unit]] = []
    parts: list[tuple[OpenWindow, Unit]] = []
    for cell, data in cells:
        if cell[:2] in (b"w:", b"s:"):
            start, end, unit = extent_of(cell)
            found.append((accumulators.decode(b"", cell, start, end, data), unit))
        elif cell[:2] == GLOBAL:
            found.append((accumulators.decode(b"", cell, None, None, data), "number"))
        elif cell[:2] == b"t:":
            at, unit = time_of(cell[2:])
            parts.append((accumulators.decode(b"", cell, at - detail["size"], at, data), unit))
    for part, unit in parts:
        if not part.is_emitted:  # else only later windows need it
            whole: OpenWindow | None = None
            for other, _ in parts:
                if _part_end(part) - detail["size"] <= _part_end(other) <= _part_end(part):
                    whole = merge_windows(accumulators, whole, other)
            if whole is not None:
                whole.start, whole.end = part.start, part.end
                found.append((whole, unit))
    found.sort(key=lambda pair: (pair[0].start or 0, pair[0].end or 0))
    names, is_timed = tuple(detail["keys"]), detail["windows"] in ("hopping", "session", "sliding")
    return [
        pane_row(
            names, key, shown_bounds(w.start, w.end, unit if is_timed else None), w.pane, False, accumulators.results(w)
        )
        for w, unit in found
    ]


def _part_end(part: OpenWindow) -> int:
    assert part.end is not None
    return part.end
