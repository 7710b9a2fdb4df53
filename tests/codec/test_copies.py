"""A copy shares nothing with its original that can change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from codec_samples import Account, Color, Pair, Plain, Point, Slotted, same, values
from hypothesis import given, settings

from millpond.codec import IMMUTABLE, NotEncodable, copy_value
from millpond.codec.values import copy_value as the_same_by_another_door


def mutables(value: Any) -> list[Any]:
    """Every object in a value that can be changed."""
    if isinstance(value, dict):
        return [value, *(found for item in value.values() for found in mutables(item))]
    if isinstance(value, (list, tuple)):
        own = [value] if isinstance(value, list) else []
        return [*own, *(found for item in value for found in mutables(item))]
    if isinstance(value, (set, bytearray)):
        return [value]
    if isinstance(value, (Account, Point, Slotted)):
        inside = [getattr(value, name) for name in value.__dataclass_fields__]
        return [value, *(found for item in inside for found in mutables(item))]
    if isinstance(value, msgspec.Struct):
        inside = [getattr(value, name) for name in value.__struct_fields__]
        return [value, *(found for item in inside for found in mutables(item))]
    return []


@settings(deadline=None)
@given(values)
def test_a_copy_is_the_same_and_shares_nothing_that_can_change(value):
    copied = copy_value(value)
    assert same(copied, value)
    assert not {id(part) for part in mutables(copied)} & {id(part) for part in mutables(value)}


def test_atoms_are_returned_as_they_are():
    for atom in (10**30, "a" * 100, b"x", Color.RED, None, (1, "a"), frozenset({1})):
        assert copy_value(atom) is atom


def test_a_tuple_is_copied_when_something_in_it_can_change():
    inner = [1]
    copied = copy_value((inner, Pair(inner, 1)))
    inner.append(2)
    assert copied == ([1], Pair([1], 1)) and type(copied[1]) is Pair


def test_a_struct_is_copied_without_its_post_init():
    class Counted(msgspec.Struct, frozen=True):
        items: list[int]
        n: int = 0

        def __post_init__(self) -> None:
            msgspec.structs.force_setattr(self, "n", self.n + 1)

    value = Counted([1])
    copied = copy_value(value)
    assert copied == value and copied.n == 1 and copied.items is not value.items


def test_what_cannot_be_stored_cannot_be_copied():
    with pytest.raises(NotEncodable, match=r'^value\["a"\]\[0\]: cannot store a value of type complex, here 1j'):
        copy_value({"a": [1j]})


def test_a_frozen_dataclass_is_copied():
    @dataclass(frozen=True)
    class Frozen:
        items: list[Any]

    value = Frozen([Plain("a", [1])])
    copied = copy_value(value)
    value.items[0].value.append(2)
    assert copied.items == [Plain("a", [1])]


def test_immutable_types_are_exact_types():
    assert {int, str, bytes, type(None)} <= IMMUTABLE
    assert not {list, dict, tuple, bytearray, Color} & IMMUTABLE
    assert the_same_by_another_door is copy_value
