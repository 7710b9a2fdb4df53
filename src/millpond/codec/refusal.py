"""Errors for values that cannot be stored or read: what it is, where it is, what to do."""

from __future__ import annotations

from typing import Any

from millpond.errors import Incompatible, InvalidUse, short_repr

MAX_DEPTH = 100
"""How deep values may be nested: enough for data, and little enough for the stack of every reader."""


class NotEncodable(InvalidUse):
    """A value, or a part of it, has a type that would not be decoded as it was encoded.

    `index` is the place of the value in a sequence that was encoded in bulk, and None for a single value.

    >>> from millpond.codec import Codec
    >>> Codec().encode({"items": [1, 2, complex(3, 4)]})
    Traceback (most recent call last):
    ...
    millpond.codec.refusal.NotEncodable: value["items"][2]: cannot store a value of type complex, here (3+4j); \
store plain values, dataclasses or msgspec Structs instead
    """

    index: int | None = None


class Unreadable(Incompatible):
    """A stored value that this program cannot read: its class is gone, or has other fields.

    >>> from millpond.codec import Codec
    >>> Codec().decode(b'{"$type":"gone:Pallet","fields":{"id":7}}')
    Traceback (most recent call last):
    ...
    millpond.codec.refusal.Unreadable: stored value: expected the type 'gone:Pallet' in this process, but no loaded \
module has it; import its module first, or name the class where the state or stream is declared (type=…)
    """


class Refused(Exception):
    """Raised inside this package with the refused part; it leaves the package as `NotEncodable`."""

    def __init__(self, culprit: Any, what: str = "", advice: str = "") -> None:
        super().__init__(what)
        self.culprit = culprit
        self.what = what or f"cannot store a value of type {type_name(type(culprit))}, here {short_repr(culprit)}"
        self.advice = advice or _advice_for(culprit)


class TooDeep(Refused):
    """The value is nested too deep; most often it contains itself."""

    def __init__(self, culprit: Any) -> None:
        what = f"cannot store what is nested more than {MAX_DEPTH} levels deep"
        super().__init__(culprit, what, "flatten it, for example into a list or a dict of its parts")


def type_name(cls: type) -> str:
    """Return the name of a type as people write it: `int`, `collections.Counter`, `shop.Order`."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _advice_for(culprit: Any) -> str:
    cls = type(culprit)
    package = cls.__module__.partition(".")[0]
    if package == "numpy":
        return "turn it into a Python value with .item(), or .tolist() for an array"
    if package == "pandas" and hasattr(culprit, "to_pydatetime"):
        return "turn it into a datetime with .to_pydatetime()"
    if package == "pyspark" and hasattr(culprit, "asDict"):
        return "turn it into a dict with .asDict(recursive=True)"
    for base in (dict, list, tuple, set, frozenset, str, bytes, bytearray, int, float):
        if issubclass(cls, base):
            return f"it would come back as a plain {base.__name__}: store {base.__name__}(…) of it instead"
    if hasattr(cls, "__iter__"):
        return "store list(…) of it instead"
    if callable(culprit):
        return "functions and classes are code, not data: store a name for it instead"
    return "store plain values, dataclasses or msgspec Structs instead"
