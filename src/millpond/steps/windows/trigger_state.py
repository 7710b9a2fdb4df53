"""The triggers of open windows: which events they get, whether they fire, and when they want to be asked again.

A trigger's state is stored with its window or, with `fires="all"`, once for the key. Here it is decided that a pane
goes out; the step makes the pane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.steps.windows.row_windows import OpenWindow, Undo
from millpond.steps.windows.triggers import Cause, Event

if TYPE_CHECKING:
    from millpond.steps.windows.window_batch import WindowBatch


class TriggerStates:
    """The trigger states of the windows and keys of one batch of one partition."""

    def __init__(self, batch: WindowBatch) -> None:
        self._batch, self._trigger = batch, batch.trigger
        self.is_per_key = batch.step.fires == "all"  # one trigger fires all windows of a key

    # --- events ---

    def advance_window(self, cause: Cause, w: OpenWindow, at: int | None, row: Any, is_first: bool) -> bool:
        """Give an event to a window's own trigger. Return whether a pane of the window goes out."""
        if cause not in self._trigger.causes:
            return False
        w.trigger_state, fires = self._advance(w.trigger_state, self._event(cause, w, at, row, is_first))
        w.is_changed = True
        return fires and w.has_news

    def advance_key(self, cause: Cause, w: OpenWindow, at: int | None, row: Any, undo: Undo) -> bool:
        """Give an event of a window to the trigger of its key. Return whether all windows of the key show a pane."""
        key_state = self._batch.key_state
        stored, has_news = key_state.trigger(w.key)
        fires = False
        if cause in self._trigger.causes:
            stored, fires = self._advance(stored, self._event(cause, w, at, row, not has_news))
        key_state.set_trigger(w.key, stored, (has_news or cause == "row") and not fires, undo)
        return fires

    def merge(self, earlier: Any, later: Any) -> Any:
        """Return the stored state for two windows that are merged."""
        return self._to_stored(self._trigger.merge(self._from_stored(earlier), self._from_stored(later)))

    def forget(self, key: bytes) -> None:
        """Delete the trigger state of a key that has no open window."""
        self._batch.key_state.set_trigger(key, None, False, [])

    def _event(self, cause: Cause, w: OpenWindow, at: int | None, row: Any, is_first: bool) -> Event:
        batch = self._batch
        mark = batch.key_state.newest(w.key) if batch.is_clock_of_key else batch.time.end_watermark
        held: list[dict[str, Any]] = []

        def results() -> dict[str, Any]:
            if not held:
                held.append(batch.accumulators.results(w))
            return held[0]

        start, end = (w.start, w.end) if batch.is_timed else (None, None)
        key = batch.keys[w.key]
        return Event(cause, row, batch.time.now, batch.unit, at, start, end, mark, is_first, results, key)

    def _advance(self, stored: Any, event: Event) -> tuple[Any, bool]:
        """Return the stored state after an event, and whether the trigger fires."""
        trigger = self._trigger
        state = trigger.advance(self._from_stored(stored), event)
        if fires := trigger.fires(state, event):
            state = trigger.fired(state, event)
        return self._to_stored(state), fires

    # --- when to ask again ---

    def due(self, w: OpenWindow) -> int | None:
        """Return the watermark at which a window's trigger wants to be asked."""
        unit = self._batch.unit
        if "watermark" not in self._trigger.causes or not w.has_news or w.is_emitted or w.end is None or unit is None:
            return None
        stored = self._batch.key_state.trigger(w.key)[0] if self.is_per_key else w.trigger_state
        return self._trigger.due(self._from_stored(stored), w.end, unit)

    def wall(self, w: OpenWindow) -> int | None:
        """Return the time of the clock at which a window's own trigger wants to be asked."""
        if "clock" not in self._trigger.causes or self.is_per_key or not w.has_news or w.is_emitted:
            return None
        return self._trigger.wall(self._from_stored(w.trigger_state))

    def wall_of_key(self, stored: Any) -> int | None:
        """Return the time of the clock at which a key's trigger with this state wants to be asked."""
        return self._trigger.wall(self._from_stored(stored)) if "clock" in self._trigger.causes else None

    # --- stored states ---

    def _from_stored(self, stored: Any) -> Any:
        # The program may have another trigger now, which cannot use this state.
        return stored[1] if stored is not None and stored[0] == self._trigger.label else self._trigger.initial()

    def _to_stored(self, state: Any) -> Any:
        return None if state is None else [self._trigger.label, state]
