"""Firing: what the triggers of windows are told, whether they fire, and when they want to be asked again.

A trigger's state is kept with its window or, where one trigger fires all windows of a key, with the key. Here it is
decided that a pane goes out; which ones there are, and how they are put out, is the windows' own affair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.steps.base import StepContext
from millpond.steps.windows.key_state import Marks
from millpond.steps.windows.open_window import Accumulators, Window
from millpond.steps.windows.triggers import Cause, Event
from millpond.timing import Unit

if TYPE_CHECKING:
    from millpond.steps.windows.window_step import WindowStep


class Firing:
    """The triggers of a window step at work on one batch of one partition."""

    def __init__(
        self, step: WindowStep, context: StepContext, marks: Marks, accumulators: Accumulators, is_timed: bool
    ) -> None:
        self.trigger = step.trigger
        self.one_per_key = step.fires == "all"  # and not one for each window
        self.unit: Unit | None = None  # of the times, as soon as it is known
        self._by_key = step.clock == "key"
        self._context, self._marks, self._accumulators, self._is_timed = context, marks, accumulators, is_timed

    # --- something has happened ---

    def tell_window(self, cause: Cause, w: Window, at: int | None, row: Any, first: bool) -> bool:
        """Tell a window's own trigger what has happened: whether a pane of the window goes out."""
        if cause not in self.trigger.causes:
            return False
        state, fires = self._advanced(w.trigger, self._event(cause, w, at, row, first))
        w.trigger, w.changed = state, True
        return fires and w.news

    def tell_key(self, cause: Cause, w: Window, at: int | None, row: Any, saved: list[Any]) -> bool:
        """Tell the one trigger of a window's key what has happened: whether all windows of the key show a pane."""
        kept, news = self._marks.trigger(w.key)
        fires = False
        if cause in self.trigger.causes:
            kept, fires = self._advanced(kept, self._event(cause, w, at, row, not news))
        self._marks.set_trigger(w.key, kept, (news or cause == "row") and not fires, saved)
        return fires

    def joined(self, earlier: Any, later: Any) -> Any:
        """What is kept where two windows join, of what was kept with each."""
        return self._kept(self.trigger.merge(self._state(earlier), self._state(later)))

    def forget(self, key: bytes) -> None:
        """A key has no open window any more: of its trigger nothing is kept."""
        self._marks.set_trigger(key, None, False, [])

    def _event(self, cause: Cause, w: Window, at: int | None, row: Any, first: bool) -> Event:
        mark = self._marks.newest(w.key) if self._by_key else self._context.time.end_watermark
        held: list[dict[str, Any]] = []

        def results() -> dict[str, Any]:
            if not held:
                held.append(self._accumulators.results(w))
            return held[0]

        start, end = (w.start, w.end) if self._is_timed else (None, None)
        return Event(cause, row, self._context.time.now, self.unit, at, start, end, mark, first, results)

    def _advanced(self, kept: Any, event: Event) -> tuple[Any, bool]:
        """What is kept after an event, and whether the trigger fires."""
        trigger = self.trigger
        state = trigger.advance(self._state(kept), event)
        if fires := trigger.fires(state, event):
            state = trigger.fired(state, event)
        return self._kept(state), fires

    # --- when to ask again ---

    def due(self, w: Window) -> int | None:
        """The watermark at which a window's trigger wants to be asked."""
        if "watermark" not in self.trigger.causes or not w.news or w.closed or w.end is None or self.unit is None:
            return None
        kept = self._marks.trigger(w.key)[0] if self.one_per_key else w.trigger
        return self.trigger.due(self._state(kept), w.end, self.unit)

    def wall(self, w: Window) -> int | None:
        """When the clock has something to say to a window's own trigger."""
        if "clock" not in self.trigger.causes or self.one_per_key or not w.news or w.closed:
            return None
        return self.trigger.wall(self._state(w.trigger))

    def wall_of_key(self, kept: Any) -> int | None:
        """When the clock has something to say to a key's trigger, of which this is kept."""
        return self.trigger.wall(self._state(kept)) if "clock" in self.trigger.causes else None

    # --- what is kept ---

    def _state(self, kept: Any) -> Any:
        # State of another trigger than the program's is of no use to it.
        return kept[1] if kept is not None and kept[0] == self.trigger.label else self.trigger.initial()

    def _kept(self, state: Any) -> Any:
        return None if state is None else [self.trigger.label, state]
