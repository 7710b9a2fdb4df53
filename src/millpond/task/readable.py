"""Rows of columns that no Python objects can be made of: they fail where they come from, not in some later step."""

from __future__ import annotations

from millpond.rows.arrow_objects import raw_row, unreadable
from millpond.rows.rows import Rows
from millpond.steps.failure import BadInput, Failed


def readable(rows: Rows, failed: Failed) -> Rows:
    """The rows of a chunk that functions can be given; the others have failed."""
    bad = unreadable(rows.data) if rows.form == "arrow" else {}
    if not bad:
        return rows
    for i, why in sorted(bad.items()):
        failed(i, raw_row(rows.data, i), BadInput(why))
    return rows.pick([i for i in range(len(rows)) if i not in bad])
