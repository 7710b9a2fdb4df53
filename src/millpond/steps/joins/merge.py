"""The default merge of a pair: the fields of both rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from millpond.codec.user_types import record_type_of
from millpond.steps.failure import BadInput
from millpond.steps.state.table_rows import MISSING

_ABSENT = type(MISSING)

SUFFIX = "_right"


def merge_fields(left: Any, right: Any) -> dict[str, Any]:
    """Return the fields of both rows, the left ones first. A field of the right that clashes and differs gets `_right`.

    A missing side is None and adds nothing. The values are those of the rows, not copies.

    >>> merge_fields({"id": 1, "at": 10, "n": 2}, {"id": 1, "at": 11, "paid": True})
    {'id': 1, 'at': 10, 'n': 2, 'at_right': 11, 'paid': True}
    >>> merge_fields(None, {"id": 1})
    {'id': 1}
    """
    if left is None or right is None:
        return dict(_fields(right if left is None else left))
    found = dict(_fields(left))
    for name, value in _fields(right).items():
        # A joined row that is joined again may have a field of the new name: nothing is ever overwritten.
        while name in found and not _is_same(found[name], value):
            name = f"{name}{SUFFIX}"
        found[name] = value
    return found


def merge_flat_rows(lefts: Sequence[Any], entries: Sequence[Any]) -> list[dict[str, Any]] | None:
    """Return `merge_fields` of many rows with entries of a table; None if some of them are not dicts of scalars.

    Most pairs have the same names in common as the pair before them, with equal values.
    """
    if set(map(type, lefts)) != {dict} or not {dict, _ABSENT}.issuperset(map(type, entries)):
        return None
    if not {str}.issuperset(map(type, chain.from_iterable(lefts))):
        return None
    merged: list[dict[str, Any]] = []
    common: tuple[str, ...] = ()
    for left, right in zip(lefts, entries, strict=True):
        if right is MISSING:
            merged.append(left.copy())
            continue
        both = {**left, **right}
        shared = len(left) + len(right) - len(both)
        if shared:
            if shared != len(common) or any(name not in left or name not in right for name in common):
                common = tuple(name for name in right if name in left)
            if any(left[name] != right[name] and left[name] is not right[name] for name in common):
                both = merge_fields(left, right)
        merged.append(both)
    return merged


def _is_same(one: Any, other: Any) -> bool:
    return bool(one is other or one == other)


def _fields(row: Any) -> dict[str, Any]:
    if isinstance(row, dict):
        if all(isinstance(name, str) for name in row):
            return row
    else:
        record = record_type_of(type(row))
        if record is not None:
            return record.take(row)
    raise BadInput(
        f"rows are joined by their fields, and this {type(row).__name__} has none with names: {row!r}. "
        "Combine the rows yourself with merge=lambda left, right: …"
    )
