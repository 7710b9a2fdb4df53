"""`app.table` where rows live for a while only: what was not sent again in time is no longer in the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from millpond.log.segment import Change
from millpond.rows.rows import Rows
from millpond.steps.base import Running, Step, StepContext, each_row
from millpond.steps.state.expiring import Entries
from millpond.steps.state.single import Packed, is_absent
from millpond.steps.state.ttl import is_mortal
from millpond.steps.verbs.table import ROW, TIME, Table


class ExpiringTable(Running):
    """Every row that is the latest is a write, also of the same: it lets the key live on, where writes do.

    What is over by the end of the batch leaves before anyone looks into the table.
    """

    def __init__(self, step: Step, context: StepContext) -> None:
        self._step, self._context = step, context
        self._deleted: Callable[[Any], Any] | None = step.options["deleted"]
        self._cells = Entries(step, context)

    def run(self, rows: Rows, side: int = 0) -> Rows:
        keys, cells, times, deleted = rows.keys, self._cells, rows.times, self._deleted
        assert keys is not None
        ticks, unit = (None, None) if times is None else (times.values.tolist(), times.unit)

        def once(i: int, k: int, row: Any) -> None:
            cells.turn_to(keys.encoded[k])
            at = None if ticks is None else ticks[i]
            cells.now.move(at, unit)
            known = cells.value(TIME)
            if at is not None and not is_absent(known) and at < known:
                return
            try:
                if deleted is not None and deleted(row):
                    cells.drop(ROW)
                    if at is not None:
                        cells.write(TIME, at, due=at + 1)
                else:
                    cells.put(ROW, row)
                    if at is not None:
                        cells.put(TIME, at)
            except BaseException:
                cells.undo()
                raise
            cells.keep()

        each_row(self._step, self._context, rows, once)
        return Rows([], [])

    def read_rows(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The rows of some keys as they are now, encoded; for who looks them up in the same stage."""
        return [self._row_of(key) for key in keys]

    def _row_of(self, key: bytes) -> bytes | None:
        self._cells.turn_to(key)
        found = self._cells.read(ROW)
        if is_absent(found):
            return None
        return found.data if found.__class__ is Packed else self._context.codec.encode(found)

    def end(self) -> None:
        self._cells.expire()

    def changes(self) -> list[Change]:
        return self._cells.changes()


def begin(step: Step, context: StepContext) -> Table | ExpiringTable:
    """A table at work: the slower one only where rows have, or had until now, a time at which they are over."""
    return ExpiringTable(step, context) if is_mortal(step, context) else Table(step, context)
