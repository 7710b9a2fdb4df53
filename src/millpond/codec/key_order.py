"""The order of keys, and which encoded keys can be in a part of that order.

Keys are in their natural order: text by code points, numbers by size, dates and times by time, tuples part by part.
Keys of different types are not mixed: all keys of one type come before those of the next. The encoded bytes of keys
are in another order, but all keys that begin with a text, or with some parts, have encoded bytes that begin alike.
"""

from __future__ import annotations

from datetime import date, datetime
from typing import Any
from uuid import UUID

from millpond.codec.keys import encode_key

SortKey = tuple[int, Any]

_RANKS: dict[type, int] = {bool: 0, int: 1, str: 2, bytes: 3, date: 4, UUID: 7, tuple: 8}
_NAIVE, _AWARE = 5, 6
_TEXT_END, _TUPLE_END = b'"', b"]}"


def sort_key(key: Any) -> SortKey:
    """Return a value by which keys can be sorted, of whatever types they are.

    >>> from millpond.codec.key_order import sort_key
    >>> sorted([10, "a", 9, (1, "b"), (1,)], key=sort_key)
    [9, 10, 'a', (1,), (1, 'b')]
    """
    cls = type(key)
    if cls is datetime:
        return (_NAIVE if key.tzinfo is None else _AWARE), key
    return _RANKS[cls], tuple(map(sort_key, key)) if cls is tuple else key


def encoded_beginning(beginning: str | tuple[Any, ...]) -> bytes:
    """Return how the encoded keys begin that begin with a text, or with some parts.

    A longer part may begin in the same way as the last one: `begins_with` tells them apart.

    >>> from millpond.codec.key_order import encoded_beginning
    >>> encoded_beginning("ab"), encoded_beginning((1,))
    (b'"ab', b'{"$tuple":[1')
    """
    return encode_key(beginning).removesuffix(_TUPLE_END if isinstance(beginning, tuple) else _TEXT_END)


def begins_with(encoded: bytes, beginning: bytes, is_tuple: bool) -> bool:
    """Return whether an encoded key begins with the text, or with whole parts, of an encoded beginning.

    >>> from millpond.codec.key_order import begins_with
    >>> begins_with(b'{"$tuple":[1,2]}', b'{"$tuple":[1', True), begins_with(b'{"$tuple":[12]}', b'{"$tuple":[1', True)
    (True, False)
    """
    if not encoded.startswith(beginning):
        return False
    return not is_tuple or beginning.endswith(b"[") or encoded[len(beginning) : len(beginning) + 1] in (b",", b"]")


def common_beginning(first: Any, last: Any) -> bytes:
    """Return how all encoded keys between two keys begin, as far as that is known.

    >>> from millpond.codec.key_order import common_beginning
    >>> common_beginning("order-1", "order-7"), common_beginning(5, 70), common_beginning(("a", 1), ("a", 9))
    (b'"order-', b'', b'{"$tuple":["a"')
    """
    if type(first) is str and type(last) is str:
        same = next((i for i, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), None)
        return encoded_beginning(min(first, last, key=len) if same is None else first[:same])
    if type(first) is tuple and type(last) is tuple:
        count = 0
        for one, other in zip(first, last, strict=False):
            if sort_key(one) != sort_key(other):
                break
            count += 1
        return encoded_beginning(first[:count])
    return b""
