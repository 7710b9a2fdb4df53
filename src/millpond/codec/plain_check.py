"""Checks the types of many values at once: whether msgspec can encode them without tags."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import isfinite
from typing import Any

from millpond.codec.refusal import MAX_DEPTH

_PLAIN_TYPES = frozenset({str, int, bool, type(None), float, dict, list})
_CONTAINER_TYPES = frozenset({dict, list})
_TEXT_ONLY = frozenset({str})


class Survey:
    """The result for values that are all plain: their floats and their dicts, by level."""

    __slots__ = ("dicts", "floats")

    def __init__(self) -> None:
        self.floats: list[Sequence[Any]] = []
        self.dicts: list[Sequence[dict[str, Any]]] = []

    def has_infinite(self) -> bool:
        """Return whether a float is nan or infinite."""
        return any(not all(map(isfinite, [value for value in level if type(value) is float])) for level in self.floats)

    def has_tag_like(self) -> bool:
        """Return whether a key begins with "$"."""
        return any(key[:1] == "$" for dicts in self.dicts for key in set(chain.from_iterable(dicts)))


def survey_of(values: Sequence[Any]) -> Survey | None:
    """Check the types of all values and their parts, a level at a time; return None if one is not plain.

    Whole levels are handled by loops in C, which makes bulk encoding fast. Values whose levels keep growing may contain
    themselves: None leaves them to the slow path, which follows one branch at a time.
    """
    survey = Survey()
    levels: list[Sequence[Any]] = []
    seen, enough = 0, 10_000 + 50 * len(values)
    for _ in range(MAX_DEPTH + 1):
        types = set(map(type, values))
        if not types <= _PLAIN_TYPES:
            return None
        if float in types:
            survey.floats.append(values)
        if dict not in types and list not in types:
            return survey
        dicts, lists = _split_containers(values, types)
        if not _TEXT_ONLY.issuperset(map(type, chain.from_iterable(dicts))):
            return None
        survey.dicts.append(dicts)
        levels += dicts, lists
        seen += len(values)
        if seen > enough:
            if _share_containers(levels):
                return None
            enough = 4 * seen
        values = list(chain.from_iterable(map(dict.values, dicts)))
        values.extend(chain.from_iterable(lists))
    return None


def _share_containers(levels: list[Sequence[Any]]) -> bool:
    """Return whether one object is on two levels, as in a value that contains itself or shares a part."""
    above: set[int] = set()
    for level in levels:
        ids = set(map(id, level))
        if not ids.isdisjoint(above):
            return True
        above |= ids
    return False


def _split_containers(values: Sequence[Any], types: set[type]) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return the dicts and the lists among values of these types."""
    if not types <= _CONTAINER_TYPES:
        types = types & _CONTAINER_TYPES
        if not types:
            return (), ()
        values = [value for value in values if type(value) in _CONTAINER_TYPES]
    if len(types) == 1:
        return (values, ()) if dict in types else ((), values)
    return [v for v in values if type(v) is dict], [v for v in values if type(v) is list]
