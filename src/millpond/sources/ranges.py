"""How much to read in one batch and how to share it out, as arithmetic."""

from __future__ import annotations

from itertools import pairwise

SMALLEST_SPLIT = 1 << 20
LARGEST_SPLIT = 64 << 20
WANTED_SPLITS = 4

EXACT_BELOW = 1_000
"""A limit of fewer rows than this is kept to the row: such limits are set to look at single rows."""

CHUNK_ROWS = 50_000
CHUNK_BYTES = 8 << 20


def cut(
    start: int,
    stop: int,
    *,
    pieces: int = WANTED_SPLITS,
    smallest: int = SMALLEST_SPLIT,
    largest: int = LARGEST_SPLIT,
) -> list[tuple[int, int]]:
    """[start, stop) in ranges of nearly one size that follow each other without a gap.

    As many as `pieces` where none gets smaller than `smallest` by it, and more only so that none is
    larger than `largest`.

    >>> cut(0, 10, pieces=4, smallest=1, largest=100)
    [(0, 2), (2, 5), (5, 7), (7, 10)]
    >>> cut(0, 10, pieces=4, smallest=6, largest=100)
    [(0, 10)]
    >>> cut(5, 5)
    []
    """
    size = stop - start
    if size <= 0:
        return []
    count = max(min(pieces, size // smallest), -(-size // largest), 1)
    bounds = [start + size * i // count for i in range(count + 1)]
    return list(pairwise(bounds))


def share(part: int, total: int, pieces: int = WANTED_SPLITS) -> int:
    """How many of a plan's pieces belong to one file that has `part` of its `total`, at least one.

    >>> share(3, 9), share(1, 100), share(9, 9)
    (2, 1, 4)
    """
    return max(1, -(-pieces * part // max(total, 1)))
