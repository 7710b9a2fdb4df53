"""Rows as plain JSON that every tool can read: without the tags of the log, so types are lost."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, time
from itertools import chain
from typing import Any

import msgspec

from millpond.errors import InvalidUse

_encoder = msgspec.json.Encoder()
_REFUSALS = (TypeError, ValueError, RecursionError)

# An offset from UTC that is not 0, as msgspec writes it. Two patterns that begin with a character each are found much
# faster than one that begins with either.
_OFFSETS = (re.compile(rb'\+..:.."'), re.compile(rb'-..:.."'))
_TIME_TYPES = (datetime, time)
_LEAF_TYPES = frozenset({str, int, float, bool, type(None)})


def encode_json_lines(rows: list[Any]) -> bytes:
    r"""Encode the rows as JSON, one per line.

    Datetimes are ISO-8601, Decimals and UUIDs strings, bytes base64, sets and tuples lists, dataclasses and Structs
    objects; nan and the infinities, which JSON lacks, are null. State and outputs in the log keep their types. Raises
    InvalidUse, with the row, if one cannot be JSON.

    >>> encode_json_lines([{"n": 1}, {"tags": ("a", "b")}])
    b'{"n":1}\n{"tags":["a","b"]}\n'
    """
    try:
        data = _encoder.encode_lines(rows)
    except _REFUSALS:
        for row in rows:
            encode_json(row)
        raise
    return _encode_exactly(data, rows, _encoder.encode_lines)


def encode_json(row: Any) -> bytes:
    """Encode one row as JSON, as `encode_json_lines` does."""
    try:
        data = _encoder.encode(row)
    except _REFUSALS as error:
        raise InvalidUse(
            f"a row cannot be written as JSON: {error}. The row: {repr(row)[:500]}. Make it of dicts with "
            "string or number keys, lists, strings, numbers, bytes, dates, Decimals, UUIDs, dataclasses or "
            "Structs."
        ) from None
    return _encode_exactly(data, row, _encoder.encode)


def _encode_exactly(data: bytes, value: Any, encode: Callable[[Any], bytes]) -> bytes:
    """Return `data`, or encode the value again if a time in it has an offset with seconds, which msgspec rounds."""
    if not any(offset.search(data) for offset in _OFFSETS):
        return data
    plain = msgspec.to_builtins(value, builtin_types=_TIME_TYPES)
    return encode(_replace_times(plain)) if _any_seconds(plain) else data


def _any_seconds(value: Any) -> bool:
    """Return whether a time in dicts and lists has an offset with seconds."""
    level = [value]
    while level:
        others = [inner for inner in level if type(inner) not in _LEAF_TYPES]
        if any(_has_seconds(inner) for inner in others if type(inner) in _TIME_TYPES):
            return True
        dicts = [inner for inner in others if type(inner) is dict]
        lists = [inner for inner in others if type(inner) is list or type(inner) is tuple]
        level = [*set(chain.from_iterable(dicts)), *chain.from_iterable(map(dict.values, dicts))]
        level += chain.from_iterable(lists)
    return False


def _has_seconds(value: datetime | time) -> bool:
    offset = value.utcoffset()
    return offset is not None and bool(offset.seconds % 60 or offset.microseconds)


def _replace_times(value: Any) -> Any:
    """Return dicts and lists with text in place of times whose offsets have seconds."""
    kind = type(value)
    if kind in _TIME_TYPES:
        return value.isoformat() if _has_seconds(value) else value
    if kind is dict:
        return {_replace_times(key): _replace_times(inner) for key, inner in value.items()}
    if kind is list or kind is tuple:
        return [_replace_times(inner) for inner in value]
    return value
