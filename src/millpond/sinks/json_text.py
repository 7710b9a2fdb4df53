"""Writes rows as plain JSON that every tool can read.

Datetimes are ISO-8601, Decimals and UUIDs strings, bytes base64, sets and tuples lists, dataclasses and
Structs objects; nan and the infinities, which JSON lacks, are null. The types are lost: this is for other programs.
State and outputs in the log keep their types.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millpond.errors import InvalidUse

_json_encoder = msgspec.json.Encoder()


def encode_json_lines(rows: list[Any]) -> bytes:
    r"""Encode the rows, one per line. Raises InvalidUse, with the row, if one cannot be JSON.

    >>> encode_json_lines([{"n": 1}, {"tags": ("a", "b")}])
    b'{"n":1}\n{"tags":["a","b"]}\n'
    """
    try:
        return _json_encoder.encode_lines(rows)
    except (TypeError, ValueError, RecursionError):
        for row in rows:
            _encode(row)
        raise


def format_row(row: Any) -> str:
    """Return one row as JSON for people to read, or its `repr` if it cannot be JSON.

    >>> format_row({"n": 1, "tags": ("a", "b")})
    '{"n": 1, "tags": ["a", "b"]}'
    """
    try:
        return msgspec.json.format(_json_encoder.encode(row), indent=0).decode()
    except (TypeError, ValueError, RecursionError):
        return repr(row)


def _encode(row: Any) -> bytes:
    try:
        return _json_encoder.encode(row)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidUse(
            f"a row cannot be written as JSON: {error}. The row: {repr(row)[:500]}. Make it of dicts with "
            "string or number keys, lists, strings, numbers, bytes, dates, Decimals, UUIDs, dataclasses or "
            "Structs."
        ) from None
