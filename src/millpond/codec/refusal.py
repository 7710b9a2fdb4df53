"""What cannot be stored is refused in words: what it is, where it stands, what to do."""

from __future__ import annotations

from typing import Any

from millpond.errors import Incompatible, InvalidUse

MAX_DEPTH = 100
"""How deep values may be nested: deep enough for data, shallow enough that no reader's stack overflows."""


class NotEncodable(InvalidUse):
    """A value, or something inside it, is of a type that would not come back as it went in.

    `index` is the place of the value in the sequence that was encoded in bulk, `None` for a single one.

    >>> from millpond.codec import Codec
    >>> Codec().encode({"items": [1, 2, complex(3, 4)]})
    Traceback (most recent call last):
    ...
    millpond.codec.refusal.NotEncodable: value["items"][2]: cannot store a complex, here (3+4j); \
store plain values, dataclasses or msgspec Structs instead
    """

    index: int | None = None


class Unreadable(Incompatible):
    """A stored value that this program cannot make a value of: its class is gone, or expects other fields.

    >>> from millpond.codec import Codec
    >>> Codec().decode(b'{"$type":"gone:Pallet","fields":{"id":7}}')
    Traceback (most recent call last):
    ...
    millpond.codec.refusal.Unreadable: stored value: expected the type 'gone:Pallet' in this process, but no loaded \
module has it; import its module first, or name the class where the state or stream is declared (type=…)
    """


class Refused(Exception):
    """The culprit as it was found, on its way up; it leaves this package as `NotEncodable` only."""

    def __init__(self, culprit: Any, what: str = "", advice: str = "") -> None:
        super().__init__(what)
        self.culprit = culprit
        self.what = what or f"cannot store a {type_name(type(culprit))}, here {short(culprit)}"
        self.advice = advice or _advice(culprit)


class TooDeep(Refused):
    """Nested too deep, which is most often a value that contains itself."""

    def __init__(self, culprit: Any) -> None:
        what = f"cannot store what is nested more than {MAX_DEPTH} levels deep"
        super().__init__(culprit, what, "flatten it, for example into a list or a dict of its parts")


def type_name(cls: type) -> str:
    """A type as a person would write it: `int`, `collections.Counter`, `shop.Order`."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def short(value: Any, limit: int = 80) -> str:
    """A repr that fits into a message and never raises."""
    try:
        text = repr(value)
    except Exception:
        return f"<{type_name(type(value))} without a repr>"
    return text if len(text) <= limit else text[:limit] + "…"


def _advice(culprit: Any) -> str:
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
