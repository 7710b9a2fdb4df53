"""Converts any value to a tree of plain JSON and tags: the slow way, for values that JSON cannot express."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Any

from millpond.codec import user_types
from millpond.codec.refusal import MAX_DEPTH, Refused, TooDeep
from millpond.codec.tags import TAG, Tag, tag_float, tag_int

AS_IS = frozenset({str, int, bool, type(None)})
"""The exact types that JSON expresses without a check of the value."""


def tree_of(value: Any) -> Any:
    """Return the value with tags for what JSON lacks. Raises `Refused` with the part that cannot be stored.

    The tree shares the parts that need no tag with the value, so it must not be changed.
    """
    return TAGGERS[type(value)](value, 1)


Tagger = Callable[[Any, int], Any]


class _Taggers(dict[type, Tagger]):
    """By exact type, the function that tags a value; the users' types are added when they first occur."""

    def __missing__(self, cls: type) -> Tagger:
        record = user_types.record_type_of(cls)
        if record is not None:
            tagger = _record_tagger(user_types.remember_type(cls), record)
        elif issubclass(cls, enum.Enum):
            tagger = _enum_tagger(user_types.remember_type(cls), is_flag=issubclass(cls, enum.Flag))
        else:
            return _refuse_value
        self[cls] = tagger
        return tagger


def name_program_module(name: str, path: str | None) -> None:
    """Declare that a module is a program file, which changes the stored names of its classes."""
    if name not in user_types.program_modules():
        for cls in [cls for cls in TAGGERS if cls.__module__ == name]:
            del TAGGERS[cls]
    user_types.add_program_module(name, path)


def _refuse_value(value: Any, depth: int) -> Any:
    raise Refused(value)


def _scalar_tagger(tag: Callable[[Any], Any]) -> Tagger:
    return lambda value, depth: tag(value)


def _record_tagger(name: str, record: user_types.RecordType) -> Tagger:
    take = record.take

    def tag_record(value: Any, depth: int) -> Tag:
        if depth > MAX_DEPTH:
            raise TooDeep(value)
        fields = take(value)
        for field, item in fields.items():
            cls = type(item)
            if cls not in AS_IS:
                fields[field] = TAGGERS[cls](item, depth + 1)
        return {"$type": name, "fields": fields}

    return tag_record


def _enum_tagger(name: str, is_flag: bool) -> Tagger:
    if is_flag:  # a flag may combine members and then has no name
        return lambda value, depth: {"$enum": name, "value": value.value}
    return lambda value, depth: {"$enum": name, "name": value.name}


def _tag_dict(value: dict[Any, Any], depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise TooDeep(value)
    tree = {}
    for key, item in value.items():
        if type(key) is not str or key[:1] == "$":
            return {"$dict": [_tag_items(pair, depth + 1) for pair in value.items()]}
        cls = type(item)
        tree[key] = item if cls in AS_IS else TAGGERS[cls](item, depth + 1)
    return tree


def _tag_items(value: Iterable[Any], depth: int) -> list[Any]:
    """`depth` is that of the items."""
    return [item if type(item) in AS_IS else TAGGERS[type(item)](item, depth) for item in value]


def _tag_list(value: list[Any], depth: int) -> list[Any]:
    if depth > MAX_DEPTH:
        raise TooDeep(value)
    return _tag_items(value, depth + 1)


def _tag_tuple(value: tuple[Any, ...], depth: int) -> Tag:
    if depth > MAX_DEPTH:
        raise TooDeep(value)
    return {"$tuple": _tag_items(value, depth + 1)}


def _tag_set(value: set[Any] | frozenset[Any], depth: int) -> Tag:
    if depth > MAX_DEPTH:
        raise TooDeep(value)
    try:  # the order of a set differs between processes; sorted, equal state gives equal files
        items: Iterable[Any] = sorted(value)
    except Exception:
        items = value
    return {"$set" if type(value) is set else "$frozenset": _tag_items(items, depth + 1)}


def with_big_ints(tree: Any) -> Any:
    """Return the tree with tags for integers that have more digits than Python converts to text."""
    cls = type(tree)
    if cls is int:
        return tag_int(tree)
    if cls is dict:
        return {key: with_big_ints(item) for key, item in tree.items()}
    if cls is list:
        return [with_big_ints(item) for item in tree]
    return tree


TAGGERS = _Taggers(
    {cls: lambda value, depth: value for cls in AS_IS}
    | {cls: _scalar_tagger(tag) for cls, tag in TAG.items()}
    | {float: _scalar_tagger(tag_float), dict: _tag_dict, list: _tag_list, tuple: _tag_tuple}
    | {set: _tag_set, frozenset: _tag_set}
)
