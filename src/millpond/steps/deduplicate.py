"""`deduplicate`: the first row of each id, per key, for ever or within a time.

payments.key_by("card").deduplicate("once", by="payment_id", within="1d")
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from millpond.clock import as_datetime
from millpond.codec import encode_key
from millpond.errors import InvalidUse
from millpond.log.segment import Change
from millpond.rows import Rows
from millpond.steps.base import Outputs, Step, Turn, each_row
from millpond.steps.state import cell_of
from millpond.steps.cells import Cells
from millpond.steps.values import is_absent

_SEEN = cell_of("m", "seen") + b":"  # and the id
_ONCE = cell_of("v", "seen")  # where the key itself is the id


class Deduplicate:
    """Per key a map of the ids seen, with the time of the row that passed; a row that is let go changes nothing."""

    def __init__(self, step: Step, turn: Turn) -> None:
        self._step, self._turn = step, turn
        self._by, self._within = step.options["by"], step.options["within"]
        self._cells = Cells(step.name, turn.view, turn.codec)

    def run(self, rows: Rows, side: int = 0) -> Rows:
        found, keys, cells = Outputs(rows), rows.keys, self._cells
        assert keys is not None

        def once(i: int, k: int, row: Any) -> None:
            cells.turn_to(keys.encoded[k])
            time = as_datetime(self._turn.now) if rows.times is None else rows.times[i]
            cell = _ONCE if self._by is None else _SEEN + encode_key(self._by(row))
            seen = cells.value(cell)
            if is_absent(seen) or not self._same(seen, time):
                cells.write(cell, time)
                cells.keep()
                found.add(i, row)

        each_row(self._step, self._turn, rows, once)
        return found.rows()

    def _same(self, seen: Any, time: Any) -> bool:
        if self._within is None:
            return True
        if isinstance(time, int) is not (type(self._within) is int) or type(seen) is not type(time):
            unit = "a whole number" if isinstance(time, int) else 'a duration such as "10m"'
            raise InvalidUse(
                f"deduplicate(within={self._within!r}): the stream's times are {type(time).__name__}s, "
                f"so within must be {unit}"
            )
        return bool(time - seen <= (self._within if isinstance(time, int) else _delta(self._within)))

    def end(self) -> None:
        return None

    def changes(self) -> list[Change]:
        return self._cells.changes()


def _delta(within: Any) -> timedelta:
    assert isinstance(within, timedelta)
    return within
