"""Deliveries that a rollback, a clear or `drop_outputs` has given up are made void in their targets.

A driver that is paused between its commit and its delivery can resume after the rollback. So the names of all
deliveries in the records that were set aside are occupied, whether they had arrived or not, and are never free again.
The names come from the records, so a process that is paused here and resumes later touches nothing that is newer.

The record of the rollback says which records are meant; the records after it repeat that until a driver of a program
that has the sink starts. It does this before it delivers anything.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from millpond.codec import Codec
from millpond.errors import Corrupt, MillpondError, StepFailed
from millpond.log.ledger import Ledger
from millpond.log.record import Record
from millpond.parcels import parcels_of, read_parcel
from millpond.pipeline.graph import Program
from millpond.sinks.base import Delivery, RollbackSink

log = logging.getLogger("millpond")

SinkRanges = Mapping[str, list[tuple[int, int]]]


def void_deliveries(program: Program, ledger: Ledger, app: str, ranges: SinkRanges) -> None:
    """Make void what was or could be delivered of these records; sinks that cannot do that keep what they hold.

    The newest goes first: what is void is always the end of what was delivered, also if this is interrupted.
    """
    codec = Codec(program.types)
    for name, sink in program.sinks.items():
        if name not in ranges or not isinstance(sink, RollbackSink):
            continue
        given_up = {
            parcel.delivery: parcel
            for record in sorted(_records_in(ledger, ranges[name]), key=lambda record: -record.number)
            for parcel in parcels_of(record, name)
            if parcel.has_rows
        }

        def rows(delivery: Delivery, given_up: Any = given_up) -> list[Any]:
            try:
                return read_parcel(ledger.storage, codec, given_up[delivery])
            except Corrupt:  # only the columns are wanted of it
                return []

        try:
            sink.rollback(list(given_up), rows)
        except MillpondError:
            raise
        except Exception as error:
            text = f"rolling it back: {type(error).__name__}: {error}"
            raise StepFailed(name, batch=ranges[name][0][0], error=text) from error
        log.info("%s: sink %r: %d deliveries are void", app, name, len(given_up))


def _records_in(ledger: Ledger, ranges: list[tuple[int, int]]) -> Iterator[Record]:
    """The records with these numbers; those that retention has removed are left out."""
    floor = ledger.floor()
    for first, last in ranges:
        yield from ledger.between(max(first, floor) - 1, last)


def sinks_without_rollback(program: Program) -> list[str]:
    """The sinks of a program that keep what they hold."""
    return [name for name, sink in program.sinks.items() if not isinstance(sink, RollbackSink)]
