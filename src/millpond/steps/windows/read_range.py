"""The range of time whose stored cells a batch has read: it reads around its rows, and nothing twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class ReadRange:
    """From the first to the last time that have been read, both included; None before anything is read.

    >>> read = ReadRange()
    >>> read.extend(10, 20, print)
    10 20
    >>> read.extend(5, 15, print)
    5 10
    >>> read.extend(6, 20, print)
    """

    first: int | None = None
    last: int | None = None

    def extend(self, first: int, last: int, read: Callable[[int, int], None]) -> None:
        """Call `read` for what is between two times and has not been read. If it raises, that counts as not read."""
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
