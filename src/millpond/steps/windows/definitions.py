"""The kinds of windows, as the user names them.

tumbling    |--------|--------|--------|      [start, end), one after the other
hopping     |--------|                        [start, end), a new one every so often
                |--------|
session     |-x--x-x-|       |-x-|            from a first row to a last, parted by gaps
sliding     [--------x]                       one for each distinct time, back from it, both ends included
               [--------x]
global      |------------------------- …      one, for ever
count       |x x x|x x x|                     by the number of rows, in the order of arrival
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from millpond.errors import InvalidUse
from millpond.timing import Duration, duration

NO_GRACE: int = 0
"""A `grace=` of zero: a window closes when the watermark reaches its end, and rows that come later are late.

>>> import millpond as mp
>>> visits = mp.App("a").stream("visits", mp.sources.rows([]), timestamp="at").key_by("user")
>>> per_minute = visits.window("per-minute", mp.tumbling("1m"), grace=mp.NO_GRACE)
"""


@dataclass(frozen=True, repr=False)
class Window:
    """A definition of windows. Each kind says what its windows are like."""

    kind: ClassVar[str]  # stored in the ledger: never change one
    is_timed: ClassVar[bool] = True  # they begin and end by event time, and need a grace
    is_merged: ClassVar[bool] = False  # they are merged from parts, so their aggregations must be able to merge
    is_on_grid: ClassVar[bool] = False  # they are at fixed places on the time line
    is_by_rows: ClassVar[bool] = False  # they begin and end by the number of rows

    label: str

    def __repr__(self) -> str:
        return self.label

    @property
    def length(self) -> Duration:
        """The duration that defines the windows; 0 if none does."""
        return 0

    @property
    def pause(self) -> Duration:
        """How long a window stays open after its last row, before the grace begins."""
        return 0

    @property
    def stored_size(self) -> Duration | None:
        """The size that stored state fits, None if it fits any."""
        return None


@dataclass(frozen=True, repr=False)
class Hopping(Window):
    """`[start, end)` of one size, a new one after each `every`; tumbling if that is the size."""

    kind = "hopping"
    is_on_grid = True

    size: Duration
    every: Duration
    offset: Duration = 0

    @property
    def length(self) -> Duration:
        return self.size


@dataclass(frozen=True, repr=False)
class Session(Window):
    """From a first row to a last one, with no pause longer than the gap between two rows."""

    kind = "session"
    is_merged = True

    gap: Duration

    @property
    def length(self) -> Duration:
        return self.gap

    @property
    def pause(self) -> Duration:
        return self.gap


@dataclass(frozen=True, repr=False)
class Sliding(Window):
    """`[t - size, t]` for each distinct time t."""

    kind = "sliding"
    is_merged = True

    size: Duration

    @property
    def length(self) -> Duration:
        return self.size

    @property
    def stored_size(self) -> Duration:
        return self.size


@dataclass(frozen=True, repr=False)
class Global(Window):
    """One window that never ends."""

    kind = "global"
    is_timed = False


@dataclass(frozen=True, repr=False)
class Counting(Window):
    """`size` rows of a key, in the order of arrival; a new one every `every` rows."""

    kind = "counting"
    is_timed = False
    is_by_rows = True

    size: int
    every: int


def tumbling(size: str | int | timedelta, offset: str | int | timedelta = 0) -> Hopping:
    """Windows of one size, one after the other: `[start, end)`. They start at multiples of the size, plus `offset`.

    >>> import millpond as mp
    >>> mp.tumbling("1d", offset="6h")
    mp.tumbling('1d', offset='6h')
    """
    shown = f"mp.tumbling({size!r}{f', offset={offset!r}' if offset else ''})"
    length = _positive(size, "tumbling(size)")
    return Hopping(shown, length, length, _offset(offset, length, "tumbling(offset)"))


def hopping(size: str | int | timedelta, every: str | int | timedelta, offset: str | int | timedelta = 0) -> Hopping:
    """Windows of one size that start at each multiple of `every`: `[start, end)`. They overlap; a row is in several.

    >>> import millpond as mp
    >>> mp.hopping("1h", every="10m")
    mp.hopping('1h', every='10m')
    """
    shown = f"mp.hopping({size!r}, every={every!r}{f', offset={offset!r}' if offset else ''})"
    length, hop = _positive(size, "hopping(size)"), _positive(every, "hopping(every)")
    _check_same_unit(hop, length, "hopping(every)")
    if hop > length:  # type: ignore[operator]
        raise InvalidUse(
            f"hopping(every): expected a hop that is not larger than the size {size!r}, got {every!r}; rows "
            "between two windows would belong to none. Make the size at least the hop."
        )
    return Hopping(shown, length, hop, _offset(offset, hop, "hopping(offset)"))


def session(gap: str | int | timedelta) -> Session:
    """Windows from a first row to a last one, ended by a pause longer than `gap`; a pause of exactly the gap is within.

    A row that comes late and is between two sessions, near both, merges them.

    >>> import millpond as mp
    >>> mp.session("30m")
    mp.session('30m')
    """
    return Session(f"mp.session({gap!r})", _positive(gap, "session(gap)"))


def sliding(size: str | int | timedelta) -> Sliding:
    """Return a window `[t - size, t]`, both ends included, for each distinct time t of a row.

    >>> import millpond as mp
    >>> mp.sliding("10m")
    mp.sliding('10m')
    """
    return Sliding(f"mp.sliding({size!r})", _positive(size, "sliding(size)"))


def global_window() -> Global:
    """One window for all rows of a key. It closes only at the end of the input, so it usually needs a trigger.

    >>> import millpond as mp
    >>> mp.global_window()
    mp.global_window()
    """
    return Global("mp.global_window()")


def count_tumbling(n: int) -> Counting:
    """Windows of n rows of a key, one after the other, in the order of arrival.

    `window_start` and `window_end` say which rows of the key: the first is number 0, the end is not included.

    >>> import millpond as mp
    >>> mp.count_tumbling(100)
    mp.count_tumbling(100)
    """
    return Counting(f"mp.count_tumbling({n!r})", _check_row_count(n, "count_tumbling(n)"), n)


def count_hopping(n: int, every: int) -> Counting:
    """Windows of n rows of a key, a new one every `every` rows.

    >>> import millpond as mp
    >>> mp.count_hopping(100, every=10)
    mp.count_hopping(100, every=10)
    """
    size, hop = _check_row_count(n, "count_hopping(n)"), _check_row_count(every, "count_hopping(every)")
    if hop > size:
        raise InvalidUse(
            f"count_hopping(every): expected a hop that is not larger than the size {n}, got {every}; between two "
            "windows there would be rows that belong to none"
        )
    return Counting(f"mp.count_hopping({n!r}, every={every!r})", size, hop)


def count_sliding(n: int) -> Counting:
    """Windows of n rows of a key, a new one with every row: from the n-th row on, the last n rows.

    >>> import millpond as mp
    >>> mp.count_sliding(3)
    mp.count_sliding(3)
    """
    return Counting(f"mp.count_sliding({n!r})", _check_row_count(n, "count_sliding(n)"), 1)


class _Missing:
    """A `grace=` that was not given."""


MISSING: Any = _Missing()


def check_grace(grace: Any, window: Window, where: str) -> Duration:
    """Return the grace of a window. Windows by time need one, others must have none."""
    if not window.is_timed:
        if grace is not MISSING:
            raise InvalidUse(
                f"{where}: {window!r} does not go by time, so it takes no grace, got grace={grace!r}; leave it out"
            )
        return 0
    if grace is MISSING or grace is None:
        raise InvalidUse(
            f'{where}: expected grace=, how long to wait for late rows before a window closes, for example "10s"; '
            "what comes later is late. To wait for none, give grace=mp.NO_GRACE"
        )
    found = duration(grace, f"{where}, grace")
    if found:
        _check_same_unit(found, window.length, f"{where}, grace")
    return found


def _positive(value: Any, what: str) -> Duration:
    found = duration(value, what)
    if not found:
        raise InvalidUse(f"{what}: expected a duration longer than zero, got {value!r}")
    return found


def _check_same_unit(found: Duration, size: Duration, what: str) -> None:
    if isinstance(found, int) is not isinstance(size, int):
        raise InvalidUse(
            f"{what}: expected {'a whole number' if isinstance(size, int) else 'a duration'} as the window's size "
            f"is, {size!r}, got {found!r}"
        )


def _offset(value: Any, every: Duration, what: str) -> Duration:
    found = duration(value, what)
    if found:
        _check_same_unit(found, every, what)
        if found >= every:  # type: ignore[operator]
            raise InvalidUse(
                f"{what}: expected less than the {every!r} from one window to the next, got {value!r}; "
                "a whole multiple of it changes nothing"
            )
    return found


def _check_row_count(n: Any, what: str) -> int:
    if type(n) is not int or n < 1:
        raise InvalidUse(f"{what}: expected a number of rows, 1 or more, got {n!r}")
    return n
