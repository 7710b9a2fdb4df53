"""Which windows hold a time, and when they close: whole numbers to whole numbers."""

from __future__ import annotations


def starts_of(time: int, size: int, every: int, offset: int = 0) -> range:
    """The starts of the hopping windows `[start, start + size)` that hold a time, oldest first.

    >>> [(start, start + 20) for start in starts_of(29, 20, 5)]
    [(10, 30), (15, 35), (20, 40), (25, 45)]
    >>> list(starts_of(-1, 10, 10))
    [-10]
    """
    newest = (time - offset) // every * every + offset
    oldest = ((time - size - offset) // every + 1) * every + offset
    return range(oldest, newest + 1, every)


def closing(end: int, grace: int) -> int:
    """The watermark at which a window `[start, end)` closes.

    >>> closing(110, 2)
    112
    """
    return end + grace


def closing_inclusive(end: int, reach: int) -> int:
    """The watermark at which a window `[start, end]` closes: the first beyond its end and what it waits for.

    >>> closing_inclusive(21, 0)
    22
    """
    return end + reach + 1


def places_of(nth: int, size: int, every: int) -> range:
    """The starts of the windows of `size` rows, a new one every so many, that hold the nth row, counted from 0.

    >>> list(places_of(3, 4, 2))
    [0, 2]
    """
    return range(max(0, (nth - size) // every + 1) * every, nth + 1, every)
