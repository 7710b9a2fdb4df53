"""Outputs that an action gives up: they are made void in the targets of the program's sinks."""

from __future__ import annotations

from millpond.driver.targets import Targets
from millpond.driver.void_deliveries import SinkRanges, void_deliveries
from millpond.log.ledger import Ledger
from millpond.log.record import Record
from millpond.pipeline.graph import Program


def undelivered_ranges(ledger: Ledger, last: Record) -> SinkRanges:
    """For each sink, the records whose outputs may not have reached it yet."""
    first = max(last.born, ledger.floor())
    return {sink: [(max(first, number + 1), last.number)] for sink, number in last.deliveries.items()}


def with_ranges(ranges: SinkRanges, more: SinkRanges) -> dict[str, list[tuple[int, int]]]:
    """Return the ranges of both.

    >>> from millpond.maintenance.void_outputs import with_ranges
    >>> with_ranges({"out": [(2, 4)]}, {"out": [(7, 8)], "log": [(8, 8)]})
    {'out': [(2, 4), (7, 8)], 'log': [(8, 8)]}
    """
    return {sink: [*ranges.get(sink, []), *more.get(sink, [])] for sink in [*ranges, *more]}


def give_up_outputs(
    ledger: Ledger, record: Record, incarnation: str, ranges: SinkRanges, program: Program | None
) -> None:
    """Make outputs void in their targets, so that a driver that is paused cannot deliver them later.

    `record` is the one that gives them up, `incarnation` the one that they belong to. Without a program no sink is
    known, and its next driver does this.
    """
    if program is not None:
        Targets(program, ledger).register_void(record, incarnation)
        void_deliveries(program, ledger, record.app, ranges)
