"""A stretch of time of which all that is kept has been read: a batch reads around its rows, and nothing twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Stretch:
    """From the first to the last time that have been read, both included; nothing has been in the beginning.

    >>> stretch = Stretch()
    >>> stretch.reach(10, 20, print)
    10 20
    >>> stretch.reach(5, 15, print)
    5 10
    >>> stretch.reach(6, 20, print)
    """

    first: int | None = None
    last: int | None = None

    def reach(self, first: int, last: int, read: Callable[[int, int], None]) -> None:
        """Read what lies between two times and has not been read. Where `read` raises, it counts as not read."""
        if self.first is None or self.last is None:
            read(first, last)
            self.first, self.last = first, last
            return
        if first < self.first:
            read(first, self.first)
            self.first = first
        if last > self.last:
            read(self.last, last)
            self.last = last
