"""`window`: rows come in, panes go out, windows close.

orders.key_by("customer").window("per-minute", mp.tumbling("1m"), grace="10s").aggregate(n=mp.count())

The step has an assigner, which says to which windows a row belongs and when they close, and a store of windows: row by
row, or as columns. A batch begins with the store that `choose_store` names. If rows come, or windows are stored, that
the columnar store cannot hold, its windows are moved to the row store, once, for the rest of the batch.

What one row does in all of its windows is done as a whole or not at all: if a function of the user's raises, every
change is undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from typing import TYPE_CHECKING, Any, NamedTuple

from millpond.codec import copy_value
from millpond.log.segment import Change
from millpond.rows.rows import ENDING, KeyedRowBuilder, Rows
from millpond.steps.base import Running, StepContext
from millpond.steps.failure import FAULTS, FailedRow
from millpond.steps.kind import call_for_rows
from millpond.steps.windows.assigner import Assigner
from millpond.steps.windows.columnar.choice import choose_store
from millpond.steps.windows.columnar.windows import ColumnarWindows
from millpond.steps.windows.counting import CountAssigner
from millpond.steps.windows.definitions import Counting, Global, Hopping, Session, Sliding, Window
from millpond.steps.windows.global_window import GlobalAssigner
from millpond.steps.windows.hopping import HoppingAssigner
from millpond.steps.windows.late_rows import LateRows
from millpond.steps.windows.panes import RETRACTED, pane_row, shown_bounds
from millpond.steps.windows.row_windows import OpenWindow, Undo, restore_window
from millpond.steps.windows.sessions import SessionAssigner
from millpond.steps.windows.sliding import SlidingAssigner
from millpond.steps.windows.triggers import Cause
from millpond.steps.windows.window_batch import WindowBatch
from millpond.timing import MAX_TICKS, as_user

if TYPE_CHECKING:
    from millpond.steps.windows.window_step import WindowStep

ASSIGNERS: dict[type[Window], type[Assigner]] = {
    Hopping: HoppingAssigner,
    Session: SessionAssigner,
    Sliding: SlidingAssigner,
    Global: GlobalAssigner,
    Counting: CountAssigner,
}


_Pane = tuple[bytes, dict[str, Any], int | None]  # the key, the output row, and its event time


class _WaitingRow(NamedTuple):
    """A row that waits for the end of its batch."""

    rows: Rows
    place: int
    at: int
    row: Any


class RunningWindows(Running):
    """A window step that was started for one batch of one partition."""

    def __init__(self, step: WindowStep, context: StepContext) -> None:
        kind = ASSIGNERS[type(step.window)]
        self._step, self._context, self._time = step, context, context.time
        self._batch = batch = WindowBatch(step, context)
        self._assigner = kind(batch)
        self._windows, self._trigger, self._triggers = batch.windows, batch.trigger, batch.triggers
        self._late = LateRows(batch)
        self._waiting: dict[bytes, list[_WaitingRow]] = {}
        self._outputs = KeyedRowBuilder(None)
        self._columns: ColumnarWindows | None = None  # None: windows are in the row store
        self._is_store_chosen = False

    # --- rows ---

    def run(self, rows: Rows, side: int = 0) -> Rows:
        if rows.times is not None:
            self._assigner.learn_unit(rows.times.unit)
        self._outputs = KeyedRowBuilder(self._batch.unit)
        rest: Rows | None = rows
        if len(rows) and (columns := self._columnar_store(rows)) is not None:
            rest = columns.add(rows)
            if rest is not None:
                self._move_to_rows(columns)
        if rest is not None:
            self._add_by_row(rest)
        return self._outputs.rows()

    def _columnar_store(self, rows: Rows | None) -> ColumnarWindows | None:
        """Return the columnar store if the batch uses it. The first rows of the batch, or their absence, decide."""
        if not self._is_store_chosen:
            self._is_store_chosen = True
            if choose_store(self._step.fields_read, rows) == "columns":
                assert isinstance(self._assigner, HoppingAssigner)
                self._columns = ColumnarWindows(self._batch, self._assigner, self._late)
        return self._columns

    def _move_to_rows(self, columns: ColumnarWindows) -> None:
        """Go on with the row store for the rest of the batch."""
        for w in columns.to_open_windows():
            self._windows.add(w)
        self._columns = None

    def _add_by_row(self, rows: Rows) -> None:
        keys = rows.keys
        assert keys is not None
        times = None if rows.times is None else rows.times.values.tolist()
        may_wait = self._assigner.may_wait

        def once(i: int, k: int, row: Any) -> None:
            key = keys.encoded[k]
            self._batch.keys[key] = keys.objects[k]
            at = None if times is None else times[i]
            if may_wait and at is None:
                raise self._batch.missing_time()
            if may_wait and at is not None and (key in self._waiting or self._assigner.must_wait(key, at)):
                self._waiting.setdefault(key, []).append(_WaitingRow(rows, i, at, row))
            else:
                self._add_row(int(rows.order[i]), key, at, row)

        call_for_rows(self._step, self._context, rows, once)

    def _add_row(self, order: int, key: bytes, at: int | None, row: Any) -> None:
        """Add a row to all of its windows, or to none if it raises."""
        undo: Undo = []
        panes: list[_Pane] = []
        try:
            windows, missed = self._assigner.windows_for(key, at, row, undo)
            if windows:
                self._update(windows, at, row, undo, panes)
            if self._batch.is_clock_of_key and at is not None:
                self._batch.key_state.advance(key, at, undo)
        except BaseException:
            for saved in reversed(undo):
                saved() if callable(saved) else restore_window(saved)
            raise
        for _, output, time in panes:
            self._outputs.add(key, self._batch.keys[key], output, time, order)
        if missed:
            assert at is not None
            self._late.add(order, key, at, row, missed)

    def _update(self, windows: list[OpenWindow], at: int | None, row: Any, undo: Undo, panes: list[_Pane]) -> None:
        """Add a row to open windows of its key, and collect the panes that their triggers fire."""
        batch, accumulators = self._batch, self._batch.accumulators
        causes, is_per_key = self._trigger.causes, self._triggers.is_per_key
        stamp = accumulators.stamp()
        time = as_user(at, batch.unit) if accumulators.needs_time and at is not None and batch.unit else None
        if is_per_key and "before" in causes:
            self._advance_key("before", windows[-1], at, row, undo, panes)
        for w in windows:
            is_first = not w.has_news
            if not is_per_key and "before" in causes and w.has_news:
                self._advance("before", w, panes, at, row)
            accumulators.add(w, row, time, stamp)
            if not batch.is_timed and at is not None and (w.newest is None or w.newest < at):
                w.newest = at
            if self._assigner.is_full(w):
                self._show(w, True, panes)
                w.drop()
            elif not is_per_key and causes:
                self._advance("row", w, panes, at, row, is_first)
        if is_per_key and causes:
            self._advance_key("row", windows[-1], at, row, undo, panes)

    def _add_waiting(self) -> None:
        """Add the rows that had to wait for the end of the batch, or put them aside as late."""
        for key, waiting in sorted(self._waiting.items()):
            for each, missed in zip(waiting, self._assigner.settle(key, [each.at for each in waiting]), strict=True):
                order = int(each.rows.order[each.place])
                if missed:
                    self._late.add(order, key, each.at, each.row, missed)
                else:
                    self._add_waiting_row(key, order, each)
        self._waiting = {}

    def _add_waiting_row(self, key: bytes, order: int, each: _WaitingRow) -> None:
        try:
            self._add_row(order, key, each.at, each.row)
        except FAULTS as error:
            failed = FailedRow(
                self._batch.keys[key], each.row, order, lambda: self._add_row(order, key, each.at, each.row)
            )
            self._context.failures.handle(self._step.on_error, self._step.name, error, failed)

    def take_side_rows(self) -> list[Rows]:
        return self._late.take()

    # --- triggers and panes ---

    def _advance(
        self,
        cause: Cause,
        w: OpenWindow,
        panes: list[_Pane],
        at: int | None = None,
        row: Any = None,
        is_first: bool = False,
    ) -> None:
        """Give an event to a window's own trigger, and show a pane if it fires."""
        if self._triggers.advance_window(cause, w, at, row, is_first):
            self._show(w, False, panes)

    def _advance_key(
        self, cause: Cause, w: OpenWindow, at: int | None, row: Any, undo: Undo, panes: list[_Pane]
    ) -> None:
        """Give an event of a window to the one trigger of its key, and show all windows of the key if it fires."""
        if self._triggers.advance_key(cause, w, at, row, undo):
            for each in self._assigner.open_windows(w.key):
                if each.has_news:
                    undo.append(each.save())
                    self._show(each, False, panes)

    def _show(self, w: OpenWindow, is_final: bool, panes: list[_Pane]) -> None:
        """Make a pane of what a window holds, after those that take earlier panes back."""
        batch, accumulators = self._batch, self._batch.accumulators
        key, names, time = batch.keys[w.key], batch.key_names, self._assigner.pane_time(w)
        results = accumulators.results(w)
        if self._step.panes == "retract":
            # At the time that the pane had: a window over these rows takes it out where it was put in.
            for start, end, number, old, *then in w.retractable:
                row = pane_row(names, key, shown_bounds(start, end, batch.bounds_unit), number, False, old) | {
                    RETRACTED: True
                }
                panes.append((w.key, row, then[0] if then else time))
            w.retractable = ((w.start, w.end, w.pane, copy_value(results), time),)
        row = pane_row(names, key, shown_bounds(w.start, w.end, batch.bounds_unit), w.pane, is_final, results)
        panes.append((w.key, row, time))
        w.pane += 1
        w.has_news, w.is_changed = False, True
        if self._step.panes == "discard":
            accumulators.clear(w)

    def _emit(self, w: OpenWindow, show: Callable[[list[_Pane]], None]) -> None:
        """Emit the panes that `show` collects; if a function of the user's fails, the whole window meets `on_error`."""
        panes: list[_Pane] = []
        try:
            show(panes)
        except FAULTS as error:
            start, end = shown_bounds(w.start, w.end, self._batch.bounds_unit)
            failed = FailedRow(self._batch.keys[w.key], {"window_start": start, "window_end": end}, ENDING)
            self._context.failures.handle(self._step.on_error, self._step.name, error, failed)
        for key, output, time in panes:
            self._outputs.add(key, self._batch.keys[key], output, time)

    # --- the end of the batch ---

    def end(self) -> Rows | None:
        if (columns := self._columnar_store(None)) is not None:
            closed = columns.close()
            if closed is not None:
                self.closed_until = closed.closed_until
                return closed.panes
            self._move_to_rows(columns)
        self._outputs = KeyedRowBuilder(self._batch.unit)
        self._add_waiting()
        self._close_by_key()
        until = MAX_TICKS if self._time.is_final else self._time.end_watermark
        if until is not None and (not self._batch.is_clock_of_key or self._time.is_final):
            for w in self._due_windows(until):
                self._pass(w, until)
        if self._triggers.is_per_key:
            self._forget_triggers()
        if "clock" in self._trigger.causes:
            self._ask_clock_triggers()
        rows = self._outputs.rows()
        return rows if len(rows) else None

    def _close_by_key(self) -> None:
        """Close windows by the clock of their keys."""
        if self._batch.is_clock_of_key:
            for key, newest in self._batch.key_state.moved_keys():
                for w in self._assigner.ended_windows(key, newest):
                    self._pass(w, newest)

    def _due_windows(self, until: int) -> Iterable[OpenWindow]:
        """Yield the windows that have something to do by a watermark, in that order."""
        own = [
            ((due, w.key, w.cell), w)
            for w in self._windows
            if w.is_live and (due := self._due_of(w)) is not None and due <= until
        ]
        own.sort(key=lambda pair: pair[0])
        known = {id(w) for w in self._windows}
        for _, w in merge(own, self._stored_due(until, known), key=lambda pair: pair[0]):
            yield w

    def _stored_due(self, until: int, known: set[int]) -> Iterator[tuple[tuple[int, bytes, bytes], OpenWindow]]:
        """Yield the stored windows that were not in the row store before, those included that are loaded meanwhile."""
        for entry in self._context.view.due(self._step.name, until):
            w = self._windows.find(entry.key, entry.cell)
            if w is None:
                w = self._assigner.load(entry)
            elif id(w) in known:
                continue
            yield (entry.due or 0, entry.key, entry.cell), w

    def _due_of(self, w: OpenWindow) -> int | None:
        """Return the watermark at which a window closes or its trigger wants to be asked."""
        if self._batch.is_clock_of_key:
            return MAX_TICKS
        closes_at = self._assigner.closes_at(w)
        asks_at = self._triggers.due(w) if "watermark" in self._trigger.causes else None
        return closes_at if asks_at is None else min(closes_at, asks_at)

    def _pass(self, w: OpenWindow, mark: int) -> None:
        """Close a window that a watermark has reached, or ask its trigger."""
        if w.is_live:
            self._emit(w, lambda panes: self._close_or_ask(w, mark, panes))

    def _close_or_ask(self, w: OpenWindow, mark: int, panes: list[_Pane]) -> None:
        closes_at = self._assigner.closes_at(w)
        if closes_at <= mark:
            if self._time.is_final and closes_at < MAX_TICKS and not w.is_emitted:  # what comes after the end is late
                if self._batch.is_clock_of_key:
                    self._batch.key_state.advance(w.key, closes_at, [])
                else:
                    self.closed_until = closes_at if self.closed_until is None else max(self.closed_until, closes_at)
            self._close(w, panes)
        elif "watermark" in self._trigger.causes and w.has_news:
            w.is_changed = True
            self._advance_by_time("watermark", w, panes)
        elif not self._batch.is_clock_of_key:
            w.is_changed = True  # the program has changed, and with it the time at which the window closes

    def _close(self, w: OpenWindow, panes: list[_Pane]) -> None:
        """Remove a window, and show what has changed since its last pane."""
        content = self._assigner.close(w)
        if content is not None:
            self._show(content, True, panes)

    def _forget_triggers(self) -> None:
        """Delete the trigger states of keys whose last open window has closed."""
        for key in {w.key for w in self._windows if not w.is_live}:
            if not self._assigner.open_windows(key):
                self._triggers.forget(key)

    def _ask_clock_triggers(self) -> None:
        """Ask the triggers that wait for a time of the clock that has come."""
        wall = self._time.wall
        if self._triggers.is_per_key:
            for key in self._batch.key_state.keys_due(wall, self._triggers.wall_of_key):
                if windows := self._assigner.open_windows(key):
                    self._ask_clock_trigger(windows[-1])
                else:
                    self._triggers.forget(key)
            return
        due = [w for w in self._windows if w.is_live and (at := self._triggers.wall(w)) is not None and at <= wall]
        due.sort(key=lambda w: (w.key, w.cell))
        for entry in self._context.view.due(self._step.name, wall, wall=True):
            if self._windows.find(entry.key, entry.cell) is None:
                due.append(self._assigner.load(entry))
        for w in due:
            self._ask_clock_trigger(w)

    def _ask_clock_trigger(self, w: OpenWindow) -> None:
        w.is_changed = True
        self._emit(w, lambda panes: self._advance_by_time("clock", w, panes))

    def _advance_by_time(self, cause: Cause, w: OpenWindow, panes: list[_Pane]) -> None:
        """Give an event that no row caused to the trigger of a window, or of its key."""
        if self._triggers.is_per_key:
            self._advance_key(cause, w, None, None, [], panes)
        else:
            self._advance(cause, w, panes)

    # --- state ---

    def changes(self) -> list[Change]:
        if self._columns is not None:
            return self._columns.changes()
        found = self._windows.changes(self._due_of, self._triggers.wall)
        for change in self._batch.key_state.changes(self._triggers.wall_of_key):
            found[change.key, change.cell] = change
        return [found[place] for place in sorted(found)]
