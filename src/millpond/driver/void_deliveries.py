"""Makes deliveries void in their targets that a rollback, a clear or `drop_outputs` has given up.

A driver that is paused between its commit and its delivery can resume after the rollback. So all deliveries of the
records that were set aside are made void for ever, whether they had arrived or not. Their ids come from the records, so
a process that is paused here and resumes later touches nothing that is newer.

The record of the rollback says which records are meant; the records after it repeat that until a driver starts whose
program has the sink. That driver does this before it delivers anything.
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
    """Make the deliveries of these records void; sinks that cannot roll back keep what they hold.

    The newest comes first: if this is interrupted, what is void is still the end of what was delivered.
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
                return read_parcel(ledger.storage, codec, given_up[delivery]).objects()
            except Corrupt:  # the rows are needed for their columns only
                return []

        try:
            sink.rollback(list(given_up), rows)
        except MillpondError:
            raise
        except Exception as error:
            text = f"its rollback raised {type(error).__name__}: {error}"
            raise StepFailed(name, batch=ranges[name][0][0], error=text, is_raised=False) from error
        log.info("%s: sink %r: %d deliveries are void", app, name, len(given_up))


def _records_in(ledger: Ledger, ranges: list[tuple[int, int]]) -> Iterator[Record]:
    """Yield the records with these numbers; those that retention has removed are left out."""
    floor = ledger.floor()
    for first, last in ranges:
        yield from ledger.between(max(first, floor) - 1, last)


def sinks_without_rollback(program: Program) -> list[str]:
    """Return the sinks of a program that cannot roll back: they keep what they hold."""
    return [name for name, sink in program.sinks.items() if not isinstance(sink, RollbackSink)]
