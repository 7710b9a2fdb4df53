"""TTL: how long an entry of state lives, by which clock, and what makes it live longer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from millpond.errors import InvalidUse
from millpond.timing import Duration, duration, span

Refresh = Literal["write", "read", "never"]
Clock = Literal["event", "processing"]


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
