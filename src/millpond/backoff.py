"""Pauses between attempts: each is twice as long as the one before, up to a longest one, and slightly random."""

from __future__ import annotations

from dataclasses import dataclass

from millpond.clock import chance

JITTER = 0.1  # the part of a pause that is left to chance, so that many clients do not try again in step


@dataclass(frozen=True)
class Backoff:
    """A series of pauses, in seconds. The caller decides how many attempts are made.

    >>> from millpond.backoff import Backoff
    >>> 0.9 <= Backoff(first=1.0, longest=60.0).pause(1) <= 1.0
    True
    >>> 54.0 <= Backoff(first=1.0, longest=60.0).pause(100) <= 60.0
    True
    """

    first: float
    longest: float

    def pause(self, attempt: int) -> float:
        """Return how long to wait after the failure of an attempt; the first attempt is number 1.

        At most a tenth is taken off by chance: no pause is longer than it would be without it.
        """
        doubled = self.first * 2.0 ** min(attempt - 1, 60)
        return min(doubled, self.longest) * (1.0 - JITTER * chance())
