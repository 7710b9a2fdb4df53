"""Clear: a new incarnation of the app, without state, positions and open outputs."""

from __future__ import annotations

from millpond.clock import new_id
from millpond.log.published import after_clear
from millpond.log.record import Record
from millpond.maintenance.stopped_app import StoppedApp
from millpond.maintenance.void_outputs import give_up_outputs, undelivered_ranges, with_ranges
from millpond.pipeline.graph import Program


def clear_app(app: StoppedApp, partitions: int | None, program: Program | None) -> tuple[Record, Record] | None:
    """Begin a new incarnation; the record before it and its own, or None if the app has no state.

    `program` is None if its sinks are not known here. The files of the old incarnation are still there afterwards.
    """
    last = app.find_newest("clear_state")
    if last is None:
        return None
    number = last.number + 1
    cleared = app.write(
        "clear",
        last,
        incarnation=new_id(),
        born=number,
        arrivals=0,
        partitions=partitions or last.partitions,
        deliveries=dict.fromkeys(last.deliveries, number),
        published=after_clear(last),
        void=with_ranges(last.void_ranges, undelivered_ranges(app.ledger, last)),
    )
    give_up_outputs(app.ledger, cleared, last.incarnation, cleared.void_ranges, program)
    return last, cleared
