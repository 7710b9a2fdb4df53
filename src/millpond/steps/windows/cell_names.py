"""The names of windows in the state: readable, and sorted as their times.

    w:2030-01-01T10:00:00.000000Z/2030-01-01T10:05:00.000000Z     [start, end) of instants
    w:0000000000000000100/0000000000000000110                     [start, end) of whole numbers
    s:…/…                                                         a session: its last time, then its first
    t:…                                                           the rows of one time, for sliding windows
    g:                                                            the one global window

A negative number n is written as a minus and 10**19 + n, so that it sorts before the others.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

from millpond.timing import EPOCH, MICROSECOND, Unit

_ALL = 10**19
_FIRST, _LAST = (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))
_BOUNDS = ((_FIRST - EPOCH) // MICROSECOND, (_LAST - EPOCH) // MICROSECOND)

Extent = tuple[int, int]  # start and end of a window, in ticks

GLOBAL = b"g:"


@lru_cache(maxsize=65536)
def text_of(at: int, unit: Unit) -> bytes:
    """Return a time as text that sorts as the times do.

    >>> text_of(101, "number"), text_of(-1, "number"), text_of(0, "instant")
    (b'0000000000000000101', b'-9999999999999999999', b'1970-01-01T00:00:00.000000Z')
    """
    if unit == "number":
        return b"%019d" % at if at >= 0 else b"-%019d" % (_ALL + at)
    at = min(max(at, _BOUNDS[0]), _BOUNDS[1])  # no row has a time beyond
    return (EPOCH + timedelta(microseconds=at)).isoformat(timespec="microseconds")[:26].encode() + b"Z"


@lru_cache(maxsize=65536)
def time_of(text: bytes) -> tuple[int, Unit]:
    """Return the time that a text stands for, and its unit.

    >>> time_of(text_of(-7, "number"))
    (-7, 'number')
    """
    if text.endswith(b"Z"):
        return (datetime.fromisoformat(text.decode()) - EPOCH) // MICROSECOND, "instant"
    return (int(text), "number") if text[:1] != b"-" else (int(text[1:]) - _ALL, "number")


@lru_cache(maxsize=65536)
def window_cell(start: int, end: int, unit: Unit) -> bytes:
    """Return the name of a window `[start, end)`."""
    return b"w:" + text_of(start, unit) + b"/" + text_of(end, unit)


def session_cell(start: int, end: int, unit: Unit) -> bytes:
    """Return the name of a session: the last time comes first, so that those that end after a time are neighbours."""
    return b"s:" + text_of(end, unit) + b"/" + text_of(start, unit)


def time_cell(at: int, unit: Unit) -> bytes:
    """Return the name of the rows of one time."""
    return b"t:" + text_of(at, unit)


@lru_cache(maxsize=65536)
def extent_of(cell: bytes) -> tuple[int, int, Unit]:
    """Return start, end and unit of the window or session that a cell names."""
    first, _, second = cell[2:].partition(b"/")
    (a, unit), (b, _) = time_of(first), time_of(second)
    return (b, a, unit) if cell[:1] == b"s" else (a, b, unit)
