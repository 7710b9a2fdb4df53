"""Sessions: how a row joins them, and how they join each other. All ends are inclusive."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

Extent = tuple[int, int]  # the first and the last time


def is_near(extent: Extent, time: int, gap: int) -> bool:
    """Whether a row of this time belongs to the session; a pause of just the gap is within.

    >>> is_near((5, 7), 12, gap=5), is_near((5, 7), 13, gap=5)
    (True, False)
    """
    return extent[0] - gap <= time <= extent[1] + gap


def together(extents: Sequence[Extent], time: int) -> Extent:
    """The session that a row makes of those that it is near to, which may be none.

    >>> together([(5, 12), (20, 20)], 16)
    (5, 20)
    >>> together([], 16)
    (16, 16)
    """
    return min([time, *(first for first, _ in extents)]), max([time, *(last for _, last in extents)])


def merged(extents: Sequence[Extent], gap: int) -> list[Extent]:
    """Sessions, in any order, with those that touch made one.

    >>> merged([(16, 16), (0, 4), (20, 21)], gap=5)
    [(0, 4), (16, 21)]
    """
    found: list[Extent] = []
    for first, last in sorted(extents):
        if found and first - found[-1][1] <= gap:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found


def clusters(times: Sequence[int], gap: int) -> list[list[int]]:
    """The places of times that hang together, as lists; each list in the order of the places.

    >>> clusters([3, 20, 1, 22], gap=5)
    [[0, 2], [1, 3]]
    """
    by_time = sorted(range(len(times)), key=times.__getitem__)
    found: list[list[int]] = [by_time[:1]] if by_time else []
    for before, place in pairwise(by_time):
        if times[place] - times[before] <= gap:
            found[-1].append(place)
        else:
            found.append([place])
    return [sorted(cluster) for cluster in found]
