"""`deduplicate`: the first row of each id, per key, for ever or within a time.

payments.key_by("card").deduplicate("once", by="payment_id", within="1d")
"""

from __future__ import annotations

from typing import Any

from millpond.clock import as_datetime
from millpond.codec import encode_key
from millpond.errors import InvalidUse
from millpond.log.segment import Change
from millpond.rows import Rows
from millpond.steps.base import Outputs, Step, Turn, each_row
from millpond.steps.cells import Cells
from millpond.steps.state import cell_of
from millpond.steps.values import is_absent
from millpond.timing import Time, as_time, span, ticks, unit_of

_SEEN = cell_of("m", "seen") + b":"  # and the id
_ONCE = cell_of("v", "seen")  # where the key itself is the id


class Deduplicate:
    """Per key a map of the ids seen, with the time of the row that passed; a row that is let go changes nothing.

    An id whose time is over leaves, by the watermark where rows have a time and else by the clock.
    """

    def __init__(self, step: Step, turn: Turn) -> None:
        self._step, self._turn = step, turn
        self._by, self._within = step.options["by"], step.options["within"]
        self._cells = Cells(step.name, turn.view, turn.codec)
        if turn.previous is not None and turn.previous.get("within") != step.detail.get("within"):
            self._adopt()

    def run(self, rows: Rows, side: int = 0) -> Rows:
        found, keys, cells = Outputs(rows), rows.keys, self._cells
        assert keys is not None
        is_timed = rows.times is not None

        def once(i: int, k: int, row: Any) -> None:
            cells.turn_to(keys.encoded[k])
            time = as_datetime(self._turn.now) if rows.times is None else rows.times[i]
            cell = _ONCE if self._by is None else _SEEN + encode_key(self._by(row))
            seen = cells.value(cell)
            if is_absent(seen) or not self._same(seen, time, is_timed):
                over = self._over(time)
                cells.write(cell, time, *((over, None) if is_timed else (None, over)))
                cells.keep()
                found.add(i, row)

        each_row(self._step, self._turn, rows, once)
        return found.rows()

    def _same(self, seen: Time, time: Time, is_timed: bool) -> bool:
        over = self._over(seen)
        if over is None:
            return True
        if unit_of(seen) != unit_of(time):
            raise InvalidUse(
                f"deduplicate({self._step.name!r}): the stream's times were {unit_of(seen)}s and are "
                f"{unit_of(time)}s now; give the step another name"
            )
        began = self._turn.began if is_timed else None
        return ticks(time) < over and (began is None or began < over)

    def _over(self, seen: Time) -> int | None:
        """From when on an id that was seen then is new again."""
        if self._within is None:
            return None
        return ticks(seen) + span(self._within, unit_of(seen), f"deduplicate({self._step.name!r}, within)") + 1

    def _adopt(self) -> None:
        """Ids that were seen under another `within`: they leave by the new one."""
        for entry in self._turn.view.entries(self._step.name):
            over = self._over(as_time(self._turn.codec.decode(entry.value)))
            times = (over, None) if entry.due is not None or self._turn.unit is not None else (None, over)
            self._cells.turn_to(entry.key)
            self._cells.retime(entry.cell, *times)
            self._cells.keep()

    def end(self) -> None:
        """Forget the ids that are over."""
        for wall, upto in ((False, self._turn.expiry), (True, self._turn.wall)):
            for _, key, cell in () if upto is None else self._cells.all_due(upto, wall=wall):
                self._cells.turn_to(key)
                self._cells.drop(cell)
                self._cells.keep()

    def changes(self) -> list[Change]:
        return self._cells.changes()
