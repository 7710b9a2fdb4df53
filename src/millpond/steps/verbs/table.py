"""`app.table`: the latest row of every key, for other streams to look up.

prices = app.table("prices", updates.key_by("sku"), deleted=lambda row: row["price"] is None)

Cells of a key:

    ""  the row
    @   its event time, where rows have one. After a deletion it stays until the watermark has passed it: a row that is
        older than the deletion must not bring the key back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from millpond.log.segment import Change
from millpond.rows.rows import Rows
from millpond.steps.base import Running, StepContext
from millpond.steps.kind import Step, StoredKey, call_for_rows
from millpond.steps.state.expiring import ExpiringCells
from millpond.steps.state.migration import SingleValueMigration
from millpond.steps.state.single import Packed, is_absent

ROW, TIME = b"", b"@"


@dataclass(frozen=True, kw_only=True)
class TableStep(Step):
    """The latest row per key: the newest by event time where rows have one, and of those the last to arrive."""

    kind: ClassVar[str] = "table"
    can_expire = True
    migration = SingleValueMigration

    everywhere: bool = False
    deleted: Callable[[Any], Any] | None = None  # whether a row removes its key

    @property
    def is_everywhere(self) -> bool:
        return self.everywhere

    def begin(self, context: StepContext) -> Running:
        return RunningTable(self, context)

    def begin_expiring(self, context: StepContext) -> Running:
        return RunningExpiringTable(self, context)

    @classmethod
    def is_shown(cls, cell: bytes) -> bool:
        return cell == ROW

    @classmethod
    def show(cls, stored: StoredKey, step: Self | None) -> Any:
        return stored.codec.decode(stored.cells[0][1])


class RunningTable(Running):
    """The started step where rows have no TTL."""

    def __init__(self, step: TableStep, context: StepContext) -> None:
        self._step, self._context = step, context
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
        encode, deleted, held, times = self._context.codec.encode, self._step.deleted, self._rows, self._times

        def once(i: int, k: int, row: Any) -> None:
            key = keys.encoded[k]
            if ticks is not None and (known := times[key]) is not None and ticks[i] < int(known):
                return
            held[key] = None if deleted is not None and deleted(row) else encode(row)
            if ticks is not None:
                times[key] = b"%d" % ticks[i]

        call_for_rows(self._step, self._context, rows, once)
        return Rows([], [])

    def read_rows(self, keys: Sequence[bytes]) -> list[bytes | None]:
        held = self._rows
        committed = iter(self._context.view.get_many(self._step.name, [key for key in keys if key not in held]))
        return [held[key] if key in held else next(committed) for key in keys]

    def end(self) -> None:
        """Drop the times of deletions that no row can be older than any more."""
        until = self._context.time.expiry_watermark
        if until is None:
            return
        over = {entry.key for entry in self._context.view.due(self._step.name, until)} - self._times.keys()
        self._load(sorted(over))
        self._load_times(sorted(over))
        for key, time in self._times.items():
            if time is not None and int(time) < until and (self._rows[key] is None or key in over):
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


class RunningExpiringTable(Running):
    """The started step where rows have a TTL. Each latest row is a write, also of the same row, and refreshes it.

    Rows that have expired by the end of the batch leave before any lookup reads the table.
    """

    def __init__(self, step: TableStep, context: StepContext) -> None:
        self._step, self._context = step, context
        self._cells = ExpiringCells(step, context)

    def run(self, rows: Rows, side: int = 0) -> Rows:
        keys, cells, times, deleted = rows.keys, self._cells, rows.times, self._step.deleted
        assert keys is not None
        ticks, unit = (None, None) if times is None else (times.values.tolist(), times.unit)

        def once(i: int, k: int, row: Any) -> None:
            cells.select(keys.encoded[k])
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
                cells.undo_row()
                raise
            cells.commit_row()

        call_for_rows(self._step, self._context, rows, once)
        return Rows([], [])

    def read_rows(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._row_of(key) for key in keys]

    def _row_of(self, key: bytes) -> bytes | None:
        self._cells.select(key)
        found = self._cells.read(ROW)
        if is_absent(found):
            return None
        return found.data if found.__class__ is Packed else self._context.codec.encode(found)

    def end(self) -> None:
        self._cells.expire()

    def changes(self) -> list[Change]:
        return self._cells.changes()
