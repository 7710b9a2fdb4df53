"""Event time: what counts as a time, and what counts as a duration.

A time is an aware datetime or a whole number of whatever unit the user has; nothing guesses.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from millpond.errors import InvalidUse

Time = int | datetime
Duration = int | timedelta

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
        found = timedelta(seconds=sum(float(n) * _UNITS[unit] for n, unit in _PART.findall(value)))
    else:
        raise InvalidUse(
            f'{what}: expected a duration such as "10s", "5m", a timedelta or a whole number, got {value!r}'
        )
    if (found if isinstance(found, int) else found.total_seconds()) < 0:
        raise InvalidUse(f"{what}: expected a duration that is not negative, got {value!r}")
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
