"""What the writers of Avro and Protobuf share: fields of rows, checks of numbers, and the error with its path."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from millpond.errors import short_repr

_MAX_FLOAT = float.fromhex("0x1.fffffep+127")  # of 32 bits
_INFINITY = float("inf")


class Mismatch(Exception):
    """A value that a schema does not allow. The path to it grows as the error passes through fields and items."""

    def __init__(self, expected: str, got: Any, path: str = "") -> None:
        super().__init__(expected, got, path)
        self.expected, self.got, self.path = expected, got, path

    def __str__(self) -> str:
        field = f"field {self.path.removeprefix('.')!r}: " if self.path else ""
        return f"{field}expected {self.expected}, got {short_repr(self.got)} ({type(self.got).__name__})"


def as_dict(value: Any) -> dict[Any, Any] | None:
    """Return the fields of a row by their names; None if it has none.

    >>> as_dict({"n": 1}), as_dict(1)
    ({'n': 1}, None)
    """
    if isinstance(value, dict):
        return value
    if isinstance(value, msgspec.Struct):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def is_whole(value: Any, bits: int, is_signed: bool = True) -> bool:
    """Return whether a value is a whole number of so many bits. True and False are not.

    >>> is_whole(255, 8, is_signed=False), is_whole(255, 8), is_whole(True, 8)
    (True, False, False)
    """
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return -(1 << bits - 1) <= value < 1 << bits - 1 if is_signed else 0 <= value < 1 << bits


def is_double(value: Any) -> bool:
    """Return whether 64 bits hold a number exactly.

    >>> is_double(0.1), is_double(3), is_double(2**53 + 1)
    (True, True, False)
    """
    if isinstance(value, float):
        return True
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    try:
        return int(float(value)) == value
    except OverflowError:
        return False


def is_float(value: Any) -> bool:
    """Return whether 32 bits hold a number, perhaps with fewer digits.

    >>> is_float(0.1), is_float(1e300)
    (True, False)
    """
    return is_double(value) and (abs(value) <= _MAX_FLOAT or value != value or abs(value) == _INFINITY)
