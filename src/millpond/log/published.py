"""What the readers of a step's changes have been given, as the ledger remembers it from record to record."""

from __future__ import annotations

from collections.abc import Container, Mapping

from msgspec import structs

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
NOTHING = -2  # in the place of a record's number: the reader has been given nothing
StateFiles = dict[int, tuple[list[Run], list[Pointer]]]  # partition → runs, and later segments


def is_state_of(ledger: Ledger, number: int, last: Record) -> bool:
    """Return whether the state at an earlier record is that of the last one: only claims and releases came between.

    False also if records between are gone, so that this is not known.
    """
    if number < max(last.born, last.epoch, ledger.floor(last) - 1):
        return False
    return all(record.kind in ("claim", "release") for record in ledger.between(number, last.number))


def has_state_of(ledger: Ledger, held: Published, last: Record) -> bool:
    """Return whether a reader certainly has the state at the last record."""
    return held.least is None and is_state_of(ledger, held.upto, last)


def after_rollback(ledger: Ledger, target: Record, last: Record) -> PublishedByStep:
    """Return what the rollback from `last` to `target` says of the readers.

    A sink that cannot be rolled back keeps what it has been given; outputs that had not arrived will not come. A step,
    and a sink that can be rolled back, have what they had at the target, unless the sink is gone from the program:
    then nothing makes its deliveries void.
    """
    found = with_given_up(last, last.deliveries)
    returning = {*last.steps, *last.deliveries, *last.void_ranges}
    for step, readers in found.items():
        for reader in readers.keys() & returning:
            then = target.published.get(step, {}).get(reader, Published(NOTHING, step))
            then = then.back or then
            if has_state_of(ledger, then, target):
                then = Published(last.number + 1, step)
            readers[reader] = structs.replace(readers[reader], back=then)
    return found


def after_clear(last: Record) -> PublishedByStep:
    """Return what the readers may have after a clear, which drops undelivered outputs. Steps have nothing then."""
    return {
        step: {reader: held for reader, held in readers.items() if reader not in last.steps}
        for step, readers in with_given_up(last, last.deliveries).items()
    }


def with_given_up(last: Record, delivered: Mapping[str, int]) -> PublishedByStep:
    """Return what is known of the readers if all outputs are given up that these sinks do not certainly have."""

    def give_up(reader: str, held: Published) -> Published:
        if held.least is not None or held.upto < 0 or delivered.get(reader, held.upto) >= held.upto:
            return held
        return structs.replace(held, least=delivered[reader])

    return {
        step: {reader: give_up(reader, held) for reader, held in readers.items()}
        for step, readers in last.published.items()
    }


def possible_states(ledger: Ledger, held: Published) -> list[Published]:
    """Return the states of which a reader has been given one, oldest first."""
    if held.least is None:
        return [held]
    first = max(held.least, ledger.floor())
    commits = [record.number for record in ledger.between(first - 1, held.upto) if record.kind == "commit"]
    older = [] if held.least in commits else [held.least]
    return [Published(number, held.step) for number in sorted({*older, *commits, held.upto})]


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
            is_kept = step not in changed
            if is_kept and has_state_of(ledger, held, last):
                held = Published(last.number + 1, name)
            elif is_kept and held.back is not None and has_state_of(ledger, held.back, last):
                held = structs.replace(held, back=Published(last.number + 1, name))
            found.setdefault(name, {})[reader] = held
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
        for given in {each for held in readers.values() for each in possible_states(ledger, held)}:
            state = given_state(ledger, given, newest) if given.upto < newest.born else None
            if state is not None:
                record, files = state
                found |= _paths(files)
                found |= set() if record.manifest is None else {record.manifest.path}
    return found


def _paths(files: StateFiles) -> set[str]:
    runs = {part.file.path for runs, _ in files.values() for run in runs for part in run}
    return runs | {file.path for _, segments in files.values() for file in segments}
