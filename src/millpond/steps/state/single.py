"""A step's state within one batch: what was read of the replica, what the batch has changed, and the changes.

A value is held as it is if nobody can change it in place, and else as its bytes: so whoever asks gets a
value of their own, and a function that fails half-way has changed nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, time
from functools import partial
from itertools import repeat
from operator import is_, itemgetter
from typing import Any

from millpond.codec import IMMUTABLE, Codec
from millpond.log.segment import Change
from millpond.replica import View


class Packed:
    """A value that could be changed in place, as its bytes."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class _Absent:
    """No value: nothing is there (ABSENT), or this batch has dropped what was (DROPPED)."""

    __slots__ = ()


ABSENT, DROPPED = _Absent(), _Absent()
_SPECIAL = frozenset({Packed, _Absent})


# Immutable, and sure to be encoded later; text may hold a lone surrogate, and a time a zone of its own making.
SURELY_ENCODABLE = IMMUTABLE - {type(None), str, datetime, time}


_NOT_SIMPLE = frozenset(b'{["n')  # how a container or a text begins, which is decoded when it is asked for


class SingleValues:
    """One value per key: what `stateful_map` and its like keep."""

    def __init__(self, step: str, view: View, codec: Codec) -> None:
        self._step, self._view, self._codec = step, view, codec
        self._held: dict[bytes, Any] = {}
        self._changed: dict[bytes, Any] = {}
        self._saved: tuple[Sequence[bytes], Sequence[Any], Sequence[Any]] | None = None

    def load(self, keys: Sequence[bytes]) -> list[Any]:
        """The value of each key: an immutable one, `Packed`, ABSENT or DROPPED."""
        if self._saved is not None:
            self._held.update(zip(self._saved[0], self._saved[2], strict=True))
            self._note(*self._saved)
            self._saved = None
        held = self._held
        if not held:
            return self._fetched(keys)
        fresh = [key for key in keys if key not in held]
        held.update(zip(fresh, self._fetched(fresh), strict=True))
        return [held[key] for key in keys]

    def _fetched(self, keys: Sequence[bytes]) -> list[Any]:
        found: list[Any] = self._view.get_many(self._step, keys)
        there = [data for data in found if data is not None] if None in found else found
        if _NOT_SIMPLE.isdisjoint(map(itemgetter(0), there)):
            values = self._codec.decode_lines(b"\n".join(there)) if there else []
            if len(there) == len(found):
                return values
            left = iter(values)
            return [ABSENT if data is None else next(left) for data in found]
        return [
            ABSENT if data is None else Packed(data) if data[0] in _NOT_SIMPLE else self._codec.decode(data)
            for data in found
        ]

    def save(self, keys: Sequence[bytes], before: Sequence[Any], after: Sequence[Any]) -> None:
        """Keep the values that are not those that were loaded."""
        if self._held:
            self._held.update(zip(keys, after, strict=True))
            self._note(keys, before, after)
        else:  # as a rule nobody asks again in this batch
            self._saved = (keys, before, after)

    def _note(self, keys: Sequence[bytes], before: Sequence[Any], after: Sequence[Any]) -> None:
        changed = self._changed
        if any(map(is_, before, after)):
            for key, old, new in zip(keys, before, after, strict=True):
                if new is not old:
                    changed[key] = new
        else:
            changed.update(zip(keys, after, strict=True))

    def pack(self, value: Any, old: Any) -> Any:
        """A value as it is held; the old one if nothing has changed."""
        if is_surely_encodable(value):
            return value
        data = self._codec.encode(value)
        return old if old.__class__ is Packed and old.data == data else Packed(data)

    def changes(self) -> list[Change]:
        """What this batch has changed, sorted."""
        if self._saved is not None:
            self._note(*self._saved)
        changed = self._changed
        keys = sorted(changed)
        values = list(map(changed.__getitem__, keys))
        if _SPECIAL.isdisjoint(map(type, values)):
            texts: list[bytes | None] = [*self._codec.encode_many(values)]
        else:
            encoded = iter(self._codec.encode_many([value for value in values if type(value) not in _SPECIAL]))
            texts = [
                value.data if type(value) is Packed else None if type(value) is _Absent else next(encoded)
                for value in values
            ]
        return all_changes(keys, texts)


def all_changes(keys: Sequence[bytes], values: Sequence[bytes | None]) -> list[Change]:
    """Changes of the one cell of many keys, made without a call for each."""
    return list(map(make_change, zip(keys, repeat(b""), values, repeat(None), repeat(None), strict=False)))


make_change = partial(tuple.__new__, Change)


def is_surely_encodable(value: Any) -> bool:
    """Whether a value may be held as it is. What cannot be encoded must fail here, with the row that made it."""
    return value.__class__ in SURELY_ENCODABLE or (value.__class__ is str and value.isascii())


def is_absent(value: Any) -> bool:
    return value.__class__ is _Absent
