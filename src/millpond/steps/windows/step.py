"""`window`: what all kinds of windows have in common — rows come, panes go out, windows close.

orders.key_by("customer").window("per-minute", mp.tumbling("1m"), grace="10s").aggregate(n=mp.count())

A kind of window says which windows a row meets and when they close. Everything that one row does, in all of its
windows, is done or not done as a whole: where a function of the user's raises, what was saved is put back.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from typing import TYPE_CHECKING, Any

from millpond.codec import copy_value, decode_key
from millpond.log.segment import Change
from millpond.replica import Entry
from millpond.rows.rows import ENDING, Rows
from millpond.steps.base import KeyedRowBuilder, Running, StepContext
from millpond.steps.failure import FAULTS, BadInput, FailedRow
from millpond.steps.kind import call_for_rows
from millpond.steps.verbs.aggregate import key_fields
from millpond.steps.windows.key_state import Marks
from millpond.steps.windows.open_window import Accumulators, Window, restore
from millpond.steps.windows.trigger_state import Firing
from millpond.steps.windows.triggers import Cause
from millpond.timing import MAX_TICKS, Time, Unit, as_user, difference, span

if TYPE_CHECKING:
    from millpond.steps.windows.window_step import WindowStep

Saved = list[Any]  # what a row has touched, as it was


class Windows(Running):
    """A window step at work on one batch of one partition. Each kind of window is a class that goes on from here."""

    MERGING = False  # whether windows join
    TIMED = True  # whether windows begin and end by time

    def __init__(self, step: WindowStep, context: StepContext) -> None:
        self.step, self.context = step, context
        self.window: Any = step.window  # of the class that the subclass is for
        self.grace_given, self.trigger, self.panes, self.key_names = (
            step.grace,
            step.trigger,
            step.panes,
            step.key_names,
        )
        self.by_key = step.clock == "key"
        self.accumulators = Accumulators(
            step.name, step.aggregations, context.view, context.codec, context.arrival, self.MERGING
        )
        self.marks = Marks(step.name, context.view, context.codec)
        self.firing = Firing(step, context, self.marks, self.accumulators, self.TIMED)
        self.unit: Unit | None = None
        self._side_rows: list[Rows] = []
        self._made = KeyedRowBuilder(None)
        self._late: KeyedRowBuilder | None = None
        self._keys: dict[bytes, Any] = {}  # as the user knows them
        if context.time.unit is not None:
            self.know(context.time.unit)

    # --- what a kind of window says ---

    def measure(self, unit: Unit) -> None:
        """Convert sizes into ticks; called once, when the unit of the times is known."""
        return None

    @abstractmethod
    def meet(self, key: bytes, at: int | None, row: Any, saved: Saved) -> tuple[list[Window], list[Any]]:
        """The open windows that a row belongs to, oldest first, each saved; and the extents of those it missed."""

    @abstractmethod
    def closes(self, w: Window) -> int:
        """The watermark at which a window closes."""

    @abstractmethod
    def held(self) -> Iterator[Window]:
        """The windows that this batch has met, alive or not."""

    @abstractmethod
    def met(self, key: bytes, cell: bytes) -> Window | None:
        """The window that was read from a cell, if this batch has met it."""

    @abstractmethod
    def open(self, key: bytes) -> list[Window]:
        """All open windows of a key, oldest first."""

    @abstractmethod
    def take(self, entry: Entry) -> Window:
        """The window of a cell that this batch has not met."""

    @abstractmethod
    def ended(self, key: bytes, newest: int) -> list[Window]:
        """The windows of a key that may have something to do when its own time has come so far."""

    def counted(self, w: Window, key: bytes, saved: Saved) -> bool:
        """Called when a row has been counted: whether the window closes with it."""
        return False

    def ending(self) -> None:
        """All rows of the batch have come."""
        return None

    def passed(self) -> None:
        """What the watermark had to do is done."""
        return None

    def time(self, w: Window) -> int | None:
        """The time of what a window puts out: the last instant that it covers."""
        return w.end

    # --- rows come ---

    def know(self, unit: Unit) -> None:
        """The unit of the times is known from now on."""
        if self.unit is None:
            self.unit = self.firing.unit = unit
            self.measure(unit)

    def span(self, what: Any, name: str) -> int:
        assert self.unit is not None
        return span(what, self.unit, f"window({self.step.name!r}), {name}")

    def run(self, rows: Rows, side: int = 0) -> Rows:
        if rows.times is not None:
            self.know(rows.times.unit)
        self._made = KeyedRowBuilder(self.unit)
        self.work(rows)
        self._put_late()
        return self._made.rows()

    def work(self, rows: Rows) -> None:
        """Row by row."""
        keys = rows.keys
        assert keys is not None
        times = None if rows.times is None else rows.times.values.tolist()

        def once(i: int, k: int, row: Any) -> None:
            key = keys.encoded[k]
            self._keys[key] = keys.objects[k]
            self.one(rows, i, key, None if times is None else times[i], row)

        call_for_rows(self.step, self.context, rows, once)

    def one(self, rows: Rows, i: int, key: bytes, at: int | None, row: Any) -> None:
        """One row, in all of its windows or in none."""
        saved: Saved = []
        shown: list[tuple[Window, Any, int | None]] = []
        try:
            windows, missed = self.meet(key, at, row, saved)
            if windows:
                self._count(key, at, row, windows, saved, shown)
            if self.by_key and at is not None:
                self.marks.advance(key, at, saved)
        except BaseException:
            for undo in reversed(saved):
                undo() if callable(undo) else restore(undo)
            raise
        for w, output, time in shown:
            self._made.add(w.key, self._keys[key], output, time, int(rows.order[i]))
        if missed:
            assert at is not None
            self.miss(int(rows.order[i]), key, at, row, missed)

    def _count(
        self, key: bytes, at: int | None, row: Any, windows: list[Window], saved: Saved, shown: list[Any]
    ) -> None:
        accumulators, causes, one_per_key = self.accumulators, self.trigger.causes, self.firing.one_per_key
        stamp = accumulators.stamp()
        time = as_user(at, self.unit) if accumulators.needs_time and at is not None and self.unit else None
        if one_per_key and "before" in causes:
            self._ask_key("before", windows[-1], shown, saved, at, row)
        for w in windows:
            first = not w.news
            if not one_per_key and "before" in causes and w.news:
                self._ask("before", w, shown, at, row)
            accumulators.add(w, row, time, stamp)
            if not self.TIMED and at is not None and (w.newest is None or w.newest < at):
                w.newest = at
            if self.counted(w, key, saved):
                self.show(w, True, shown)
                self.drop(w)
            elif not one_per_key and causes:
                self._ask("row", w, shown, at, row, first)
        if one_per_key and causes:
            self._ask_key("row", windows[-1], shown, saved, at, row)

    # --- triggers are asked ---

    def _ask(
        self, cause: Cause, w: Window, shown: list[Any], at: int | None = None, row: Any = None, first: bool = False
    ) -> None:
        """Tell a window's own trigger what has happened, and show a pane if it fires."""
        if self.firing.tell_window(cause, w, at, row, first):
            self.show(w, False, shown)

    def _ask_key(
        self, cause: Cause, w: Window, shown: list[Any], saved: Saved, at: int | None = None, row: Any = None
    ) -> None:
        """Tell the one trigger of a key what has happened, to a window of it, and show all of them if it fires."""
        if self.firing.tell_key(cause, w, at, row, saved):
            for each in self.open(w.key):
                if each.news:
                    saved.append(each.save())
                    self.show(each, False, shown)

    # --- panes ---

    def show(self, w: Window, final: bool, shown: list[Any]) -> None:
        """A pane goes out: what the window holds, after what it takes back."""
        time = self.time(w)
        results = self.accumulators.results(w)
        if self.panes == "retract":
            # At the time that the pane had: a window over these rows takes it out where it was put in.
            for start, end, pane, old, *then in w.past:
                row = self.output(w.key, start, end, pane, False, old) | {"retracted": True}
                shown.append((w, row, then[0] if then else time))
            w.past = ((w.start, w.end, w.pane, copy_value(results), time),)
        shown.append((w, self.output(w.key, w.start, w.end, w.pane, final, results), time))
        w.pane += 1
        w.news, w.changed = False, True
        if self.panes == "discard":
            self.accumulators.clear(w)

    def output(
        self, key: bytes, start: int | None, end: int | None, pane: int, final: bool, results: dict[str, Any]
    ) -> dict[str, Any]:
        """An output row."""
        return {
            **key_fields(self.key_names, self.known(key)),
            "window_start": self.shown(start),
            "window_end": self.shown(end),
            "pane": pane,
            "final": final,
            **results,
        }

    def shown(self, at: int | None) -> Time | None:
        """A window's start or end as the user knows it."""
        return at if at is None or self.unit is None or not self.TIMED else as_user(at, self.unit)

    def known(self, key: bytes) -> Any:
        found = self._keys.get(key, self)
        if found is self:
            found = self._keys[key] = decode_key(key)
        return found

    # --- late rows ---

    def late_by(self, key: bytes) -> int | None:
        """The watermark that decides what is late, as the batch began with it."""
        return self.marks.began(key) if self.by_key else self.context.time.start_watermark

    def miss(self, order: int, key: bytes, at: int, row: Any, missed: list[Any]) -> None:
        """A row has missed windows: it goes aside."""
        assert self.unit is not None
        if self._late is None:
            self._late = KeyedRowBuilder(self.unit)
        mark = self.late_by(key)
        letter = {
            "row": row,
            "key": self.known(key),
            "late_by": difference((at if mark is None else mark) - at, self.unit),
            "missed": [(self.shown(start), self.shown(end)) for start, end in missed],
        }
        self._late.add(key, letter["key"], letter, at, order)

    def _put_late(self) -> None:
        if self._late is not None:
            late = self._late.rows()
            self._side_rows.append(late)
            self.context.count_late(len(late))
            self._late = None

    def take_side_rows(self) -> list[Rows]:
        taken, self._side_rows = self._side_rows, []
        return taken

    def no_time(self) -> BadInput:
        return BadInput(
            f"window({self.step.name!r}): expected a row with an event time, and it has none. Give the stream one with "
            "timestamp=…, or the rows one with with_time(…)"
        )

    # --- time passes ---

    def end(self) -> Rows | None:
        self._made = KeyedRowBuilder(self.unit)
        self.ending()
        if self.by_key:
            for key, newest in self.marks.moved():
                for w in self.ended(key, newest):
                    self._pass(w, newest)
        upto = MAX_TICKS if self.context.time.is_final else self.context.time.end_watermark
        if upto is not None and (not self.by_key or self.context.time.is_final):
            for w in self.due(upto):
                self._pass(w, upto)
        self.passed()
        if self.firing.one_per_key:
            self._forget_triggers()
        if "clock" in self.trigger.causes:
            self._tick()
        self._put_late()
        rows = self._made.rows()
        return rows if len(rows) else None

    def due(self, upto: int) -> Iterable[Window]:
        """The windows that have something to do by now, in that order."""
        own = [
            ((due, w.key, w.cell), w)
            for w in self.held()
            if w.alive and (due := self.due_of(w)) is not None and due <= upto
        ]
        own.sort(key=lambda pair: pair[0])
        known = {id(w) for w in self.held()}
        for _, w in merge(own, self._committed(upto, known), key=lambda pair: pair[0]):
            yield w

    def _committed(self, upto: int, known: set[int]) -> Iterator[tuple[tuple[int, bytes, bytes], Window]]:
        """Windows that the batch had not met before; one that has been read meanwhile is still to come."""
        for entry in self.context.view.due(self.step.name, upto):
            w = self.met(entry.key, entry.cell)
            if w is None:
                w = self.take(entry)
            elif id(w) in known:
                continue
            yield (entry.due or 0, entry.key, entry.cell), w

    def due_of(self, w: Window) -> int | None:
        """The watermark at which something happens to a window."""
        if self.by_key:
            return MAX_TICKS
        closes, asked = self.closes(w), self.firing.due(w)
        return closes if asked is None else min(closes, asked)

    def _pass(self, w: Window, mark: int) -> None:
        """The watermark has come so far: the window closes, or its trigger is asked."""
        if w.alive:
            self._put_out(w, lambda shown: self._close_or_ask(w, mark, shown))

    def _close_or_ask(self, w: Window, mark: int, shown: list[Any]) -> None:
        closes = self.closes(w)
        if closes <= mark:
            if self.context.time.is_final and closes < MAX_TICKS and not w.closed:  # what comes after the end is late
                if self.by_key:
                    self.marks.advance(w.key, closes, [])
                else:
                    self.closed_until = closes if self.closed_until is None else max(self.closed_until, closes)
            self.close(w, shown)
        elif "watermark" in self.trigger.causes and w.news:
            w.changed = True
            if self.firing.one_per_key:
                self._ask_key("watermark", w, shown, [])
            else:
                self._ask("watermark", w, shown)
        elif not self.by_key:
            w.changed = True  # its time has changed with the program

    def close(self, w: Window, shown: list[Any]) -> None:
        """What has changed since the last pane goes out, and the window is gone."""
        try:
            if w.news:
                self.show(w, True, shown)
        finally:
            self.drop(w)

    def drop(self, w: Window) -> None:
        w.alive, w.changed = False, True

    def _forget_triggers(self) -> None:
        """Of a key that has no open window any more, no trigger is kept."""
        for key in {w.key for w in self.held() if not w.alive}:
            if not self.open(key):
                self.firing.forget(key)

    def _tick(self) -> None:
        """The clock has come so far: triggers that wait for it are asked."""
        wall = self.context.time.wall
        if self.firing.one_per_key:
            for key in self.marks.ticking(wall, self.firing.wall_of_key):
                if windows := self.open(key):
                    self._tell_clock(windows[-1])
                else:
                    self.firing.forget(key)
            return
        own = [w for w in self.held() if w.alive and (at := self.firing.wall(w)) is not None and at <= wall]
        own.sort(key=lambda w: (w.key, w.cell))
        for entry in self.context.view.due(self.step.name, wall, wall=True):
            if self.met(entry.key, entry.cell) is None:
                own.append(self.take(entry))
        for w in own:
            self._tell_clock(w)

    def _tell_clock(self, w: Window) -> None:
        w.changed = True
        if self.firing.one_per_key:
            self._put_out(w, lambda shown: self._ask_key("clock", w, shown, []))
        else:
            self._put_out(w, lambda shown: self._ask("clock", w, shown))

    def _put_out(self, w: Window, show: Callable[[list[Any]], None]) -> None:
        """Put out what is shown, though a function of the user's fail for the whole window."""
        shown: list[Any] = []
        try:
            show(shown)
        except FAULTS as error:
            window = {"window_start": self.shown(w.start), "window_end": self.shown(w.end)}
            self.context.failures.handle(
                self.step.on_error, self.step.name, error, FailedRow(key=self.known(w.key), row=window, order=ENDING)
            )
        for each, output, time in shown:
            self._made.add(each.key, self.known(each.key), output, time)

    # --- what has changed ---

    def changes(self) -> list[Change]:
        found: dict[tuple[bytes, bytes], Change] = {}
        encode = self.accumulators.encode
        for w in self.held():
            if not w.changed:
                continue
            if w.origin is not None and (not w.alive or w.origin != w.cell):
                found.setdefault((w.key, w.origin), Change(w.key, w.origin, None))
            if w.alive:
                found[w.key, w.cell] = Change(w.key, w.cell, encode(w), self.due_of(w), self.firing.wall(w))
            if w.ids or w.gone:
                for cell, value in self.accumulators.chunks(w):
                    found[w.key, cell] = Change(w.key, cell, value)
        for change in self.marks.changes(self.firing.wall_of_key):
            found[change.key, change.cell] = change
        return [found[place] for place in sorted(found)]
