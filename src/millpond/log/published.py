"""What the readers of a step's changes have been given, as the ledger remembers it from record to record."""

from __future__ import annotations

from collections.abc import Container, Mapping

from millpond.errors import Corrupt
from millpond.log.checked import Pointer
from millpond.log.ledger import Ledger
from millpond.log.manifest import Run
from millpond.log.paths import Paths
from millpond.log.reach import within_reach
from millpond.log.record import Published, Record
from millpond.log.rewrite import Rewriter

PublishedByStep = dict[str, dict[str, Published]]  # step → reader → the state that it has been given
FORGOTTEN = -1  # in the place of a record's number: the state that the reader has been given is not kept
StateFiles = dict[int, tuple[list[Run], list[Pointer]]]  # partition → runs, and later segments


def is_state_of(ledger: Ledger, number: int, last: Record) -> bool:
    """Return whether the state at an earlier record is that of the last one: only claims and releases came between.

    False also if records between are gone, so that this is not known.
    """
    if number < max(last.born, last.epoch, ledger.floor(last) - 1):
        return False
    return all(record.kind in ("claim", "release") for record in ledger.between(number, last.number))


def after_rewrite(
    ledger: Ledger, last: Record, changed: Container[str] = (), names: Mapping[str, str] | None = None
) -> PublishedByStep:
    """Return what the rewrite that follows `last` says of the readers.

    The rewrite leaves the state of all steps but `changed` as it was, perhaps in other partitions and under new
    `names`: readers that had been given it have been given that after the rewrite, too.
    """
    found: PublishedByStep = {}
    for step, readers in last.published.items():
        name = (names or {}).get(step, step)
        for reader, held in readers.items():
            is_same = step not in changed and is_state_of(ledger, held.upto, last)
            found.setdefault(name, {})[reader] = Published(last.number + 1, name) if is_same else held
    return found


def given_state(ledger: Ledger, given: Published, last: Record) -> tuple[Record, StateFiles] | None:
    """Return the record whose state a reader has been given, and the files of that state; None if they are gone.

    If the app was cleared since, it is a record of an earlier incarnation. A clear keeps these files. A record or a
    manifest that is damaged counts as gone: a rollback or a clear may be the way out of that damage.
    """
    is_cleared = given.upto < last.born
    if given.upto == FORGOTTEN:
        return None
    try:
        record = ledger.read(given.upto)
        if record is None or within_reach(ledger, given.upto, record if is_cleared else last) is None:
            return None
        jobs = Rewriter(ledger.storage, ledger, lambda task, jobs: [], "").plan_jobs(record, record)
    except Corrupt:
        return None
    files = {job.partition: job.steps[given.step][1:] for job in jobs if given.step in job.steps}
    if is_cleared:
        there = {item.path for item in ledger.storage.list(f"{Paths(ledger.app).root}/steps")}
        if not there.issuperset(_paths(files)):
            return None
    return record, files


def files_before_clear(ledger: Ledger, newest: Record) -> set[str]:
    """Return the paths of what readers have been given before the app was cleared, until they are given the rest."""
    found: set[str] = set()
    for readers in newest.published.values():
        for given in set(readers.values()):
            state = given_state(ledger, given, newest) if given.upto < newest.born else None
            if state is not None:
                record, files = state
                found |= _paths(files)
                found |= set() if record.manifest is None else {record.manifest.path}
    return found


def _paths(files: StateFiles) -> set[str]:
    runs = {part.file.path for runs, _ in files.values() for run in runs for part in run}
    return runs | {file.path for _, segments in files.values() for file in segments}
