"""What classes look like in stored data: a record of it tells whether the classes of now can read what was stored."""

from __future__ import annotations

import dataclasses
import enum
import typing
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from millpond.codec import user_types as kinds

Shapes = dict[str, list[str]]  # the name of a class → its fields, or the members of an enum


def shapes_of(types: Iterable[Any]) -> Shapes:
    """The shapes of all storable classes among some types, and in the annotations of their fields.

    >>> from millpond.codec.shapes import shapes_of
    >>> from typing import NamedTuple
    >>> class Point(NamedTuple):
    ...     x: int
    ...     y: int = 0
    >>> [*shapes_of([Point]).values()]
    [['x', 'y']]
    """
    return {name: _names(cls) for name, cls in sorted(kinds.reachable(types).items())}


def can_read(cls: type | None, shape: list[str]) -> bool:
    """Whether a class takes every value of a shape; a class that is gone takes none."""
    if cls is None:
        return False
    if issubclass(cls, enum.Enum):
        return set(shape) <= cls.__members__.keys()
    return _required(cls) <= set(shape)


def annotated(function: Callable[..., Any]) -> list[Any]:
    """The types in the annotations of a function; none where they cannot be resolved."""
    try:
        return list(typing.get_type_hints(function).values())
    except Exception:  # whatever resolving a forward reference of the user's may raise
        return []


def _names(cls: type) -> list[str]:
    if issubclass(cls, enum.Enum):
        return list(cls.__members__)
    if issubclass(cls, msgspec.Struct):
        return list(cls.__struct_fields__)
    if issubclass(cls, tuple):
        return list(cls._fields)  # type: ignore[attr-defined]
    return [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]


def _required(cls: type) -> set[str]:
    if issubclass(cls, msgspec.Struct):
        return {field.name for field in msgspec.structs.fields(cls) if field.required}
    if issubclass(cls, tuple):
        return set(_names(cls)) - set(getattr(cls, "_field_defaults", {}))
    missing = dataclasses.MISSING
    return {
        field.name
        for field in dataclasses.fields(cls)  # type: ignore[arg-type]
        if field.init and field.default is missing and field.default_factory is missing
    }
