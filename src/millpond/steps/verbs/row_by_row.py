"""What `map`, `filter`, `flat_map`, `inspect` and `with_time` share: a loop that calls a function for every row."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from millpond.rows.rows import Rows
from millpond.steps.failure import FAULTS, is_needed_again, own_copy
from millpond.steps.operator import Operator, OperatorContext


class RowOutput:
    """The output rows of some input rows, and the input row of each."""

    __slots__ = ("_rows", "data", "places", "times")

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.data: list[Any] = []
        self.places: list[int] = []
        self.times: list[Any] = []  # that `with_time` has given

    def rows(self) -> Rows:
        """Return the output of a verb that makes at most one row of each, with the input's order, keys and times."""
        return self._rows.with_data(self.data) if len(self.places) == len(self._rows) else self.picked_rows()

    def picked_rows(self) -> Rows:
        """Return the output of a verb that makes any number of rows of each."""
        rows, places = self._rows, self.places
        return Rows(
            self.data,
            np.asarray(rows.order, dtype=np.int64)[np.asarray(places, dtype=np.int64)],
            times=None if rows.times is None else rows.times.pick(places),
            keys=None if rows.keys is None else rows.keys.pick(places),
        )


class RowOperator(Operator):
    """A verb that calls the function `f` for each row by itself."""

    f: Callable[[Any], Any]

    def start(self, context: OperatorContext) -> RowLoop:
        return RowLoop(self, context)

    def collect(self, output: RowOutput, i: int, row: Any, result: Any) -> None:
        """Add the outputs of row `i`, given what the function returned for it.

        It must change nothing if it raises: the row is then given to the function again, or fails.
        """
        raise NotImplementedError

    def finish(self, output: RowOutput, context: OperatorContext) -> Rows:
        """Return the rows of the output, once all input rows have been collected."""
        return output.rows()


class RowLoop:
    """A row operator, started in one task."""

    def __init__(self, operator: RowOperator, context: OperatorContext) -> None:
        self._operator, self._context = operator, context
        self._copies = is_needed_again(context.on_error)  # a row that fails is needed as it was

    def run(self, rows: Rows, side: int = 0) -> Rows:
        rows = rows.as_objects()
        output = RowOutput(rows)
        f, collect, copies = self._operator.f, self._operator.collect, self._copies
        for i, row in enumerate(rows.data):
            try:
                own = own_copy(row) if copies else row
                collect(output, i, own, f(own))
            except FAULTS as error:
                self._context.fail(rows, i, row, error, partial(self._retry, output, i, row))
        return self._operator.finish(output, self._context)

    def _retry(self, output: RowOutput, i: int, row: Any) -> None:
        own = own_copy(row)
        self._operator.collect(output, i, own, self._operator.f(own))
