"""What the streams of `app.changes` have to publish besides the changes of a batch: state that readers do not have.

A reader is a sink or a step that takes the rows of such a stream. The ledger remembers the record up to which each has
been given the state. A reader that is new is given all of it. After a rollback, a migration, a rebuild, a clear, or a
time in which the program lacked the stream, it is given the difference. Both are done by the tasks of the driver's
first batch and committed with it, so a crash loses nothing and repeats nothing.
"""

from __future__ import annotations

import logging

from millpond.log.ledger import Ledger
from millpond.log.published import (
    FORGOTTEN,
    NOTHING,
    PublishedByStep,
    given_state,
    has_state_of,
    possible_states,
)
from millpond.log.record import Published, Record
from millpond.messages import Backlog, StoredState
from millpond.pipeline.graph import Program
from millpond.sinks.base import RollbackSink

log = logging.getLogger("millpond")


def find_backlogs(program: Program, ledger: Ledger, last: Record) -> dict[int, Backlog]:
    """Return what each stream of changes has to publish with the first batch, by node; usually nothing."""
    found: dict[int, Backlog] = {}
    for node, (step, readers) in program.change_readers.items():
        held = [_held_by(program, reader, last.published.get(step, {}).get(reader)) for reader in readers]
        stale = {each for each in held if each is not None and not has_state_of(ledger, each, last)}
        is_new = None in held and step in last.steps
        if stale or is_new:
            given = {state for each in stale for state in possible_states(ledger, each)}
            states = [_stored_state(ledger, last, each) for each in sorted(given, key=lambda each: each.upto)]
            if None in states:
                _warn_of_lost_state(program.app, step, readers)
            can_compare = len(set(held)) == 1 and None not in states
            found[node] = Backlog(tuple(each for each in states if each is not None), can_compare)
    return found


def _held_by(program: Program, reader: str, published: Published | None) -> Published | None:
    """Return what a reader has been given; None if that is nothing. What can be rolled back was rolled back, too."""
    sink = program.sinks.get(reader)
    if published is not None and published.back is not None and (sink is None or isinstance(sink, RollbackSink)):
        published = published.back
    return None if published is not None and published.upto == NOTHING else published


def _stored_state(ledger: Ledger, last: Record, published: Published) -> StoredState | None:
    """Return the files of the state that a reader was given; None if they are no longer kept."""
    found = given_state(ledger, published, last)
    return None if found is None else StoredState(found[0].partitions, found[1])


def _warn_of_lost_state(app: str, step: str, readers: tuple[str, ...]) -> None:
    log.warning(
        "%s: changes of %r: the state that %s has been given is no longer kept (App(keep=)). All of the present state "
        "is published, but not which keys were removed since: remove those there yourself.",
        app,
        step,
        ", ".join(map(repr, readers)),
    )


def published_at(program: Program, last: Record, number: int) -> PublishedByStep:
    """Return what a record says of the readers if those of the program have been given the state at it.

    Readers that are gone from the program are remembered. If the app was cleared since they were given something, the
    files of that state are no longer kept for them.
    """
    found = {
        step: {
            reader: given if given.upto >= last.born else Published(FORGOTTEN, step) for reader, given in held.items()
        }
        for step, held in last.published.items()
    }
    for step, readers in program.change_readers.values():
        found.setdefault(step, {}).update(dict.fromkeys(readers, Published(number, step)))
    return found
