"""Encodes keys as bytes, decodes them, and computes the partition that owns them.

Keys are compared by their encoded bytes: equal keys, and only equal keys, have equal bytes. `1`, `"1"`,
`True` and `(1,)` are four keys. The bytes are JSON text with the tags of `tags`, so that people can read them in any
file, and never contain a raw NUL or newline. The bytes and the partition of a key are part of the file format: they
never change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from itertools import chain
from typing import Any
from uuid import UUID
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt

from millpond.codec.refusal import MAX_DEPTH, type_name
from millpond.codec.tags import BIG_INT, READ, TAG, Tag, tag_int
from millpond.errors import Corrupt, InvalidUse, short_repr

_key_encoder = msgspec.json.Encoder()
_key_decoder = msgspec.json.Decoder()
_UNTAGGED = frozenset({str, int, bool})


def encode_key(key: Any) -> bytes:
    """Return the bytes of a key. Aware datetimes of the same instant are the same key.

    >>> from millpond.codec import encode_key
    >>> encode_key("a"), encode_key(1), encode_key((1, "a"))
    (b'"a"', b'1', b'{"$tuple":[1,"a"]}')
    """
    try:
        return _key_encoder.encode(_tree(key, "key", 1))
    except UnicodeEncodeError:
        raise _surrogate_error(key) from None


def decode_key(encoded: bytes) -> Any:
    """Return the key of these bytes; aware datetimes are in UTC.

    >>> from millpond.codec import decode_key
    >>> decode_key(b'{"$tuple":[1,"a"]}')
    (1, 'a')
    """
    try:
        return _untag(_key_decoder.decode(encoded))
    except Exception as error:
        raise Corrupt(
            f"stored key: expected the bytes of a key that Millpond wrote, got {short_repr(bytes(encoded[:80]))} "
            f"({type(error).__name__}: {error}); the file is damaged or was edited: restore it from a copy"
        ) from error


def decode_keys(encoded: Sequence[bytes]) -> list[Any]:
    """Return `decode_key` of many keys; fast if all are text or numbers.

    >>> from millpond.codec import decode_keys
    >>> decode_keys([b'"a"', b"1"])
    ['a', 1]
    """
    text = b"\n".join(encoded)
    if b"{" not in text:
        try:
            found = _key_decoder.decode_lines(text)
            if len(found) == len(encoded) and _UNTAGGED.issuperset(map(type, found)):
                return found
        except Exception:
            pass  # decoded one by one below, which reports the damaged key
    return [decode_key(key) for key in encoded]


def encode_keys(keys: Sequence[Any]) -> list[bytes]:
    """Return `encode_key` of many keys; fast if all are text, whole numbers or flat tuples of them.

    >>> from millpond.codec import encode_keys
    >>> encode_keys(["a", "b"])
    [b'"a"', b'"b"']
    """
    trees = _plain_trees(keys)
    if trees is None:
        trees = [_tree(key, "key", 1) for key in keys]
    try:
        lines = _key_encoder.encode_lines(trees).split(b"\n")
    except UnicodeEncodeError:
        raise _surrogate_error(next(key for key in keys if not _can_encode(key))) from None
    lines.pop()
    return lines


def partition_of(encoded: bytes, partitions: int) -> int:
    """Return the partition that owns a key, by its encoded bytes. It never changes, on no machine.

    >>> from millpond.codec import encode_key, partition_of
    >>> partition_of(encode_key("a"), 8)
    6
    """
    return crc32(encoded) % partitions


def partitions_of(encoded: Sequence[bytes], partitions: int) -> npt.NDArray[np.int32]:
    """Return `partition_of` of many keys.

    >>> from millpond.codec import encode_keys, partitions_of
    >>> partitions_of(encode_keys(["a", "b", "c"]), 8).tolist()
    [6, 5, 4]
    """
    sums = np.fromiter(map(crc32, encoded), dtype=np.uint32, count=len(encoded))
    return (sums % np.uint32(partitions)).astype(np.int32)


def _plain_trees(keys: Sequence[Any]) -> Sequence[Any] | None:
    """Return values that msgspec encodes correctly without checking each key; None if each must be checked."""
    types = set(map(type, keys))
    if types <= _UNTAGGED:
        return keys if _are_small(keys, types) else None
    if types == {tuple}:
        items = list(chain.from_iterable(keys))
        types = set(map(type, items))
        if types <= _UNTAGGED and _are_small(items, types):
            return [{"$tuple": key} for key in keys]
    return None


def _are_small(items: Sequence[Any], types: set[type]) -> bool:
    if int not in types:
        return True
    numbers = items if len(types) == 1 else [item for item in items if type(item) is int]
    return bool(min(numbers) > -BIG_INT and max(numbers) < BIG_INT)


def _tree(key: Any, where: str, depth: int) -> Any:
    make = _TREES.get(type(key))
    if make is not None:
        return make(key)
    if type(key) is datetime:
        return _datetime_tree(key, where)
    if type(key) is tuple and depth <= MAX_DEPTH:
        return {"$tuple": [_tree(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(key)]}
    raise _key_error(key, where)


def _keep_untagged(key: Any) -> Any:
    return key


_TREES: dict[type, Callable[[Any], Any]] = {
    str: _keep_untagged,
    bool: _keep_untagged,
    int: tag_int,
    bytes: TAG[bytes],
    date: TAG[date],
    UUID: TAG[UUID],
}


def _datetime_tree(key: datetime, where: str) -> Tag:
    if key.tzinfo is None:
        return {"$datetime": key}
    if key.utcoffset() is None:
        raise InvalidUse(
            f"{where}: expected a datetime whose tzinfo gives an offset, got {short_repr(key)}; use datetime.timezone, "
            "zoneinfo.ZoneInfo or a datetime without tzinfo"
        )
    try:
        return {"$datetime": key.astimezone(UTC)}
    except (OverflowError, ValueError):
        raise InvalidUse(
            f"{where}: expected a datetime that UTC can express, got {short_repr(key)}; use one after the year 1 "
            "and before the year 9999"
        ) from None


def _untag(tree: Any) -> Any:
    if type(tree) is not dict:
        if type(tree) in _UNTAGGED:
            return tree
        raise ValueError("not the form of a key")
    ((word, payload),) = tree.items()
    if word == "$tuple":
        return tuple(map(_untag, payload))
    if word not in _WORDS:
        raise ValueError(f"no key has the tag {word!r}")
    return READ[word](tree)


_WORDS = frozenset({"$int", "$bytes", "$date", "$datetime", "$uuid"})


def _key_error(key: Any, where: str) -> InvalidUse:
    got = f"{where}: expected a key of str, bytes, int, bool, date, datetime, UUID or a tuple of these, got"
    cls = type(key)
    if key is None:
        return InvalidUse(
            f"{where}: a key cannot be None; leave such rows out before key_by, for example with "
            'filter(lambda row: row["customer"] is not None)'
        )
    if cls is float:
        return InvalidUse(f"{got} the float {key!r}; floats that look equal often are not: round to an int, or use str")
    if cls is tuple:
        return InvalidUse(f"key: tuples are nested more than {MAX_DEPTH} levels deep; flatten the key")
    if cls is list:
        return InvalidUse(f"{got} the list {short_repr(key)}; use a tuple")
    if hasattr(cls, "__members__"):
        return InvalidUse(f"{got} the enum member {short_repr(key)}; use its .value or its .name")
    for base in (str, bytes, int, date, UUID, tuple, float):
        if issubclass(cls, base):
            return InvalidUse(
                f"{got} {short_repr(key)} of the type {type_name(cls)}; turn it into a plain {base.__name__} first"
            )
    return InvalidUse(f"{got} {short_repr(key)} of the type {type_name(cls)}; use a field of it, or str(…) of it")


def _surrogate_error(key: Any) -> InvalidUse:
    return InvalidUse(
        f"key: expected text that UTF-8 can hold, got {short_repr(key)} with a lone surrogate; replace it, for "
        'example with text.encode("utf-8", "replace").decode(), or use bytes'
    )


def _can_encode(key: Any) -> bool:
    try:
        encode_key(key)
    except InvalidUse:
        return False
    return True
