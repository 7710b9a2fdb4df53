"""Lazy migration: a step over state of several versions reads and writes only the newest.

The step itself does not know. It gets a view that shows every key as if all state had been migrated; the changes that
it makes are then completed by those of the migration.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from millpond.log.segment import Change
from millpond.replica import Entry, View
from millpond.rows.rows import Rows
from millpond.steps.base import Running, StepContext
from millpond.steps.state.migration import MARK, Migration

Begin = Callable[[StepContext], Running]
UNMARKED = "unmarked"  # in the detail that a batch gets of a step: the version of state that has no mark


class UpgradedView:
    """A `View` around another one, in which a step's state is migrated. A key is migrated when it is first read."""

    def __init__(self, view: View, step: str, migration: Migration) -> None:
        self._view, self._step, self._migration = view, step, migration
        self.position, self.record, self.timed_steps = view.position, view.record, view.timed_steps
        self._migrated: dict[bytes, dict[bytes, Entry] | None] = {}  # key → its cells; None: it is read as it is
        self._newest: set[bytes] = set()  # keys that are marked as of the newest version

    def migrate_keys(self, keys: Sequence[bytes]) -> None:
        """Migrate those of these keys that need it; cheaper than one by one."""
        fresh = [key for key in keys if key not in self._migrated]
        marks = self._view.get_cells(self._step, fresh, [MARK] * len(fresh))
        is_single = self._migration.is_single_value
        values = self._view.get_many(self._step, fresh) if is_single else [b""] * len(fresh)
        for key, mark, value in zip(fresh, marks, values, strict=True):
            if self._migration.version_of(mark) == self._migration.version:
                self._newest.add(key)
                self._migrated[key] = None
            elif value is None:
                self._migrated[key] = None
            else:
                self._migrate_key(key, list(self._view.entries(self._step, key)))

    def _migrate_key(self, key: bytes, stored: list[Entry]) -> dict[bytes, Entry] | None:
        """Migrate a key whose cells these are, unless it is done or not needed."""
        if key in self._migrated:
            return self._migrated[key]
        mark = next((entry.value for entry in stored if entry.cell == MARK), None)
        if self._migration.version_of(mark) == self._migration.version:
            self._newest.add(key)
            self._migrated[key] = None
        elif all(entry.cell == MARK for entry in stored):
            self._migrated[key] = None
        else:
            migrated = self._migration([Change(*entry) for entry in stored])
            self._migrated[key] = {c.cell: Entry(c.key, c.cell, c.value or b"null", c.due, c.wall) for c in migrated}
        return self._migrated[key]

    def _cells_of(self, key: bytes) -> dict[bytes, Entry] | None:
        """Return the cells of a key after its migration; None if it needs none."""
        self.migrate_keys([key])
        return self._migrated[key]

    # --- reading ---

    def get(self, step: str, key: bytes, cell: bytes = b"") -> bytes | None:
        found = self.entry(step, key, cell)
        return None if found is None else found.value

    def get_many(self, step: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return self.get_cells(step, keys, [b""] * len(keys))

    def get_cells(self, step: str, keys: Sequence[bytes], cells: Sequence[bytes]) -> list[bytes | None]:
        self.migrate_keys(keys)
        found = self._view.get_cells(step, keys, cells)
        for i, (key, cell) in enumerate(zip(keys, cells, strict=True)):
            own = self._migrated[key]
            if own is not None:
                found[i] = own[cell].value if cell in own else None
        return found

    def entry(self, step: str, key: bytes, cell: bytes = b"") -> Entry | None:
        own = self._cells_of(key)
        return self._view.entry(step, key, cell) if own is None else own.get(cell)

    def entries(self, step: str, key: bytes | None = None, cell: bytes = b"") -> Iterator[Entry]:
        for each, stored in groupby(self._view.entries(step, key), lambda entry: entry.key):
            found = list(stored)
            own = self._migrate_key(each, found)
            for entry in found if own is None else [own[name] for name in sorted(own)]:
                if entry.cell != MARK and entry.cell.startswith(cell):
                    yield entry

    def scan(self, step: str, key: bytes | None = None, cell: bytes = b"") -> Iterator[tuple[bytes, bytes, bytes]]:
        return ((entry.key, entry.cell, entry.value) for entry in self.entries(step, key, cell))

    def scan_keys(self, step: str, beginning: bytes) -> Iterator[tuple[bytes, bytes]]:
        keys = [key for key, _ in self._view.scan_keys(step, beginning)]
        for key, value in zip(keys, self.get_many(step, keys), strict=True):
            if value is not None:
                yield key, value

    def range(self, step: str, key: bytes, first: bytes, last: bytes) -> Iterator[Entry]:
        return (entry for entry in self.entries(step, key) if first <= entry.cell <= last)

    def last(self, step: str, key: bytes, first: bytes, last: bytes) -> Entry | None:
        return max(self.range(step, key, first, last), key=lambda entry: entry.cell, default=None)

    def latest(self, step: str) -> int | None:
        return self._view.latest(step)  # a migration gives no cell another time

    def due(
        self, step: str, until: int, *, wall: bool = False, after: int | None = None, exclude: Container[bytes] = ()
    ) -> Iterator[Entry]:
        for entry in self._view.due(step, until, wall=wall, after=after, exclude=exclude):
            own = self._cells_of(entry.key)
            found = entry if own is None else own.get(entry.cell)
            if found is not None and found[3:] == entry[3:]:  # a migration gives no cell another time
                yield found

    def all_due(
        self, step: str, until: int, *, exclude: Container[bytes] = ()
    ) -> tuple[list[bytes], list[bytes], list[bytes]]:
        found = list(self.due(step, until, exclude=exclude))
        return [e.key for e in found], [e.cell for e in found], [e.value for e in found]

    def count(self, step: str) -> int:
        return self._view.count(step)

    # --- writing ---

    def changes(self, own: Sequence[Change]) -> list[Change]:
        """Return everything to write: the step's own changes, the migrated keys, and the marks."""
        mine = {key: list(changes) for key, changes in groupby(own, lambda change: change.key)}
        self.migrate_keys(list(mine))
        migrated = {key for key, cells in self._migrated.items() if cells is not None}
        return [change for key in sorted(mine.keys() | migrated) for change in self._changes_of(key, mine.get(key, []))]

    def _changes_of(self, key: bytes, own: list[Change]) -> list[Change]:
        """Return what to write of one key, given the step's own changes of it."""
        if key in self._newest and all(change.value is not None for change in own):
            return own
        stored = {entry.cell: Change(*entry) for entry in self._view.entries(self._step, key)}
        mark, cells = stored.pop(MARK, None), self._migrated[key]
        after = dict(stored) if cells is None else {cell: Change(*entry) for cell, entry in cells.items()}
        for change in own:
            if change.value is None:
                after.pop(change.cell, None)
            else:
                after[change.cell] = change
        changes = [change for cell, change in after.items() if stored.get(cell) != change]
        changes += [Change(key, cell, None) for cell in stored if cell not in after]
        version = b"%d" % self._migration.version
        if after and (mark is None or mark.value != version):
            changes.append(Change(key, MARK, version))
        elif not after and mark is not None:  # a key without state has no version
            changes.append(Change(key, MARK, None))
        return sorted(changes, key=lambda change: change.cell)


class RunningOverOldState(Running):
    """A started step over state that is migrated lazily."""

    def __init__(self, view: UpgradedView, begin: Begin, context: StepContext) -> None:
        self._view, self._inner = view, begin(replace(context, view=view))

    def run(self, rows: Rows, side: int = 0) -> Rows | Iterator[Rows]:
        assert rows.keys is not None
        self._view.migrate_keys(rows.keys.encoded)  # not under a row's on_error: failing ends the batch
        return self._inner.run(rows, side)

    def read_rows(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._inner.read_rows(keys)

    def end(self) -> Rows | list[Rows] | None:
        return self._inner.end()

    def changes(self) -> list[Change]:
        return self._view.changes(self._inner.changes())

    def take_side_rows(self) -> list[Rows]:
        return self._inner.take_side_rows()
