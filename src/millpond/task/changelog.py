"""The rows of `app.changes`: the whole value of each key that a batch has changed, or that readers do not have yet."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, islice
from typing import Any

from millpond.codec import Codec, NotEncodable, decode_key, partition_of
from millpond.errors import Corrupt
from millpond.log import segment
from millpond.log.rewrite import read_living_cells
from millpond.log.segment import Change, SingleCellChanges
from millpond.messages import Backlog
from millpond.replica import Entry, View
from millpond.rows.rows import ENDING, Rows
from millpond.steps.kind import Step, StoredKey
from millpond.steps.state.migration import MARK
from millpond.steps.state.shown import shown_cells
from millpond.storage import Storage
from millpond.timing import MAX_TICKS

log = logging.getLogger("millpond")

ROWS_AT_ONCE = 10_000  # that are made and sent on at a time: a backlog may be all of the state
NOTHING_EXPIRED = -MAX_TICKS  # as the time of the clock

SortedCells = list[tuple[bytes, bytes]]  # names and values, sorted
GivenState = dict[bytes, SortedCells | None]  # key → its cells; None if readers have been given different ones
ReadGiven = Callable[[Step, Backlog], GivenState]


@dataclass(frozen=True)
class Changelog:
    """The changes that a batch makes to the state of a step in one partition, as rows."""

    step: Step
    changes: Sequence[Change]  # sorted by key and cell
    view: View  # the state as the batch began
    codec: Codec
    batch: int
    now: float
    oldest: int | None = None  # the version of state that is still to be migrated, if there is any

    def rows(self, backlog: Backlog | None, read_given: ReadGiven) -> Iterator[Rows]:
        """Yield the rows of one stream of changes. With a backlog they make up for what its readers do not have."""
        values = self._values_changed() if backlog is None else self._values_since(backlog, read_given)
        while data := [
            {"key": decode_key(key), "value": value, "batch": self.batch} for key, value in islice(values, ROWS_AT_ONCE)
        ]:
            yield Rows(data, [ENDING] * len(data))

    # --- the changes of the batch ---

    def _values_changed(self) -> Iterator[tuple[bytes, Any]]:
        """Yield each key whose value the batch has changed, with its value now; None if it has none."""
        for key, before, after, is_migrated in self._cells_changed():
            if before == after:
                continue
            value = self._show(key, after)
            may_be_equal = self.step.shows_results and before and after and not is_migrated
            if not may_be_equal or not _are_equal(self.codec, self._show(key, before), value):
                yield key, value

    def _cells_changed(self) -> Iterator[tuple[bytes, SortedCells, SortedCells, bool]]:
        """Yield each key in the changes, its cells before and after, and whether it was migrated to a new version."""
        changes, name = self.changes, self.step.name
        if isinstance(changes, SingleCellChanges):  # read at once
            stored = self.view.get_many(name, changes.keys)
            for key, old, new in zip(changes.keys, stored, changes.values, strict=True):
                yield key, _single_cell(old), _single_cell(new), False
            return
        for key, found in groupby(changes, lambda change: change.key):
            mine = list(found)
            entries = list(self.view.entries(name, key))
            before = self._shown(entries, NOTHING_EXPIRED)
            after = self._shown(_with_changes(entries, mine), self._wall)
            yield key, before, after, any(change.cell == MARK for change in mine)

    # --- the state that readers do not have ---

    def _values_since(self, backlog: Backlog, read_given: ReadGiven) -> Iterator[tuple[bytes, Any]]:
        """Yield each key whose value is another than the one that readers have been given, in the same way."""
        given = read_given(self.step, backlog)
        for key, cells in self._all_cells():
            if cells and given.pop(key, None) != cells:
                yield key, self._show(key, cells)
        for key in sorted(given):
            yield key, None

    def _all_cells(self) -> Iterator[tuple[bytes, SortedCells]]:
        """Yield every key and its cells after the batch."""
        changed = {key: list(found) for key, found in groupby(self.changes, lambda change: change.key)}
        name = self.step.name
        upgraded = self.step.upgraded_view(self.view, self.oldest, self.codec.types)
        for key, found in groupby(self.view.entries(name), lambda entry: entry.key):
            if key in changed:  # which are complete: what the step has read is migrated
                entries: Iterable[Entry] = _with_changes(found, changed.pop(key))
            else:
                entries = found if upgraded is self.view else upgraded.entries(name, key)
            yield key, self._shown(entries, self._wall)
        for key, mine in changed.items():
            yield key, self._shown(_with_changes((), mine), self._wall)

    # --- values ---

    def _shown(self, entries: Iterable[Entry], wall: int) -> SortedCells:
        ordered = sorted((entry for entry in entries if entry.cell != MARK), key=lambda entry: entry.cell)
        return [(cell, value) for _, cell, value in shown_cells(type(self.step), ordered, wall)]

    def _show(self, key: bytes, cells: SortedCells) -> Any:
        return self.step.show(StoredKey(decode_key(key), cells, self.codec, self._detail), self.step) if cells else None

    @cached_property
    def _detail(self) -> dict[str, Any]:
        return self.step.detail

    @property
    def _wall(self) -> int:
        return round(self.now * 1_000_000)


def _single_cell(value: bytes | None) -> SortedCells:
    return [] if value is None else [(b"", value)]


def _with_changes(entries: Iterable[Entry], changes: Iterable[Change]) -> Iterable[Entry]:
    """Return the cells of a key after some changes."""
    found = {entry.cell: entry for entry in entries}
    for change in changes:
        if change.value is None:
            found.pop(change.cell, None)
        else:
            found[change.cell] = Entry(change.key, change.cell, change.value, change.due, change.wall)
    return found.values()


def _are_equal(codec: Codec, one: Any, other: Any) -> bool:
    """Compare values by their stored form: nan equals itself, and 1 is not True."""
    try:
        return codec.encode(one) == codec.encode(other)
    except NotEncodable:
        return bool(one == other)


def read_given_state(storage: Storage, partition: int, partitions: int, step: Step, backlog: Backlog) -> GivenState:
    """Return what readers have been given of the keys that a partition owns now, from the files of the log.

    If a file is damaged, which may be the reason for a rollback, it is logged, and nothing is returned: all state of
    the partition is published then, but not which keys are gone.
    """
    try:
        return _read_given_state(storage, partition, partitions, step, backlog)
    except Corrupt as error:
        log.warning(
            "changes of %r: the state that was published cannot be read. All present state of partition %d is "
            "published, but not which keys were removed since: %s",
            step.name,
            partition,
            error,
        )
        return {}


def _read_given_state(storage: Storage, partition: int, partitions: int, step: Step, backlog: Backlog) -> GivenState:
    found: GivenState = {}
    times = Counter[bytes]()  # in how many states a key is
    for state in backlog.given:
        is_moved = state.partitions != partitions
        for number in state.files if is_moved else {partition} & state.files.keys():
            for table in read_living_cells(storage, *state.files[number]):
                for key, cells in _cells_by_key(step, segment.read_changes(table)):
                    if cells and (not is_moved or partition_of(key, partitions) == partition):
                        found[key] = cells if found.setdefault(key, cells) == cells else None
                        times[key] += 1
    if not backlog.can_compare:
        return dict.fromkeys(found)
    return {key: cells if times[key] == len(backlog.given) else None for key, cells in found.items()}


def _cells_by_key(step: Step, changes: Iterable[Change]) -> Iterator[tuple[bytes, SortedCells]]:
    entries = (Entry(change.key, change.cell, change.value or b"null", change.due, change.wall) for change in changes)
    for key, found in groupby(entries, lambda entry: entry.key):
        mine = (entry for entry in found if entry.cell != MARK)
        yield key, [(cell, value) for _, cell, value in shown_cells(type(step), mine, NOTHING_EXPIRED)]
