"""Independent copies of values: a change of one is not seen in the other."""

from __future__ import annotations

import enum
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from millpond.codec.locate import explain
from millpond.codec.refusal import Refused, TooDeep
from millpond.codec.user_types import record_type_of

IMMUTABLE: frozenset[type] = frozenset(
    {int, float, str, bool, type(None), bytes, datetime, date, time, timedelta, Decimal, UUID}
)
"""The exact types whose values never need a copy."""


def copy_value(value: Any) -> Any:
    """Return a copy of any value that can be encoded; it shares no mutable part with the value.

    Immutable scalars, enum members and tuples of them are returned, not copied. Keys of dicts and members of
    sets are hashable and taken as immutable. A Struct's `__post_init__` does not run. Raises `NotEncodable`
    for a value that cannot be encoded.

    >>> from millpond.codec import copy_value
    >>> row = {"id": 7, "tags": ["new"]}
    >>> other = copy_value(row)
    >>> other["tags"].append("paid")
    >>> row
    {'id': 7, 'tags': ['new']}
    """
    cls = type(value)
    if cls in IMMUTABLE:
        return value
    try:
        return _COPIERS[cls](value)
    except Refused as refused:
        raise explain(refused, value) from None
    except RecursionError:
        raise explain(TooDeep(value), value) from None


def _copy_dict(value: dict[Any, Any]) -> dict[Any, Any]:
    made = value.copy()
    if not IMMUTABLE.issuperset(map(type, made.values())):
        for key, item in made.items():
            if type(item) not in IMMUTABLE:
                made[key] = _COPIERS[type(item)](item)
    return made


def _copy_list(value: list[Any]) -> list[Any]:
    if IMMUTABLE.issuperset(map(type, value)):
        return value.copy()
    return [item if type(item) in IMMUTABLE else _COPIERS[type(item)](item) for item in value]


def _copy_tuple(value: tuple[Any, ...]) -> tuple[Any, ...]:
    if IMMUTABLE.issuperset(map(type, value)):
        return value
    return tuple(_copy_list(list(value)))


def _share(value: Any) -> Any:
    return value


def _refuse_copy(value: Any) -> Any:
    raise Refused(value)


def _record_copier(cls: type) -> Callable[[Any], Any] | None:
    record = record_type_of(cls)
    if record is None:
        return None
    take, replica = record.take, record.replica
    return lambda value: replica(value, _copy_dict(take(value)))


class _Copiers(dict[type, Callable[[Any], Any]]):
    def __missing__(self, cls: type) -> Callable[[Any], Any]:
        copier = _share if issubclass(cls, enum.Enum) else _record_copier(cls)
        if copier is None:
            return _refuse_copy
        self[cls] = copier
        return copier


_COPIERS = _Copiers()
_COPIERS.update({dict: _copy_dict, list: _copy_list, tuple: _copy_tuple, set: set, bytearray: bytearray})
_COPIERS.update({frozenset: _share, msgspec.UnsetType: _share})
