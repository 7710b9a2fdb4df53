"""The cells of state that are seen from outside, by `app.state` and in the rows of `app.changes`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from millpond.replica import Entry
from millpond.steps.kind import Step
from millpond.steps.state.expiring import without_expired


def shown_cells(kind: type[Step], entries: Iterable[Entry], wall: int) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield key, cell and value of the entries that are shown; those that have expired by the clock are not.

    The cells of a key must come in order.
    """
    if not kind.can_expire:
        return ((entry.key, entry.cell, entry.value) for entry in entries)
    return without_expired((entry for entry in entries if kind.is_shown(entry.cell)), wall)
