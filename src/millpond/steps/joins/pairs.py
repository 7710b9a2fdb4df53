"""What a join has found in a batch, made into rows: merged, in an order that does not depend on the sides'.

A pair stands where the later of its rows came; what no row caused, as an unmatched row, at the end.
"""

from __future__ import annotations

from typing import Any

from millpond.codec import decode_key
from millpond.rows.rows import ENDING, Rows
from millpond.steps.base import KeyedRowBuilder, StepContext
from millpond.steps.failure import FAULTS, FailedRow, own_copy
from millpond.steps.joins.buffer import Row
from millpond.steps.joins.join_step import JoinStep
from millpond.steps.joins.merge import merged
from millpond.timing import Unit

Found = tuple[int, int, bytes, bytes, bytes, Row | None, Row | None]


class Pairs:
    """Collects what was found, and merges it when all of it is there.

    A pair whose merge raises meets the step's `on_error` with both rows, and is all that is lost: that the two
    have met stays true, so neither comes out as unmatched, and each may still meet others. So what a join keeps
    does not depend on what merge does.
    """

    def __init__(self, step: JoinStep, context: StepContext) -> None:
        self._step, self._context = step, context
        self._merge = step.merge or merged
        self._found: list[Found] = []

    def add(self, left: Row | None, right: Row | None, place: int) -> None:
        """A pair, or a row without a partner, that the input row at this place has caused."""
        self._add(left, right, place, 0)

    def add_ending(self, left: Row | None, right: Row | None, due: int) -> None:
        """The same, caused by the end of the batch: after all that rows have caused, in order of these times."""
        self._add(left, right, ENDING, due)

    def _add(self, left: Row | None, right: Row | None, place: int, due: int) -> None:
        one = left or right
        assert one is not None
        cells = (b"" if left is None else left.cell, b"" if right is None else right.cell)
        self._found.append((place, due, one.key, *cells, left, right))

    def rows(self, unit: Unit | None) -> Rows:
        made, names = KeyedRowBuilder(unit), dict[bytes, Any]()
        self._found.sort(key=lambda found: found[:5])
        for place, _, key, _, _, left, right in self._found:
            if key not in names:
                names[key] = decode_key(key)
            at = max(row.at for row in (left, right) if row is not None)

            def once(
                left: Row | None = left, right: Row | None = right, key: bytes = key, at: int = at, place: int = place
            ) -> None:
                made.add(key, names[key], self._merge(_own(left), _own(right)), at, place)

            try:
                once()
            except FAULTS as error:
                self._context.failures.handle(
                    self._step.on_error,
                    self._step.name,
                    error,
                    FailedRow(key=names[key], row={"left": _own(left), "right": _own(right)}, order=place, again=once),
                )
        return made.rows()


def _own(row: Row | None) -> Any:
    # A row is in many pairs and in the state: whoever gets it may do with it as they please.
    return None if row is None else own_copy(row.row)
