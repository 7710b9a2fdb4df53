"""A source of the rows of a list in the program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from millpond.errors import InvalidUse
from millpond.sources.base import Chunk, Limit, Split
from millpond.sources.ranges import CHUNK_ROWS, EXACT_BELOW, ONLY_PLACE, cut_range

LIST_SMALLEST_SPLIT = 10_000  # rows
LIST_LARGEST_SPLIT = 100_000


class RowSource:
    """Made by `millpond.sources.rows`; the position counts the rows that were read.

    The list is not copied, so rows that are appended later are read later; rows that were read must stay in it. A split
    carries its rows to the task, of any Python type: its detail is not plain JSON, unlike that of other sources. A
    pickled copy of the source has no rows and can only read.

    >>> from millpond.sources import rows
    >>> rows([{"n": 1}, {"n": 2}])
    rows(<2 rows>)
    """

    def __init__(self, rows: Iterable[Any]) -> None:
        if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
            raise InvalidUse(f"rows(list): expected a list of rows, got {type(rows).__name__}. Put the row in a list.")
        self._rows: list[Any] | None = rows if isinstance(rows, list) else list(rows)
        self._end: int | None = None  # of the rows to plan; None means all

    def plan(self, position: Mapping[str, Any], limit: Limit, now: float) -> Sequence[Split]:
        """Plan the next rows, at most `limit.rows`."""
        if self._rows is None:
            raise InvalidUse("rows(list): a pickled copy has no rows, so only the original can plan")
        start = int(position.get(ONLY_PLACE, 0))
        if start > len(self._rows):
            raise InvalidUse(
                f"rows(list): expected the {start} rows that were read before, but the list has "
                f"{len(self._rows)}. Give the same rows again, new ones after them, or clear the state."
            )
        return self._splits(start, len(self._rows) if self._end is None else self._end, limit)

    def as_of(self, now: float) -> RowSource:
        """Return the same source without the rows that are appended from now on."""
        if self._rows is None:
            raise InvalidUse("rows(list): a pickled copy has no rows, so only the original can plan")
        made = RowSource(self._rows)
        made._end = len(self._rows)
        return made

    def plan_to(self, position: Mapping[str, Any], end: Mapping[str, Any], limit: Limit, now: float) -> Sequence[Split]:
        """Plan the next rows before `end`."""
        self.plan(end, limit, now)  # raises if the list has fewer rows than were read
        return self._splits(int(position.get(ONLY_PLACE, 0)), int(end.get(ONLY_PLACE, 0)), limit)

    def _splits(self, start: int, end: int, limit: Limit) -> Sequence[Split]:
        assert self._rows is not None
        stop = min(end, start + max(1, limit.rows))
        smallest = LIST_SMALLEST_SPLIT if limit.rows >= EXACT_BELOW else limit.rows
        return [
            Split(
                ONLY_PLACE, first, last, weight=last - first, detail={"rows": self._rows[first:last]}, rows=last - first
            )
            for first, last in cut_range(start, stop, smallest=smallest, largest=LIST_LARGEST_SPLIT)
        ]

    def read(self, split: Split) -> Iterator[Chunk]:
        """Yield the rows that the split carries."""
        carried = split.detail["rows"]
        for i in range(0, len(carried), CHUNK_ROWS):
            part = carried[i : i + CHUNK_ROWS]
            first = split.start + i
            yield Chunk(part, first + len(part), partial(_describe_list_row, first))

    def __getstate__(self) -> dict[str, Any]:
        return {"_rows": None, "_end": None}

    def __repr__(self) -> str:
        return f"rows(<{len(self._rows)} rows>)" if self._rows is not None else "rows(<read only>)"


def _describe_list_row(first: int, i: int) -> str:
    return f"rows(list), row {first + i + 1}"
