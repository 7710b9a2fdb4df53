"""Columns as lines of JSON, without a Python object per row."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

_NEEDS_ESCAPE = r'[\x00-\x1f"\\]'


def encode_table(table: pa.Table) -> list[bytes] | None:
    """Return the rows of a table as JSON objects, as `plain_json` writes them; None if it has columns of other types.

    Columns may be of strings, whole numbers, floats and booleans, or be null. A number may be written differently
    (`1e+20` and `1e20`), with the same value.

    >>> encode_table(pa.table({"customer": ["a", "b"], "total": [1, None]}))
    [b'{"customer":"a","total":1}', b'{"customer":"b","total":null}']
    """
    if not table.num_columns:
        return None
    parts: list[pa.Array | pa.Scalar] = []
    for i, name in enumerate(table.column_names):
        text = _column_text(table.column(i).combine_chunks())
        if text is None:
            return None
        parts += [
            pa.scalar(("{" if i == 0 else ",") + msgspec.json.encode(name).decode() + ":", pa.large_string()),
            text,
        ]
    lines = pc.binary_join_element_wise(*parts, pa.scalar("}", pa.large_string()), pa.scalar("", pa.large_string()))
    return lines.cast(pa.large_binary()).to_pylist()  # type: ignore[no-any-return]


def _column_text(column: pa.Array) -> pa.Array | None:
    """Return each value as JSON; None if the type has no such form here."""
    kind, null = column.type, pa.scalar("null", pa.large_string())
    if pa.types.is_null(kind):
        return pc.fill_null(column.cast(pa.large_string()), null)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return pc.fill_null(column.cast(pa.large_string()), null)
    if pa.types.is_floating(kind):
        finite = pc.if_else(pc.is_finite(column), column, pa.scalar(None, kind))
        text = finite.cast(pa.large_string())
        # A whole number such as 1.0 is written as "1", which other readers take for an integer.
        with_point = pc.binary_join_element_wise(
            text, pa.scalar(".0", pa.large_string()), pa.scalar("", pa.large_string())
        )
        return pc.fill_null(pc.if_else(pc.match_substring_regex(text, "[.e]"), text, with_point), null)
    if not pa.types.is_string(kind):
        return None
    column = column.cast(pa.large_string())
    if pc.any(pc.match_substring_regex(column, _NEEDS_ESCAPE)).as_py():
        texts = [None if text is None else msgspec.json.encode(text).decode() for text in column.to_pylist()]
        return pc.fill_null(pa.array(texts, pa.large_string()), null)
    quote = pa.scalar('"', pa.large_string())
    quoted = pc.binary_join_element_wise(quote, column, quote, pa.scalar("", pa.large_string()))
    return pc.fill_null(quoted, null)
