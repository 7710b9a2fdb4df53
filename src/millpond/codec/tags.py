"""Tags for the scalars that JSON lacks: each is an object with one "$…" key.

    {"$bytes": "AAE="}   {"$decimal": "1.10"}   {"$datetime": "2024-10-27T02:30:00+01:00", "fold": 1}

The words are part of the file format: none is ever removed or changes its meaning.
"""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec

from millpond.codec.refusal import Refused, Unreadable

Tag = dict[str, Any]

BIG_INT = 1 << 2048
"""Python and most readers refuse decimal integers of more than some hundred digits: larger ones are written in hex.
A constant of the format: keys depend on it."""


def tag_float(value: float) -> float | Tag:
    return value if isfinite(value) else {"$float": repr(value)}


def tag_int(value: int) -> int | Tag:
    return value if -BIG_INT < value < BIG_INT else {"$int": hex(value)}


def tag_timedelta(value: timedelta) -> Tag:
    return {"$timedelta": [value.days, value.seconds, value.microseconds]}


def tag_datetime(value: datetime) -> Tag:
    """Return wall time with its offset, and the name of a ZoneInfo: arithmetic and, in the repeated hour, even equality
    depend on it. Any other tzinfo becomes a fixed offset."""
    zone = value.tzinfo
    tag: Tag = {"$datetime": value}
    if zone is not None and zone is not UTC:
        tag["$datetime"] = value.isoformat()  # msgspec is ten times faster, but rounds offsets to minutes
        if type(zone) is ZoneInfo and zone.key:
            tag["zone"] = zone.key
        elif value.utcoffset() is None:
            raise Refused(value, *_NO_OFFSET)
    if value.fold:
        tag["fold"] = 1
    return tag


def tag_time(value: time) -> Tag:
    tag: Tag = {"$time": value.isoformat()}
    if value.tzinfo is not None:
        if type(value.tzinfo) is ZoneInfo and value.tzinfo.key:
            tag["zone"] = value.tzinfo.key
        elif value.utcoffset() is None:
            raise Refused(value, *_NO_OFFSET)
    if value.fold:
        tag["fold"] = 1
    return tag


def read_datetime(tag: Tag) -> datetime:
    value = datetime.fromisoformat(tag["$datetime"])
    if len(tag) == 1:
        return value
    value = value.replace(fold=tag.get("fold", 0))
    zone = find_zone(tag.get("zone"))
    if zone is None:
        return value
    # If this machine has other rules for the zone than the writer, the instant is kept.
    zoned = value.replace(tzinfo=zone)
    return zoned if zoned.utcoffset() == value.utcoffset() else value


def read_time(tag: Tag) -> time:
    value = time.fromisoformat(tag["$time"]).replace(fold=tag.get("fold", 0))
    name = tag.get("zone")
    zone = find_zone(name)
    if name is not None and zone is None:
        raise Unreadable(
            f"stored time {tag['$time']!r}: expected the time zone {name!r} on this machine, which does not "
            "have it; install the tzdata package"
        )
    return value if zone is None else value.replace(tzinfo=zone)


TAG: dict[type, Callable[[Any], Any]] = {
    bytes: lambda value: {"$bytes": value},
    bytearray: lambda value: {"$bytearray": value},
    datetime: tag_datetime,
    date: lambda value: {"$date": value},
    time: tag_time,
    timedelta: tag_timedelta,
    Decimal: lambda value: {"$decimal": value},
    UUID: lambda value: {"$uuid": value},
    msgspec.UnsetType: lambda _: {"$unset": True},
}
"""By exact type, the function that makes a scalar's tag. msgspec encodes the payload: bytes as base64, the rest as
text. Floats and ints have a tag only if JSON cannot express them, and functions of their own."""

READ: dict[str, Callable[[Tag], Any]] = {
    "$float": lambda tag: float(tag["$float"]),
    "$int": lambda tag: int(tag["$int"], 16),
    "$bytes": lambda tag: a2b_base64(tag["$bytes"], strict_mode=True),
    "$bytearray": lambda tag: bytearray(a2b_base64(tag["$bytearray"], strict_mode=True)),
    "$datetime": read_datetime,
    "$date": lambda tag: date.fromisoformat(tag["$date"]),
    "$time": read_time,
    "$timedelta": lambda tag: timedelta(*tag["$timedelta"]),
    "$decimal": lambda tag: Decimal(tag["$decimal"]),
    "$uuid": lambda tag: msgspec.convert(tag["$uuid"], UUID),
    "$unset": lambda _: msgspec.UNSET,
}
"""By word, the function that reads a tag."""

_NO_OFFSET = (
    "cannot store a time whose tzinfo gives no offset",
    "use datetime.timezone, zoneinfo.ZoneInfo or a time without tzinfo",
)


def find_zone(name: str | None) -> ZoneInfo | None:
    """Return the time zone of this name, or None if this machine does not have it."""
    if name is None:
        return None
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None
