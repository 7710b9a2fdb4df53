"""Values of every kind that can be stored, and what it means that two of them are the same."""

from __future__ import annotations

import enum
from collections import namedtuple
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
from hypothesis import strategies as st


class Color(enum.Enum):
    RED = "r"
    GREEN = "g"
    CRIMSON = "r"  # an alias


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Mode(enum.StrEnum):
    FAST = "fast"


class Rights(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()
    RUN = enum.auto()


@dataclass
class Account:
    owner: str
    balance: Any = 0
    history: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Point:
    x: Any
    y: Any


@dataclass(frozen=True, slots=True)
class Slotted:
    left: Any
    right: Any = None


class Plain(msgspec.Struct):
    name: str
    value: Any = None


class Compact(msgspec.Struct, frozen=True, tag="compact", array_like=True, rename="camel"):
    first_field: Any
    second_field: Any = 2


class Pair(NamedTuple):
    left: Any
    right: Any = None


Old = namedtuple("Old", "a b")


class Outer:
    @dataclass
    class Inner:
        n: int


zones = st.one_of(
    st.none(),
    st.timezones(),
    st.integers(-86_399, 86_399).map(lambda seconds: timezone(timedelta(seconds=seconds))),
)
texts = st.one_of(st.text(), st.text().map("$".__add__), st.sampled_from(["", "null", '"$', "$tuple", "\x00\n"]))
integers = st.one_of(st.integers(), st.integers(-(10**700), 10**700))
datetimes = st.datetimes(timezones=zones, allow_imaginary=True)
members = st.sampled_from([Color.RED, Color.GREEN, Size.SMALL, Mode.FAST, Rights.READ, Rights.READ | Rights.RUN])

hashable_atoms = st.one_of(
    st.none(),
    st.booleans(),
    integers,
    st.floats(allow_nan=False),
    texts,
    st.binary(),
    st.dates(),
    st.timedeltas(),
    st.uuids(),
    st.decimals(allow_nan=False),
    members,
)
hashables = st.recursive(
    hashable_atoms,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.frozensets(inner, max_size=3),
        st.builds(Point, inner, inner),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=4,
)
atoms = st.one_of(
    hashable_atoms,
    st.floats(),
    st.decimals(),
    st.binary().map(bytearray),
    datetimes,
    st.times(timezones=st.one_of(st.none(), zones)),
)
values = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(texts, inner, max_size=4),
        st.dictionaries(hashables, inner, max_size=3),
        st.sets(hashables, max_size=4),
        st.frozensets(hashables, max_size=4),
        st.builds(Account, st.text(), inner, st.lists(inner, max_size=2)),
        st.builds(Point, inner, inner),
        st.builds(Slotted, inner, inner),
        st.builds(Plain, st.text(), inner),
        st.builds(Compact, inner, inner),
        st.builds(Pair, inner, inner),
        st.builds(Old, inner, inner),
        st.builds(Outer.Inner, st.integers()),
    ),
    max_leaves=12,
)
plain_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4)),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """Equal, and of the same exact type, at every depth; and a dict in the same order."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return repr(a) == repr(b)
    if isinstance(a, Decimal):
        return a.as_tuple() == b.as_tuple()
    if isinstance(a, (datetime, time)):
        return a.isoformat() == b.isoformat() and a.fold == b.fold and _equal_times(a, b)
    if isinstance(a, dict):
        return len(a) == len(b) and all(
            same(k1, k2) and same(v1, v2) for (k1, v1), (k2, v2) in zip(a.items(), b.items(), strict=True)
        )
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (set, frozenset)):
        return a == b and all(any(same(x, y) for y in b) for x in a)
    if is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, msgspec.Struct):
        return all(same(getattr(a, name), getattr(b, name)) for name in a.__struct_fields__)
    return bool(a == b)


def _equal_times(a: datetime | time, b: datetime | time) -> bool:
    return a == b and a.utcoffset() == b.utcoffset() and type(a.tzinfo) is type(b.tzinfo)


MIXED = {
    "none": None,
    "numbers": [1, True, 1.5, -0.0, Decimal("1.10"), 10**30],
    "tuple": (1, ("a",)),
    "keys": {1: "a", "$x": "b", (1, 2): "c"},
    "when": datetime(2024, 10, 27, 2, 30, fold=1),
    "day": date(2024, 2, 29),
    "account": Account("ada", 3, [Point(1, 2)]),
}
