"""Event time and durations.

A time is an aware datetime or a whole number in a unit of the user; no unit is guessed. Internally both are ticks:
microseconds since the epoch, or the whole number itself.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from millpond.errors import InvalidUse

Time = int | datetime
Duration = int | timedelta
Unit = Literal["instant", "number"]

MAX_TICKS = (1 << 63) - 1  # later than any time: the watermark at the end of the input
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
RANGE = 1 << 62  # of ticks, either way: sizes and graces can be added without an overflow
_LONGEST = 1 << 60  # duration in ticks, so that a time and several of them still fit 64 bits

_NUMBERS_SINCE_1970 = (
    'For times in seconds or milliseconds since 1970, use timestamp=mp.epoch_s("field") or mp.epoch_ms("field")'
)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def duration(value: str | int | timedelta, what: str = "duration") -> Duration:
    """Return a duration from `"500ms" "10s" "5m" "1h" "1d"`, a timedelta, or a whole number of the stream's unit.

    >>> duration("1h")
    datetime.timedelta(seconds=3600)
    >>> duration("1m30s")
    datetime.timedelta(seconds=90)
    """
    if isinstance(value, timedelta):
        found: Duration = value
    elif type(value) is int:
        found = value
    elif isinstance(value, str) and _DURATION_PART.sub("", value.strip()) == "" and value.strip():
        found = timedelta(seconds=min(sum(float(n) * _UNITS[unit] for n, unit in _DURATION_PART.findall(value)), 1e13))
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
    """Return a duration of the clock in seconds; a plain number is seconds already."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    found = duration(value, what)
    return float(found) if isinstance(found, int) else found.total_seconds()


def as_time(value: Any) -> Time:
    """Return the time in a row's field; raise a ValueError that says what is wrong with it."""
    if type(value) is int:
        return value
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(f"expected an ISO-8601 time, got {value!r}") from None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(
                f"expected a time with a time zone, got the naive {value!r}. Add its zone where the time is made: "
                'value.replace(tzinfo=datetime.UTC), or an offset such as "Z" at the end of the text'
            )
        return value.astimezone(UTC)
    remedy = f". {_NUMBERS_SINCE_1970}" if isinstance(value, float) else ""
    raise ValueError(f"expected a time (datetime, ISO-8601 text or whole number), got {value!r}{remedy}")


def unit_of(time: Time) -> Unit:
    """Return the unit of a time."""
    return "number" if isinstance(time, int) else "instant"


def ticks(time: Time) -> int:
    """Return a time as ticks: microseconds since the epoch, or the number itself."""
    if isinstance(time, int):
        if not -RANGE < time < RANGE:
            raise ValueError(f"expected a whole number below 2**62, got {time}")
        return time
    return (time - EPOCH) // MICROSECOND


def as_user(at: int, unit: Unit) -> Time:
    """Return ticks as a time of the user. Clamped to `datetime.min` and `datetime.max`."""
    if unit == "number":
        return at
    try:
        return EPOCH + timedelta(microseconds=at)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC) if at > 0 else datetime.min.replace(tzinfo=UTC)


def difference(ticks: int, unit: Unit) -> Duration:
    """Return a difference of ticks as a duration of the user."""
    return ticks if unit == "number" else timedelta(microseconds=ticks)


def span(duration: Duration, unit: Unit, what: str) -> int:
    """Return a duration in ticks. A whole number fits whole numbers, a timedelta fits instants, and zero fits both."""
    if not duration:
        return 0
    if isinstance(duration, int) is not (unit == "number"):
        raise InvalidUse(
            f"{what}: the stream's times are whole numbers, so expected a whole number of that unit, got {duration!r}. "
            f"{_NUMBERS_SINCE_1970}"
            if unit == "number"
            else f'{what}: the stream\'s times are datetimes, so expected a duration such as "10s", got {duration!r}'
        )
    return duration if isinstance(duration, int) else duration // MICROSECOND
