"""One value per key within one batch: what was read from the view, and what the batch has changed.

Immutable values are held as they are, all others as bytes. So every reader gets a copy of its own, and a function that
fails half-way has changed nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, time
from itertools import compress
from operator import is_not, itemgetter
from typing import Any

import msgspec

from millpond.codec import IMMUTABLE, Codec
from millpond.log.segment import Change, SingleCellChanges
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
            self._changed.update(zip(*_differing(*self._saved), strict=True))
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
            self._changed.update(zip(*_differing(keys, before, after), strict=True))
        else:  # most batches load each key once, and need no lookup by key
            self._saved = (keys, before, after)

    def pack(self, value: Any, old: Any) -> Any:
        """Return a value as it is held; the old object if nothing has changed."""
        if is_surely_encodable(value):
            return value
        data = self._codec.encode(value)
        return old if old.__class__ is Packed and old.data == data else Packed(data)

    def changes(self) -> Sequence[Change]:
        """Return what this batch has changed, sorted by key."""
        if self._saved is None:
            keys, values = list(self._changed), list(self._changed.values())
        else:
            keys, values = _differing(*self._saved)
        ordered = sorted(keys)
        if ordered != keys:
            values = list(map(dict(zip(keys, values, strict=True)).__getitem__, ordered))
        return SingleCellChanges(ordered, self._encode(values))

    def _encode(self, values: list[Any]) -> list[bytes | None]:
        if _SPECIAL.isdisjoint(map(type, values)):
            return [*self._codec.encode_many(values)]
        encoded = iter(self._codec.encode_many([value for value in values if type(value) not in _SPECIAL]))
        return [
            value.data if type(value) is Packed else None if type(value) is _Absent else next(encoded)
            for value in values
        ]


def _differing(keys: Sequence[bytes], before: Sequence[Any], after: Sequence[Any]) -> tuple[list[bytes], list[Any]]:
    """Return the keys whose value is another object than before, and these values."""
    differs = list(map(is_not, before, after))
    return list(compress(keys, differs)), list(compress(after, differs))


def is_surely_encodable(value: Any) -> bool:
    """Return whether a value may be held as it is. Others are encoded at once, so that a failure belongs to its row."""
    return value.__class__ in SURELY_ENCODABLE or (value.__class__ is str and value.isascii())


def is_absent(value: Any) -> bool:
    return value.__class__ is _Absent
