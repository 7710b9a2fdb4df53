"""What the parts of a window step share within one batch of one partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.codec import decode_key
from millpond.steps.base import StepContext
from millpond.steps.failure import BadInput
from millpond.steps.windows.key_state import KeyState
from millpond.steps.windows.row_windows import Accumulators, RowWindows
from millpond.steps.windows.trigger_state import TriggerStates
from millpond.timing import Duration, Unit, span

if TYPE_CHECKING:
    from millpond.steps.windows.window_step import WindowStep


class _DecodedKeys(dict[bytes, Any]):
    """Keys as the user knows them, by their bytes. A key that no row of the batch had is decoded."""

    def __missing__(self, encoded: bytes) -> Any:
        self[encoded] = key = decode_key(encoded)
        return key


class WindowBatch:
    """A window step, one batch, and the state that both have in common. It decides nothing."""

    def __init__(self, step: WindowStep, context: StepContext) -> None:
        self.step, self.context, self.time = step, context, context.time
        self.is_timed = step.window.is_timed  # whether windows begin and end by event time
        self.is_clock_of_key = step.clock == "key"  # and not the stream's watermark
        self.trigger = step.trigger
        self.key_names = step.key_names
        self.unit: Unit | None = None  # of the times; set once, by the assigner
        self.bounds_unit: Unit | None = None  # the same, None for windows that go by no time
        self.accumulators = Accumulators(
            step.name, step.aggregations, context.view, context.codec, context.arrival, step.window.is_merged
        )
        self.windows = RowWindows(step.name, context.view, self.accumulators)
        self.key_state = KeyState(step.name, context.view, context.codec)
        self.triggers = TriggerStates(self)
        self.keys = _DecodedKeys()

    def ticks(self, length: Duration, name: str) -> int:
        """Return one of the window's durations in ticks of the stream's times."""
        assert self.unit is not None
        return span(length, self.unit, f"window({self.step.name!r}), {name}")

    def late_mark(self, key: bytes) -> int | None:
        """Return the watermark that decides what is late: the one that the batch began with."""
        return self.key_state.began(key) if self.is_clock_of_key else self.time.start_watermark

    def missing_time(self) -> BadInput:
        return BadInput(
            f"window({self.step.name!r}): expected a row with an event time, and it has none. Give the stream one with "
            "timestamp=…, or the rows one with with_time(…)"
        )
