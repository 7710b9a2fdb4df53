"""Rows as plain JSON that every tool reads.

Datetimes are ISO-8601, Decimals and UUIDs strings, bytes base64, sets and tuples lists, dataclasses and
Structs objects; nan and the infinities, which JSON lacks, are null. What was what is not kept: this is for
readers outside, state and outputs inside keep their types.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millpond.errors import InvalidUse

_ENCODER = msgspec.json.Encoder()


def lines(rows: list[Any]) -> bytes:
    r"""The rows, one per line. Raises InvalidUse with the row that is no JSON.

    >>> lines([{"n": 1}, {"tags": ("a", "b")}])
    b'{"n":1}\n{"tags":["a","b"]}\n'
    """
    try:
        return _ENCODER.encode_lines(rows)
    except (TypeError, ValueError, RecursionError):
        for row in rows:
            _encoded(row)
        raise


def line(row: Any) -> str:
    """One row, to be read by a person.

    >>> line({"n": 1, "tags": ("a", "b")})
    '{"n": 1, "tags": ["a", "b"]}'
    """
    try:
        return msgspec.json.format(_ENCODER.encode(row), indent=0).decode()
    except (TypeError, ValueError, RecursionError):
        return repr(row)  # better than no line at all


def _encoded(row: Any) -> bytes:
    try:
        return _ENCODER.encode(row)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidUse(
            f"a row cannot be written as JSON: {error}. The row: {repr(row)[:500]}. Make it of dicts with "
            "string or number keys, lists, strings, numbers, bytes, dates, Decimals, UUIDs, dataclasses or "
            "Structs."
        ) from None
