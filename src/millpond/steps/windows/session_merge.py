"""Arithmetic of sessions: how a row extends them, and which ones touch. All ends are inclusive."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from millpond.steps.windows.cell_names import Extent


def is_near(extent: Extent, time: int, gap: int) -> bool:
    """Return whether a row of this time belongs to the session; a pause of exactly the gap is within it.

    >>> is_near((5, 7), 12, gap=5), is_near((5, 7), 13, gap=5)
    (True, False)
    """
    return extent[0] - gap <= time <= extent[1] + gap


def extend(extents: Sequence[Extent], time: int) -> Extent:
    """Return the session that a row makes of those that it is near to, which may be none.

    >>> extend([(5, 12), (20, 20)], 16)
    (5, 20)
    >>> extend([], 16)
    (16, 16)
    """
    return min([time, *(first for first, _ in extents)]), max([time, *(last for _, last in extents)])


def merge_extents(extents: Sequence[Extent], gap: int) -> list[Extent]:
    """Return sessions, given in any order, with those that touch merged into one.

    >>> merge_extents([(16, 16), (0, 4), (20, 21)], gap=5)
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
    """Return the places of times that no pause longer than the gap separates, as lists; each in order of place.

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
