"""The bounds in time of a join: which rows are partners, and when no more can come. Pure functions.

A pair is a left row and a right row of one key with `left - before <= right <= left + after`:

            before        after
          |--------|---------------|
    left           l
    right    r1        r2     r3      r4        r1, r2 and r3 are partners of l, r4 is none
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from millpond.timing import MAX_TICKS

LEFT, RIGHT = 0, 1
SIDES = ("left", "right")


@dataclass(frozen=True)
class TimeBounds:
    """The bounds of an interval join, in ticks."""

    before: int
    after: int
    grace: int = 0

    def partners(self, side: int, at: int) -> tuple[int, int]:
        """Return the first and the last time at which the other side has partners of a row.

        >>> TimeBounds(before=1, after=5).partners(LEFT, 10), TimeBounds(before=1, after=5).partners(RIGHT, 10)
        ((9, 15), (5, 11))
        """
        return (at - self.before, at + self.after) if side == LEFT else (at - self.after, at + self.before)

    def expires_at(self, side: int, at: int) -> int:
        """Return the first watermark at which no partner of a row can come any more: each would be late.

        >>> TimeBounds(before=1, after=5, grace=2).expires_at(LEFT, 10)
        18
        """
        return min(self.partners(side, at)[1] + self.grace + 1, MAX_TICKS)

    def is_late(self, at: int, began: int | None) -> bool:
        """Return whether a row comes after partners of it may have expired."""
        return began is not None and at < began - self.grace

    def pairs(self, lefts: Sequence[int], rights: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield the pairs of two sorted lists of times, by their places.

        >>> list(TimeBounds(before=1, after=5).pairs([10, 20], [8, 9, 15, 16, 19]))
        [(0, 1), (0, 2), (1, 4)]
        """
        for i, at in enumerate(lefts):
            first, last = self.partners(LEFT, at)
            for j in range(bisect_left(rights, first), bisect_right(rights, last)):
                yield i, j

    def partner_ranges(self, side: int, times: Iterable[int]) -> list[tuple[int, int]]:
        """Return the ranges of time with partners of rows at these sorted times; ranges that touch are merged.

        >>> TimeBounds(before=1, after=5).partner_ranges(LEFT, [10, 12, 40])
        [(9, 17), (39, 45)]
        """
        found: list[tuple[int, int]] = []
        for at in times:
            first, last = self.partners(side, at)
            if found and first <= found[-1][1] + 1:
                found[-1] = (found[-1][0], max(last, found[-1][1]))
            else:
                found.append((first, last))
        return found


def find_newest(times: Sequence[int], at: int, keep: int) -> int | None:
    """Return the place of the last of some sorted times that is at or before `at`, and not more than `keep` before it.

    >>> find_newest([1, 4, 4, 9], at=6, keep=2), find_newest([1, 4], at=7, keep=2), find_newest([4], at=3, keep=2)
    (2, None, None)
    """
    place = bisect_right(times, at) - 1
    return place if place >= 0 and times[place] >= at - keep else None
