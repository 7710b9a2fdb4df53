"""Fair shares of a limited number of rows."""

from __future__ import annotations

from collections.abc import Mapping


def allot_rows(wanted: Mapping[str, int], rows: int) -> dict[str, int]:
    """Return how many rows each may have: what it wants, or an equal part of what the others leave; at least one.

    >>> allot_rows({"a": 10, "b": 500, "c": 900}, 1000)
    {'a': 10, 'b': 495, 'c': 495}
    """
    found, left = {}, rows
    for count, name in enumerate(sorted(wanted, key=lambda name: wanted[name])):
        found[name] = min(wanted[name], max(1, left // (len(wanted) - count)))
        left -= found[name]
    return found
