"""The open windows of a key as output rows, read from the cells of its state, with the program or without it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from millpond import aggregations as known
from millpond.aggregations import Aggregation
from millpond.codec import Codec
from millpond.steps.verbs.aggregate import key_fields
from millpond.steps.windows.cell_names import GLOBAL, extent_of, time_of
from millpond.steps.windows.open_window import Accumulators, Window
from millpond.steps.windows.sliding import together
from millpond.timing import Unit, as_user

Cells = list[tuple[bytes, bytes]]


class _OfOneKey:
    """The cells of one key, read as a step reads a view."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells

    def scan(self, step: str, key: bytes | None = None, cell: bytes = b"") -> Iterator[tuple[bytes, bytes, bytes]]:
        return ((b"", name, value) for name, value in self._cells if name.startswith(cell))


def open_windows(
    key: Any, cells: Cells, codec: Codec, detail: dict[str, Any], aggregations: dict[str, Aggregation] | None
) -> list[Any]:
    """The open windows that the cells of a key hold, as the rows that would go out now, oldest first."""
    of = {name: _of_kind(kind) for name, kind in detail["aggregations"].items()}
    if aggregations is not None:
        of = aggregations
    view: Any = _OfOneKey(cells)
    accumulators = Accumulators("", of, view, codec, 0, merging=True)
    found: list[tuple[Window, Unit]] = []
    parts: list[tuple[Window, Unit]] = []
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
        if not part.closed:  # else it is there for the windows that come after it
            whole: Window | None = None
            for other, _ in parts:
                if _at(part) - detail["size"] <= _at(other) <= _at(part):
                    whole = together(accumulators, whole, other)
            if whole is not None:
                whole.start, whole.end = part.start, part.end
                found.append((whole, unit))
    found.sort(key=lambda pair: (pair[0].start or 0, pair[0].end or 0))
    names, is_timed = tuple(detail["keys"]), detail["windows"] in ("hopping", "session", "sliding")
    return [
        {
            **key_fields(names, key),
            "window_start": _shown(w.start, unit, is_timed),
            "window_end": _shown(w.end, unit, is_timed),
            "pane": w.pane,
            "final": False,
            **accumulators.results(w),
        }
        for w, unit in found
    ]


def _at(part: Window) -> int:
    assert part.end is not None
    return part.end


def _shown(at: int | None, unit: Unit, is_timed: bool) -> Any:
    return at if at is None or not is_timed else as_user(at, unit)


def _of_kind(kind: str) -> Aggregation:
    """An aggregation that can read accumulators of a kind, where the one that made them is not at hand."""
    if kind == known.CUSTOM:
        return known.aggregation(initial=list, update=_never, merge=lambda a, b: [a, b])
    if kind == "top":
        return known.top(1 << 30)
    if kind == "quantile":
        return known.quantile(0.5)
    made: Aggregation = getattr(known, kind)()
    return made


def _never(acc: Any, row: Any) -> Any:
    raise AssertionError("a view adds no rows")
