"""Deliveries that a keyed task makes before its own work: what the batch before has committed for its partition."""

from __future__ import annotations

import contextlib

from millpond.clock import SystemClock, elapsed
from millpond.errors import MillpondError
from millpond.log.ledger import Ledger
from millpond.log.point import LogPoint
from millpond.messages import BatchContext, KeyedResult
from millpond.parcels import hand_over
from millpond.pipeline.graph import Program
from millpond.storage import Storage


def deliver_parcels(program: Program, context: BatchContext, storage: Storage, result: KeyedResult) -> None:
    """Deliver the parcels of one partition, and write into the result of its task what was delivered.

    Right before each parcel the task looks whether the record that its batch builds on is still the newest one. If it
    is not, another driver owns the app, and may have made the outputs void.

    Nothing is raised: the driver delivers again what was not delivered, in a job of its own, and raises what is to be
    raised. After a parcel that a sink does not take, the sink is not called again.
    """
    began = elapsed()
    for parcel in context.parcels:
        if parcel.delivery.partition != result.partition or parcel.sink in result.delivery_failures:
            continue
        with contextlib.suppress(Exception):
            if not is_newest(storage, context.log):
                break
            try:
                hand_over(storage, program.codec, program.sinks[parcel.sink], parcel)
                result.delivered.append(parcel.delivery.id)
            except MillpondError as failure:
                result.delivery_failures[parcel.sink] = failure
    result.delivery_seconds = elapsed() - began


def is_newest(storage: Storage, point: LogPoint) -> bool:
    """Return whether the record of this point is in the ledger, and no other after it. Costs two reads."""
    ledger = Ledger(storage, point.app, SystemClock())
    found = ledger.read(point.number)
    return (
        found is not None
        and found.checksum == point.links[point.number].checksum
        and ledger.read(point.number + 1) is None
    )
