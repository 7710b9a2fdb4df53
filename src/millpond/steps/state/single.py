"""One value per key within one batch: what was read from the view, and what the batch has changed.

Immutable values are held as they are, all others as bytes. So every reader gets a copy of its own, and a function that
fails half-way has changed nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, time
from functools import partial
from itertools import repeat
from operator import is_, itemgetter
from typing import Any

import msgspec

from millpond.codec import IMMUTABLE, Codec
from millpond.log.segment import Change
from millpond.replica import View

ONLY_CELL = b""  # the one cell of a key


class Packed(msgspec.Struct, gc=False):
    """A value that could be changed in place, held as its bytes."""

    data: bytes


class _Absent:
    """No value: there was none (ABSENT), or this batch has dropped it (DROPPED)."""

    __slots__ = ()


ABSENT, DROPPED = _Absent(), _Absent()
_SPECIAL = frozenset({Packed, _Absent})


# Classes of immutable values that can always be encoded. Text may hold a lone surrogate, and a time may have a timezone
# of a class that cannot be stored: both must fail now, with the row that made them.
SURELY_ENCODABLE = IMMUTABLE - {type(None), str, datetime, time}


_NOT_SIMPLE = frozenset(b'{["n')  # first bytes of containers and text, which are decoded only when they are needed


@dataclass
class SingleValues:
    """The state of `stateful_map` and `aggregate`, loaded and saved for all keys of a batch at once."""

    _step: str
    _view: View
    _codec: Codec
    _held: dict[bytes, Any] = field(default_factory=dict)
    _changed: dict[bytes, Any] = field(default_factory=dict)
    _saved: tuple[Sequence[bytes], Sequence[Any], Sequence[Any]] | None = None  # keys, values before and after

    def load(self, keys: Sequence[bytes]) -> list[Any]:
        """Return the value of each key: an immutable one, `Packed`, ABSENT or DROPPED."""
        if self._saved is not None:
            self._held.update(zip(self._saved[0], self._saved[2], strict=True))
            self._note(*self._saved)
            self._saved = None
        held = self._held
        if not held:
            return self._fetch(keys)
        fresh = [key for key in keys if key not in held]
        held.update(zip(fresh, self._fetch(fresh), strict=True))
        return [held[key] for key in keys]

    def _fetch(self, keys: Sequence[bytes]) -> list[Any]:
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
        """Hold the new values of keys; those that differ from what was loaded are changes."""
        if self._held:
            self._held.update(zip(keys, after, strict=True))
            self._note(keys, before, after)
        else:  # most batches load each key once, and need no lookup by key
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
        """Return a value as it is held; the old object if nothing has changed."""
        if is_surely_encodable(value):
            return value
        data = self._codec.encode(value)
        return old if old.__class__ is Packed and old.data == data else Packed(data)

    def changes(self) -> list[Change]:
        """Return what this batch has changed, sorted by key."""
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
    """Return the changes of the one cell of many keys, made without a Python call for each."""
    return list(map(make_change, zip(keys, repeat(b""), values, repeat(None), repeat(None), strict=False)))


make_change = partial(tuple.__new__, Change)


def is_surely_encodable(value: Any) -> bool:
    """Return whether a value may be held as it is. Others are encoded at once, so that a failure belongs to its row."""
    return value.__class__ in SURELY_ENCODABLE or (value.__class__ is str and value.isascii())


def is_absent(value: Any) -> bool:
    return value.__class__ is _Absent
