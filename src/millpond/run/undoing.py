"""Sinks go back with a rollback, where they can.

The record of a rollback says which sinks are to go back, and to which batch, and the records after it repeat that until
a driver of the program has let them. It does so before it delivers anything, so that doing it twice does no harm.
"""

from __future__ import annotations

import logging

from millpond.errors import MillpondError, StepFailed
from millpond.flow import Delivery
from millpond.log.record import Record
from millpond.pipeline.graph import Program

log = logging.getLogger("millpond")


def taken_back(program: Program, last: Record) -> None:
    """Let the program's sinks go back as far as the record says; those that cannot keep what they hold."""
    for name, batch in last.undo.items():
        back = getattr(program.sinks.get(name), "rollback", None)
        if back is None:
            continue
        try:
            back(Delivery(last.app, last.incarnation, name, batch, 0))
        except MillpondError:
            raise
        except Exception as error:
            raise StepFailed(name, batch=batch, error=f"going back to it: {type(error).__name__}: {error}") from error
        log.info("%s: sink %r went back to batch %d", last.app, name, batch)


def staying(program: Program) -> list[str]:
    """The sinks of a program that cannot go back."""
    return [name for name, sink in program.sinks.items() if not hasattr(sink, "rollback")]
