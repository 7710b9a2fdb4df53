"""What all planning of splits shares: the request, the sizes, and ranges of nearly one size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from millpond.sources.base import Limit

SMALLEST_SPLIT = 1 << 20
LARGEST_SPLIT = 64 << 20
WANTED_SPLITS = 4

EXACT_BELOW = 1_000
"""A smaller limit of rows is kept exactly: such limits are set to look at single rows."""

ONLY_PLACE = "0"  # of a source that has one place

CHUNK_ROWS = 50_000  # of objects or lines
TABLE_ROWS = 100_000  # of a table, whose rows take less memory
CHUNK_BYTES = 8 << 20


@dataclass(frozen=True)
class SplitRequest:
    """What a plan is asked for: the arguments of `Source.plan`, or those of `Source.plan_to` if `end` is given."""

    position: Mapping[str, Any]
    limit: Limit
    end: Mapping[str, Any] | None = None
    now: float = 0.0


@dataclass(frozen=True)
class SplitSizes:
    """The bytes of a split: at least `smallest` unless a file is smaller, and at most `largest`."""

    smallest: int = SMALLEST_SPLIT
    largest: int = LARGEST_SPLIT


DEFAULT_SIZES = SplitSizes()


def cut_range(
    start: int,
    stop: int,
    *,
    pieces: int = WANTED_SPLITS,
    smallest: int = SMALLEST_SPLIT,
    largest: int = LARGEST_SPLIT,
) -> list[tuple[int, int]]:
    """Cut [start, stop) into ranges of nearly one size that follow each other without a gap.

    There are at most `pieces`, fewer if one would be smaller than `smallest`, and more only if one would be larger
    than `largest`.

    >>> cut_range(0, 10, pieces=4, smallest=1, largest=100)
    [(0, 2), (2, 5), (5, 7), (7, 10)]
    >>> cut_range(0, 10, pieces=4, smallest=6, largest=100)
    [(0, 10)]
    >>> cut_range(5, 5)
    []
    """
    size = stop - start
    if size <= 0:
        return []
    count = max(min(pieces, size // smallest), -(-size // largest), 1)
    bounds = [start + size * i // count for i in range(count + 1)]
    return list(pairwise(bounds))
