"""The pairs that a join has found in a batch, merged into output rows in an order that the sides do not change.

A pair has the order of the later of its rows; what no row caused, such as an unmatched row, comes at the end.
"""

from __future__ import annotations

from typing import Any

from millpond.codec import decode_key
from millpond.rows.rows import ENDING, KeyedRowBuilder, Rows
from millpond.steps.base import StepContext
from millpond.steps.failure import FAULTS, FailedRow, own_copy
from millpond.steps.joins.buffer import JoinRow
from millpond.steps.joins.join_step import JoinStep
from millpond.steps.joins.merge import merge_fields
from millpond.timing import Unit

_Pair = tuple[int, int, bytes, bytes, bytes, JoinRow | None, JoinRow | None]  # sorted by the first five


class Pairs:
    """Collects pairs, and merges them when all are there.

    A pair whose merge raises is handled by the step's `on_error` with both rows, and only this pair is lost: both rows
    count as matched, so neither is emitted as unmatched, and each may still match others. So what a join stores
    does not depend on the merge.
    """

    def __init__(self, step: JoinStep, context: StepContext) -> None:
        self._step, self._context = step, context
        self._merge = step.merge or merge_fields
        self._pairs: list[_Pair] = []

    def add(self, left: JoinRow | None, right: JoinRow | None, place: int) -> None:
        """Add a pair, or a row without a partner, with the order of the input row that caused it."""
        self._add(left, right, place, 0)

    def add_ending(self, left: JoinRow | None, right: JoinRow | None, due: int) -> None:
        """Add a pair that the end of the batch caused: after those of rows, in order of these watermarks."""
        self._add(left, right, ENDING, due)

    def _add(self, left: JoinRow | None, right: JoinRow | None, place: int, due: int) -> None:
        one = left or right
        assert one is not None
        cells = (b"" if left is None else left.cell, b"" if right is None else right.cell)
        self._pairs.append((place, due, one.key, *cells, left, right))

    def rows(self, unit: Unit | None) -> Rows:
        """Return the merged pairs as keyed rows."""
        made, names = KeyedRowBuilder(unit), dict[bytes, Any]()
        self._pairs.sort(key=lambda pair: pair[:5])
        for place, _, key, _, _, left, right in self._pairs:
            if key not in names:
                names[key] = decode_key(key)
            at = max(row.at for row in (left, right) if row is not None)

            def once(
                left: JoinRow | None = left,
                right: JoinRow | None = right,
                key: bytes = key,
                at: int = at,
                place: int = place,
            ) -> None:
                made.add(key, names[key], self._merge(_copy(left), _copy(right)), at, place)

            try:
                once()
            except FAULTS as error:
                self._context.failures.handle(
                    self._step.on_error,
                    self._step.name,
                    error,
                    FailedRow(
                        key=names[key], row={"left": _copy(left), "right": _copy(right)}, order=place, again=once
                    ),
                )
        return made.rows()


def _copy(row: JoinRow | None) -> Any:
    # A row is in many pairs and in the state, and the user's function may change it.
    return None if row is None else own_copy(row.row)
