"""How far a row of one side reaches for partners on the other, and when none can come any more. Pure.

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
class Reach:
    """The bounds of an interval join, in ticks."""

    before: int
    after: int
    grace: int = 0

    def partners(self, side: int, at: int) -> tuple[int, int]:
        """From when to when the partners of a row lie on the other side, both included.

        >>> Reach(before=1, after=5).partners(LEFT, 10), Reach(before=1, after=5).partners(RIGHT, 10)
        ((9, 15), (5, 11))
        """
        return (at - self.before, at + self.after) if side == LEFT else (at - self.after, at + self.before)

    def leaves(self, side: int, at: int) -> int:
        """The first watermark at which no partner can come any more: each would be late.

        >>> Reach(before=1, after=5, grace=2).leaves(LEFT, 10)
        18
        """
        return min(self.partners(side, at)[1] + self.grace + 1, MAX_TICKS)

    def is_late(self, at: int, began: int | None) -> bool:
        """Whether a row comes when rows that it could have met may be gone."""
        return began is not None and at < began - self.grace

    def pairs(self, lefts: Sequence[int], rights: Sequence[int]) -> Iterator[tuple[int, int]]:
        """The pairs of two sorted lists of times, by their places.

        >>> list(Reach(before=1, after=5).pairs([10, 20], [8, 9, 15, 16, 19]))
        [(0, 1), (0, 2), (1, 4)]
        """
        for i, at in enumerate(lefts):
            first, last = self.partners(LEFT, at)
            for j in range(bisect_left(rights, first), bisect_right(rights, last)):
                yield i, j

    def windows(self, side: int, times: Iterable[int]) -> list[tuple[int, int]]:
        """Where the partners of rows at these sorted times lie: as few ranges as hold nothing far from all of them.

        >>> Reach(before=1, after=5).windows(LEFT, [10, 12, 40])
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


def newest(times: Sequence[int], at: int, keep: int) -> int | None:
    """The place of the last of some sorted times that is at or before `at`, and not more than `keep` before it.

    >>> newest([1, 4, 4, 9], at=6, keep=2), newest([1, 4], at=7, keep=2), newest([4], at=3, keep=2)
    (2, None, None)
    """
    place = bisect_right(times, at) - 1
    return place if place >= 0 and times[place] >= at - keep else None
