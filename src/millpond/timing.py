"""Event time: what counts as a time, and what counts as a duration.

A time is an aware datetime or a whole number of whatever unit the user has; nothing guesses. Inside, both
are ticks: microseconds since the epoch, or the whole number itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import numpy as np

from millpond.errors import InvalidUse

Time = int | datetime
Duration = int | timedelta
Unit = Literal["instant", "number"]

MAX_TICKS = (1 << 63) - 1  # later than any time: the watermark at the end of the input
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
_RANGE = 1 << 62  # of ticks either way: sizes and graces can be added without an overflow
_LONGEST = 1 << 60  # duration in ticks, so that a time and several of them still fit 64 bits

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def duration(value: str | int | timedelta, what: str = "duration") -> Duration:
    """A duration from `"500ms" "10s" "5m" "1h" "1d"`, a timedelta, or a whole number of the stream's unit.

    >>> duration("1h")
    datetime.timedelta(seconds=3600)
    >>> duration("1m30s")
    datetime.timedelta(seconds=90)
    """
    if isinstance(value, timedelta):
        found: Duration = value
    elif type(value) is int:
        found = value
    elif isinstance(value, str) and _PART.sub("", value.strip()) == "" and value.strip():
        found = timedelta(seconds=min(sum(float(n) * _UNITS[unit] for n, unit in _PART.findall(value)), 1e13))
    else:
        raise InvalidUse(
            f'{what}: expected a duration such as "10s", "5m", a timedelta or a whole number, got {value!r}'
        )
    length = found if isinstance(found, int) else found // MICROSECOND
    if length < 0:
        raise InvalidUse(f"{what}: expected a duration that is not negative, got {value!r}")
    if length >= _LONGEST:
        raise InvalidUse(
            f"{what}: expected a duration of less than 2**60 (of times that are datetimes: of microseconds), "
            f"got {value!r}; use a shorter one"
        )
    return found


def seconds(value: str | int | float | timedelta, what: str = "duration") -> float:
    """A duration of the clock, in seconds."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    found = duration(value, what)
    return float(found) if isinstance(found, int) else found.total_seconds()


def as_time(value: Any) -> Time:
    """The time that a row's field holds, or a ValueError that says what is wrong with it."""
    if type(value) is int:
        return value
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(f"expected an ISO-8601 time, got {value!r}") from None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"expected a time with a time zone, got the naive {value!r}")
        return value.astimezone(UTC)
    raise ValueError(f"expected a time (datetime, ISO-8601 text or whole number), got {value!r}")


def unit_of(time: Time) -> Unit:
    """What a time is measured in."""
    return "number" if isinstance(time, int) else "instant"


def ticks(time: Time) -> int:
    """A time as one whole number: microseconds since the epoch, or the number itself."""
    if isinstance(time, int):
        if not -_RANGE < time < _RANGE:
            raise ValueError(f"expected a whole number below 2**62, got {time}")
        return time
    return (time - EPOCH) // MICROSECOND


def as_user(at: int, unit: Unit) -> Time:
    """Ticks as the user knows them; what no datetime can hold becomes the nearest that one can."""
    if unit == "number":
        return at
    try:
        return EPOCH + timedelta(microseconds=at)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC) if at > 0 else datetime.min.replace(tzinfo=UTC)


def difference(of: int, unit: Unit) -> Duration:
    """A difference of ticks as the user knows it."""
    return of if unit == "number" else timedelta(microseconds=of)


def span(of: Duration, unit: Unit, what: str) -> int:
    """A duration in ticks. A whole number fits whole numbers and a timedelta fits instants; zero fits both."""
    if not of:
        return 0
    if isinstance(of, int) is not (unit == "number"):
        raise InvalidUse(
            f"{what}: the stream's times are whole numbers, so expected a whole number of the same unit, got {of!r}"
            if unit == "number"
            else f'{what}: the stream\'s times are datetimes, so expected a duration such as "10s", got {of!r}'
        )
    return of if isinstance(of, int) else of // MICROSECOND


class Times:
    """The event times of some rows, as ticks of one unit."""

    __slots__ = ("unit", "values")

    def __init__(self, values: Any, unit: Unit) -> None:
        self.values: np.ndarray[Any, Any] = np.asarray(values, dtype=np.int64)
        self.unit: Unit = unit

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, row: int) -> Time:
        return as_user(int(self.values[row]), self.unit)

    def pick(self, rows: Sequence[int] | np.ndarray[Any, Any]) -> Times:
        return Times(self.values[np.asarray(rows, dtype=np.int64)], self.unit)
