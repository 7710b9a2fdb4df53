"""TTL: how long an entry of state lives, by which clock, and what refreshes it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from millpond.errors import InvalidUse
from millpond.timing import Duration, duration, span

Refresh = Literal["write", "read", "never"]
TTLClock = Literal["event", "processing"]


@dataclass(frozen=True)
class TTL:
    """How long an entry lives after it was last refreshed."""

    after: Duration
    refresh: Refresh = "write"
    clock: TTLClock | None = None  # None: event time where the rows have one, else the clock

    @property
    def detail(self) -> dict[str, Any]:
        """The TTL as plain values, for the ledger."""
        unit, after = (
            ("number", self.after) if isinstance(self.after, int) else ("instant", span(self.after, "instant", ""))
        )
        return {"after": after, "unit": unit, "refresh": self.refresh, "clock": self.clock}


Lifetime = str | int | timedelta | TTL
"""The types that `ttl=` takes."""


def ttl(after: str | int | timedelta, refresh: Refresh = "write", clock: TTLClock | None = None) -> TTL:
    """Return a `ttl=` with more than a duration.

    `refresh` says what restarts the duration: every `"write"` of an entry, every `"read"` and write, or `"never"`:
    then an entry expires that long after it was first written. `clock` is `"event"` for event time or `"processing"`
    for the clock; without it, event time counts where the rows have one.

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


def check_ttl(value: Any, where: str) -> TTL | None:
    """Return what a user gave as `ttl=`, checked."""
    if value is None or isinstance(value, TTL):
        return value
    try:
        return ttl(value)
    except InvalidUse as error:
        raise InvalidUse(f"{where}: {error}") from None
