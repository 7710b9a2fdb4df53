"""The shapes of classes in stored data. The log records them, to know whether the present classes can read it."""

from __future__ import annotations

import dataclasses
import enum
import typing
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from millpond.codec import user_types

Shapes = dict[str, list[str]]  # the name of a class → its fields, or the members of an enum


def shapes_of(types: Iterable[Any]) -> Shapes:
    """Return the shapes of all storable classes among some types and in the annotations of their fields.

    >>> from millpond.codec.shapes import shapes_of
    >>> from typing import NamedTuple
    >>> class Point(NamedTuple):
    ...     x: int
    ...     y: int = 0
    >>> [*shapes_of([Point]).values()]
    [['x', 'y']]
    """
    return {name: _names(cls) for name, cls in sorted(user_types.reachable_types(types).items())}


def can_read_shape(cls: type | None, shape: list[str]) -> bool:
    """Return whether a class can read every value of a shape; False if the class is gone."""
    if cls is None:
        return False
    if issubclass(cls, enum.Enum):
        return set(shape) <= cls.__members__.keys()
    return _required_fields(cls) <= set(shape)


def annotation_types(function: Callable[..., Any]) -> list[Any]:
    """Return the types in the annotations of a function; an empty list if they cannot be resolved."""
    try:
        return list(typing.get_type_hints(function).values())
    except Exception:  # resolving a forward reference may raise anything
        return []


def _names(cls: type) -> list[str]:
    if issubclass(cls, enum.Enum):
        return list(cls.__members__)
    if issubclass(cls, msgspec.Struct):
        return list(cls.__struct_fields__)
    if issubclass(cls, tuple):
        return list(cls._fields)  # type: ignore[attr-defined]
    return [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]


def _required_fields(cls: type) -> set[str]:
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
