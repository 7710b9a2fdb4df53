"""`app.table`: the latest row of every key, for other streams to look up.

prices = app.table("prices", updates.key_by("sku"), deleted=lambda row: row["price"] is None)

Cells of a key:

    ""  the row
    @   its event time, where rows have one. Of a row that was deleted it stays until the watermark has
        passed it: a row that is older than the deletion must not bring the key back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from millpond.log.segment import Change
from millpond.rows.rows import Rows
from millpond.steps.base import Running, Step, StepContext, each_row

ROW, TIME = b"", b"@"


class Table(Running):
    """The latest row per key: the newest by event time where rows have one, and of those the last to arrive."""

    def __init__(self, step: Step, context: StepContext) -> None:
        self._step, self._context = step, context
        self._deleted: Callable[[Any], Any] | None = step.options["deleted"]
        self._rows: dict[bytes, bytes | None] = {}
        self._times: dict[bytes, bytes | None] = {}
        self._before: dict[bytes, bytes | None] = {}  # as they were when the batch began
        self._times_before: dict[bytes, bytes | None] = {}

    def run(self, rows: Rows, side: int = 0) -> Rows:
        keys = rows.keys
        assert keys is not None
        ticks = None if rows.times is None else rows.times.values.tolist()
        self._load(keys.encoded)
        if ticks is not None:
            self._load_times(keys.encoded)
        encode, deleted, held, times = self._context.codec.encode, self._deleted, self._rows, self._times

        def once(i: int, k: int, row: Any) -> None:
            key = keys.encoded[k]
            if ticks is not None and (known := times[key]) is not None and ticks[i] < int(known):
                return
            held[key] = None if deleted is not None and deleted(row) else encode(row)
            if ticks is not None:
                times[key] = b"%d" % ticks[i]

        each_row(self._step, self._context, rows, once)
        return Rows([], [])

    def read_rows(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The rows of some keys as they are now, encoded; for who looks them up in the same stage."""
        held = self._rows
        committed = iter(self._context.view.get_many(self._step.name, [key for key in keys if key not in held]))
        return [held[key] if key in held else next(committed) for key in keys]

    def end(self) -> None:
        """Forget the times of deletions that no row can be older than any more."""
        upto = self._context.time.expiry_watermark
        if upto is None:
            return
        over = {entry.key for entry in self._context.view.due(self._step.name, upto)} - self._times.keys()
        self._load(sorted(over))
        self._load_times(sorted(over))
        for key, time in self._times.items():
            if time is not None and int(time) < upto and (self._rows[key] is None or key in over):
                self._times[key] = None

    def changes(self) -> list[Change]:
        found: list[Change] = []
        for key in sorted(self._rows):
            row, time = self._rows[key], self._times.get(key)
            if row != self._before[key]:
                found.append(Change(key, ROW, row))
            moved = time != self._times_before.get(key)
            if moved or (time is not None and (row is None) is not (self._before[key] is None)):
                found.append(Change(key, TIME, time, int(time) + 1 if time is not None and row is None else None))
        return found

    def _load(self, keys: Sequence[bytes]) -> None:
        fresh = [key for key in keys if key not in self._rows]
        found = dict(zip(fresh, self._context.view.get_many(self._step.name, fresh), strict=True))
        self._rows.update(found)
        self._before.update(found)

    def _load_times(self, keys: Sequence[bytes]) -> None:
        fresh = [key for key in keys if key not in self._times]
        found = self._context.view.get_cells(self._step.name, fresh, [TIME] * len(fresh))
        self._times.update(zip(fresh, found, strict=True))
        self._times_before.update(zip(fresh, found, strict=True))
