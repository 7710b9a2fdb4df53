"""Rows as plain JSON that every tool can read: without the tags of the log, so types are lost."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta
from typing import Any

import msgspec

from millpond.errors import InvalidUse

_encoder = msgspec.json.Encoder()
_REFUSALS = (TypeError, ValueError, RecursionError)

# How an offset from UTC ends, as in "2024-05-01T12:00:00+02:00". Two patterns that each begin with one character are
# found several times faster than one pattern for both.
_OFFSETS = (re.compile(rb'\+..:.."'), re.compile(rb'-..:.."'))
_MINUTE = timedelta(minutes=1)


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
    return _encoder.encode_lines(_with_exact_offsets(rows)) if _has_offset(data) else data


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
    return _encoder.encode(_with_exact_offsets(row)) if _has_offset(data) else data


def _has_offset(data: bytes) -> bool:
    """Return whether there may be a time with an offset that is not 0, as msgspec writes it."""
    return any(offset.search(data) for offset in _OFFSETS)


def _with_exact_offsets(value: Any) -> Any:
    """Return the value with text in place of times whose offsets have seconds: msgspec rounds offsets to minutes."""
    return _replace_times(msgspec.to_builtins(value, builtin_types=(datetime, time)))


def _replace_times(value: Any) -> Any:
    kind = type(value)
    if kind is datetime or kind is time:
        offset = value.utcoffset()
        return value.isoformat() if offset is not None and offset % _MINUTE else value
    if kind is dict:
        return {_replace_times(key): _replace_times(inner) for key, inner in value.items()}
    if kind is list or kind is tuple:
        return [_replace_times(inner) for inner in value]
    return value
