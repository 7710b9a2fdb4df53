"""Which batches are within reach: their state can still be made from what retention has kept.

The state at a record is the runs of its manifest and the segments of the records after that. Retention removes both,
and a file can be damaged. Every reader that looks for another manifest than the newest looks here: an earlier one
holds the same state only if no rewrite came between the two.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from millpond.errors import Corrupt, InvalidUse, Unavailable
from millpond.log.checked import Pointer
from millpond.log.ledger import Ledger
from millpond.log.manifest import Manifest, read_manifest
from millpond.log.record import Record

log = logging.getLogger("millpond")

T = TypeVar("T")

MOST_READ_ATTEMPTS = 5  # at a read that retention overtakes


def batch_number(given: Any, what: str) -> int:
    """Return the number of a batch that a user gave; `InvalidUse` if it is no whole number.

    >>> batch_number("7", "rollback")
    Traceback (most recent call last):
    millpond.errors.InvalidUse: rollback: expected the number of a batch, got '7'
    """
    try:
        if isinstance(given, bool):
            raise TypeError
        return operator.index(given)
    except TypeError:
        raise InvalidUse(f"{what}: expected the number of a batch, got {given!r}") from None


def earlier_manifest(ledger: Ledger, manifest: Pointer, born: int, epoch: int, below: int) -> Record | None:
    """Return the newest record, from `below` down, with another manifest, or with none if the log is complete.

    None if there is no such record in this epoch: a manifest from before a rewrite holds other state.
    """
    floor = ledger.floor()
    for number in range(below, max(floor, born, epoch) - 1, -1):
        record = ledger.read(number)
        if record is None:
            return None
        if record.manifest != manifest:
            whole = record.manifest is not None or (floor <= born and not epoch)
            return record if whole else None
    return None


def readable_manifest(ledger: Ledger, record: Record) -> Manifest | None:
    """Return the newest undamaged manifest of a record's epoch; None if the state is the whole log.

    A damaged manifest is logged, and an earlier one is used. `Corrupt` if there is no other.
    """
    found = record
    while True:
        if found.manifest is None:
            return None
        try:
            return read_manifest(ledger.storage, found.manifest)
        except Corrupt as error:
            earlier = earlier_manifest(ledger, found.manifest, record.born, record.epoch, found.number)
            if earlier is None:
                raise
            log.warning("%s: an earlier manifest and more of the log are used: %s", record.app, error)
            found = earlier


def is_kept(ledger: Ledger, manifest: Pointer, floor: int) -> bool:
    """Return whether retention keeps a manifest, by the number in its name: the log since then must be there.

    The name of a compaction's manifest has the number of its record, that of a rewrite the number after it.
    """
    return (ledger.paths.batch(manifest.path) or 0) >= floor - 1


def within_reach(ledger: Ledger, batch: int, newest: Record) -> Record | None:
    """Return the record of a batch, if its state can be made from what is kept; None otherwise."""
    floor = max(newest.born, ledger.floor(newest))
    if not floor <= batch <= newest.number:
        return None
    record = next(ledger.between(batch - 1, batch))
    if record.manifest is None:
        return record if floor <= record.born else None
    if not is_kept(ledger, record.manifest, floor):
        return None
    base = readable_manifest(ledger, record)
    return record if (record.born - 1 if base is None else base.upto) >= floor - 1 else None


def oldest_within_reach(ledger: Ledger, newest: Record) -> int:
    """Return the oldest batch within reach. Records right above the floor may be there only as its log."""
    floor = max(newest.born, ledger.floor(newest))
    found = (number for number in range(floor, newest.number) if within_reach(ledger, number, newest) is not None)
    return next(found, newest.number)


def read_beside_retention(ledger: Ledger, read: Callable[[], Iterable[T]], what: str) -> Iterator[T]:
    """Yield what `read` yields, and start over if the running app has removed files that were about to be read.

    That is assumed if the floor has moved and the next attempt does not find the same damage. `Unavailable` if it
    happens each time, or after something was yielded already.
    """
    found: Corrupt | None = None
    for _ in range(MOST_READ_ATTEMPTS):
        floor, has_begun = ledger.floor(), False
        try:
            for each in read():
                has_begun = True
                yield each
            return
        except Corrupt as error:
            if str(error) == str(found) or ledger.floor() == floor:
                raise
            found = error
        if has_begun:
            break
    raise Unavailable(
        f"app {ledger.app!r}, {what}: the app has removed files that were about to be read, because it has written "
        "many records since. Call this again, or let App(keep=) say that more records stay. Nothing was changed."
    ) from found
