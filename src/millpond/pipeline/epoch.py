"""`timestamp=` for fields that count from the epoch (`mp.epoch_ms`, `mp.epoch_s`), and for messages that have times."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from millpond.rows.fields import read_field
from millpond.timing import EPOCH


class MessageTime:
    """The time that a message has beside its value: what `mp.message_time` is.

    >>> import millpond as mp
    >>> mp.message_time
    message_time
    """

    def __repr__(self) -> str:
        return "message_time"

    def __reduce__(self) -> str:
        return "message_time"


message_time = MessageTime()
"""`timestamp=mp.message_time`: the time of the message itself, for sources whose rows have one, such as Kafka."""


class Epoch:
    """Reads a field that counts from the epoch, as a datetime."""

    def __init__(self, field: str, unit: str, microseconds: int) -> None:
        self.field, self.unit, self.microseconds = field, unit, microseconds

    def __call__(self, row: Any) -> datetime:
        value = read_field(row, self.field)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"expected {self.field!r} to be a number of {self.unit} since 1970, got {value!r}")
        return EPOCH + timedelta(microseconds=round(value * self.microseconds))


def epoch_ms(field: str) -> Epoch:
    """Return a `timestamp=` for a field that holds milliseconds since 1970.

    >>> import millpond as mp
    >>> mp.epoch_ms("at")({"at": 1_442_113_200_000})
    datetime.datetime(2015, 9, 13, 3, 0, tzinfo=datetime.timezone.utc)
    """
    return Epoch(field, "milliseconds", 1_000)


def epoch_s(field: str) -> Epoch:
    """Return a `timestamp=` for a field that holds seconds since 1970.

    >>> import millpond as mp
    >>> mp.epoch_s("at")({"at": 1_442_113_200})
    datetime.datetime(2015, 9, 13, 3, 0, tzinfo=datetime.timezone.utc)
    """
    return Epoch(field, "seconds", 1_000_000)
