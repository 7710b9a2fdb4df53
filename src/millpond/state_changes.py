"""The changes of a step's state, read from the log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from millpond.clock import Clock, as_datetime
from millpond.codec import Codec, decode_key
from millpond.errors import InvalidUse
from millpond.log.reach import batch_number, read_beside_retention
from millpond.log.record import Record
from millpond.log.segment import Change
from millpond.maintenance.record_changes import changes_in
from millpond.maintenance.stopped_app import StoppedApp
from millpond.steps.state.migration import MARK
from millpond.storage import Storage


@dataclass(frozen=True)
class StateChange:
    """One change of one cell of a step's state: `deleted` ones have no value.

    `cell` says which part of the key's state it is: "" where a step keeps one value per key.

    >>> import millpond as mp
    >>> from datetime import UTC, datetime
    >>> mp.StateChange(7, datetime(2030, 1, 1, tzinfo=UTC), "ann", "", 3).value
    3
    """

    batch: int
    time: datetime
    key: Any
    cell: str
    value: Any
    deleted: bool = False


def read_changes(storage: Storage, app: str, clock: Clock, step: str, after: int = -1) -> Iterator[StateChange]:
    """Yield every change of a step's state that is within reach, batch by batch, after a batch. The app may run."""
    log, after = StoppedApp(storage, app, clock), batch_number(after, "changes(after)")
    return read_beside_retention(log.ledger, lambda: _read_changes(log, step, after), f"changes of {step!r}")


def _read_changes(log: StoppedApp, step: str, after: int) -> Iterator[StateChange]:
    codec, ledger = Codec((), unknown="plain"), log.ledger
    newest = ledger.newest()
    if newest is None:
        return
    if step not in newest.steps:
        raise InvalidUse(f"changes: app {log.name!r} has no step {step!r}; it has: {', '.join(newest.steps)}")
    for record in ledger.between(max(newest.born - 1, ledger.floor() - 1, after), newest.number):
        for change in changes_in(log, record, step):
            if change.cell != MARK:
                yield as_state_change(record, change, codec)


def as_state_change(record: Record, change: Change, codec: Codec) -> StateChange:
    """Return a change of the log as a reader sees it."""
    return StateChange(
        record.number,
        as_datetime(record.time),
        decode_key(change.key),
        change.cell.decode(),
        None if change.value is None else codec.decode(change.value),
        change.value is None,
    )
