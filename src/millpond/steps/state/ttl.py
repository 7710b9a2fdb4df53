"""TTL: how long an entry of state lives, by which clock, and what makes it live longer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from millpond.errors import InvalidUse
from millpond.steps.base import Step, StepContext
from millpond.timing import Duration, Unit, duration, span

Refresh = Literal["write", "read", "never"]
Clock = Literal["event", "processing"]
Times = tuple[int | None, int | None]  # the event time and the time of the clock at which an entry is over


@dataclass(frozen=True)
class TTL:
    """How long an entry lives from when it was last refreshed."""

    after: Duration
    refresh: Refresh = "write"
    clock: Clock | None = None  # None: event time where the rows have one, else the clock

    @property
    def detail(self) -> dict[str, Any]:
        """The same as plain values, for the ledger."""
        unit, after = (
            ("number", self.after) if isinstance(self.after, int) else ("instant", span(self.after, "instant", ""))
        )
        return {"after": after, "unit": unit, "refresh": self.refresh, "clock": self.clock}


Lifetime = str | int | timedelta | TTL
"""What may be said as `ttl=`."""


def ttl(after: str | int | timedelta, refresh: Refresh = "write", clock: Clock | None = None) -> TTL:
    """A `ttl=` that says more than how long.

    `refresh` says what lets an entry live on: every `"write"` of it, every `"read"` and write, or `"never"`
    anything: it is over so long after it came to be. `clock` says whether `"event"` time counts or the clock,
    `"processing"`; without it, event time where the rows have one.

    >>> import millpond as mp
    >>> mp.ttl("1h", refresh="read", clock="processing")
    TTL(after=datetime.timedelta(seconds=3600), refresh='read', clock='processing')
    """
    if refresh not in ("write", "read", "never"):
        raise InvalidUse(f'ttl(refresh): expected "write", "read" or "never", got {refresh!r}')
    if clock not in ("event", "processing", None):
        raise InvalidUse(f'ttl(clock): expected "event", "processing" or None, got {clock!r}')
    found = duration(after, "ttl")
    if not found:
        raise InvalidUse(f'ttl: expected a duration longer than nothing, such as "1h", got {after!r}')
    if clock == "processing" and isinstance(found, int):
        raise InvalidUse(f'ttl: the clock needs a duration such as "1h", got the whole number {after!r}')
    return TTL(found, refresh, clock)


def checked_ttl(value: Any, where: str) -> TTL | None:
    """What a user gave as `ttl=`."""
    if value is None or isinstance(value, TTL):
        return value
    try:
        return ttl(value)
    except InvalidUse as error:
        raise InvalidUse(f"{where}: {error}") from None


def is_mortal(step: Step, context: StepContext) -> bool:
    """Whether a step's state has, or had until now, a time at which it is over: only then the slower way is needed."""
    return "ttl" in step.options or bool((context.previous_detail or {}).get("ttl"))


class Now:
    """The time that the row, or the timer, at hand has, for what lives on and for what is over."""

    def __init__(self, context: StepContext, step: str) -> None:
        self._context, self._step = context, step
        self.time: int | None = None  # its own
        self.event = context.time.start_watermark  # as far as event time has come for it
        self.wall = context.time.wall
        self.unit: Unit | None = context.time.unit

    def move(self, time: int | None, unit: Unit | None) -> None:
        """Go on to another row, of that event time if it has one."""
        began = self._context.time.start_watermark
        self.time = time
        self.event = began if time is None else time if began is None or time > began else began
        self.unit = unit or self._context.time.unit

    def over(self, times: Times) -> bool:
        """Whether an entry with such times has ceased to be."""
        due, wall = times
        return (due is not None and self.event is not None and due <= self.event) or (
            wall is not None and wall <= self.wall
        )

    def fresh(self, ttl: TTL) -> Times:
        """When an entry is over that is refreshed now."""
        if ttl.clock == "processing" or (ttl.clock is None and self.time is None):
            return None, self.wall + self._span(ttl, "instant")
        if self.time is None or self.event is None or self.unit is None:
            raise InvalidUse(
                f'step {self._step!r}: ttl with clock="event" needs rows with an event time, and this one has none; '
                'give the stream timestamp=…, or say clock="processing"'
            )
        return self.event + self._span(ttl, self.unit), None

    def _span(self, ttl: TTL, unit: Unit) -> int:
        return span(ttl.after, unit, f"step {self._step!r}, ttl")
